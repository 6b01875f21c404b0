# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Nothing is collected but tests: without the framework the ranks' program cannot be imported."""

collect_ignore = ["program.py", "apart_program.py", "hsdp_program.py"]
