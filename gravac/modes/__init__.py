# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ways to run a step. ``outer``: ranks train apart for some steps, then exchange how far they came."""
