# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How many examples a law gets whose every example is a whole run."""

from hypothesis import settings

FEW = settings() if settings().max_examples > 30 else settings(max_examples=10)
"""A third of the usual number in a short run; in a long one as many as other laws."""
