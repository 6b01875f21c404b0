# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A console that is wide enough for tables, and progress bars, for the commands of the lab. Needs rich."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from typing_extensions import Self

MIN_COLUMNS = 120
"""Minimum width of an output that is no terminal, in characters: enough for most tables."""

MAX_COLUMNS = 1000
"""Maximum width of an output that is no terminal, in characters: more than any table needs."""

PROGRESS_SECONDS = 5.0
"""Minimum seconds between two lines of progress if the output is no terminal."""


def wide_console(console: Console | None = None) -> Console:
    """Return a console; if its output is no terminal, the console is widened to at least ``MIN_COLUMNS`` characters.

    Args:
        console: console to widen, in place; ``None`` makes a new console on standard output.
    """
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_COLUMNS)
    return console


def print_table(console: Console, table: Table) -> None:
    """Print a table; if the output is no terminal, widen the console first, so that no heading and no cell is cut.

    Args:
        console: console to print on, widened in place.
        table: table to print.
    """
    if not console.is_terminal:
        wide_options = console.options.update(max_width=MAX_COLUMNS)
        console.width = max(console.width, Measurement.get(console, wide_options, table).maximum)
    console.print(table)


class ProgressDisplay:
    """Base class of progress displays: a context manager that shows a progress bar while its block runs.

    A subclass sets ``_progress`` if the output is a terminal; without a progress bar the context manager does nothing.
    """

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
