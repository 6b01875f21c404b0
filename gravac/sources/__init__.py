# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sources of gradients: adapters that hand a module's gradients to the engine by name. ``ddp``: with DDP."""
