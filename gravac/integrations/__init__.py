# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Integrations of training frameworks that train by DDP. Each uses only gravac's public API, as a user does."""
