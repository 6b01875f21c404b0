# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the command ``gravac`` for ``python -m gravac``."""

from gravac.cli import main

raise SystemExit(main())
