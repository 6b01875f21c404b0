# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Integrations of training frameworks over DDP. Each uses gravac as a user does; ``sources`` feeds the engine."""
