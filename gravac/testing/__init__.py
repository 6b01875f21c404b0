# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Test suites for users' own compressors and controllers; all ranks of a test run in one process."""
