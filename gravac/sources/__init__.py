# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where gradients come from: thin adapters that hand them to the engine by name. ``ddp``: a DDP module's buckets."""
