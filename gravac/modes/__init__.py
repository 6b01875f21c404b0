# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Modes of a step, and the switch between them. ``outer``: ranks train apart for some steps, then exchange."""
