# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training frameworks over DDP: each integration uses gravac as a user does. What feeds the engine is ``sources``."""
