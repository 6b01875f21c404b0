# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Test suites for users' own compressors and controllers, and ranks in memory on which the suites run."""
