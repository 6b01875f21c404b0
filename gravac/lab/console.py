# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where commands print: a terminal as wide as it is, anything else wide enough for a table. Needs rich."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

WIDTH = 120
"""Columns of the output where it is not a terminal."""

PLAIN_SECONDS = 5.0
"""Seconds between two lines of progress where the output is not a terminal."""


def wide(console: Console | None = None) -> Console:
    """Return the console, or a new one; at least ``WIDTH`` columns wide where it is not a terminal."""
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


class Shown:
    """A context manager around progress bars: none where the output is not a terminal."""

    _progress: Progress | None = None

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if self._progress:
            self._progress.stop()
