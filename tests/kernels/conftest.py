# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Of kernels nothing is collected but tests: without triton the rest cannot be imported."""

collect_ignore = ["compiled.py"]
