# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Suites that users run on compressors and controllers of their own, and ranks in memory to run them on."""
