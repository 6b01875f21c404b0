# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Nothing is collected that needs a framework: without it the ranks' program cannot be imported."""

collect_ignore = ["with_trainer.py"]
