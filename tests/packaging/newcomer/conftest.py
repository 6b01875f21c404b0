# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The scripts here import frameworks, and are not tests."""

collect_ignore_glob = ["*_before.py", "*_after.py"]
