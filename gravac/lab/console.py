# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where commands print: a terminal as wide as it is, anything else wide enough for a table. Needs rich."""

from __future__ import annotations

from rich.console import Console

WIDTH = 120
"""Columns, where the output is not a terminal."""


def wide(console: Console | None = None) -> Console:
    """The console, or a new one."""
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console
