# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sources of gradients: thin adapters that hand gradients to the engine by name. ``ddp``: a DDP module's buckets."""
