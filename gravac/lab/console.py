# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Consoles that commands print on, and whether they show progress bars. Needs rich."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

WIDTH = 120
"""Minimum number of columns of an output that is no terminal: enough for a table."""

PROGRESS_SECONDS = 5.0
"""Seconds between two lines of progress if the output is no terminal."""


def wide_console(console: Console | None = None) -> Console:
    """Return a console that is at least ``WIDTH`` columns wide, unless its output is a terminal.

    Args:
        console: console to widen; ``None`` makes a new console on standard output.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


class ProgressDisplay:
    """A context manager around progress bars, which only a terminal shows."""

    _progress: Progress | None = None

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()
