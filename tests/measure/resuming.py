# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measurements that are stopped and resumed: each row is in its file as soon as it is measured."""

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.measure.results import Rows, keep, read, todays


class Book:
    """Rows of a file. Each row is written when it is there, so that an interrupted measurement loses none.

    Args:
        path: the file, whose rows are kept; ``None``: no row is written.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        self.rows: Rows = read(path) if path is not None and Path(path).exists() else []

    def find(self, **about: Any) -> dict[str, Any] | None:
        """Return the row of which the fields have these values."""
        return next((row for row in self.rows if all(row.get(name) == value for name, value in about.items())), None)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, and write the file."""
        self.rows.append(row)
        if self.path is not None:
            keep(self.rows, str(self.path))


class Progress:
    """Says how far a measurement is.

    Args:
        total: number of parts to do.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.began = total, 0, time.monotonic()

    def say(self, words: str) -> None:
        """A part was done."""
        self.done += 1
        spent = time.monotonic() - self.began
        left = spent / self.done * (self.total - self.done) / 60
        print(f"[{self.done}/{self.total}, about {left:.0f} minutes left] {words}", flush=True)


def run_in(
    pool: Any,
    train: Callable[[Any], dict[str, Any]],
    missing: Sequence[Any],
    book: Book,
    time_is_up: Callable[[], bool] = lambda: False,
    describe: Callable[[dict[str, Any]], str] = json.dumps,
) -> bool:
    """Run cases in a pool of processes, add the row of each to the file, and say how far the measurement is.

    Args:
        pool: ``multiprocessing`` pool; it is terminated when time is up.
        train: function that runs a case and returns its row.
        missing: cases that have no row.
        book: the file.
        time_is_up: function that says whether the measurement should end; it is called after each row.
        describe: function that returns what is said of a row.

    Returns:
        True if all cases ran.
    """
    progress = Progress(len(missing))
    for row in pool.imap(train, missing):
        book.add(row)
        progress.say(describe(row))
        if time_is_up():
            pool.terminate()
            return False
    return True


def resumable(measure: Callable[[], None]) -> int:
    """Measure; return the exit status. Ctrl-C or a termination signal ends it, and what was measured stays."""
    todays()  # the machine's speed, before ranks take it
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the ranks too
    try:
        measure()
    except KeyboardInterrupt:
        print("\nstopped; the file has the results so far, and the same command continues", file=sys.stderr)
        return 130
    return 0


def until(minutes: float) -> Callable[[], bool]:
    """Return what tells whether so many minutes have passed."""
    end = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() > end


def parser_of(documentation: str | None, path: str) -> argparse.ArgumentParser:
    """Return a parser with what all of these measurements take."""
    parser = argparse.ArgumentParser(description=documentation)
    parser.add_argument("--json", default=path)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start nothing after this many minutes")
    return parser
