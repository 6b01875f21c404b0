# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``python -m gravac`` is the command ``gravac``."""

from gravac.cli import main

raise SystemExit(main())
