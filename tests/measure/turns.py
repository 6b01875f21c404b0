# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training runs that take turns, so that runs that are compared meet the same minutes of a machine.

The same step takes up to a quarter longer in one quarter of an hour than in another. Runs that are made one after the
other differ by that much before anything else; runs that take turns of a few seconds do not.
"""

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

TURNS = "GRAVAC_MEASURE_TURNS"
"""Environment variable of a program that takes turns: the file that exists while the program waits for its turn."""

LONGEST = 3600.0
"""Seconds after which a program gives up waiting: the measurement was killed."""

POLL = 0.01


def wait_for_turn() -> None:
    """End this program's turn, and wait for its next one; return at once in a program that takes no turns.

    Rank 0 calls it at the end of each evaluation, while the clock stands still. The other ranks wait for rank 0.

    Raises:
        TimeoutError: no turn came in ``LONGEST`` seconds.
    """
    if TURNS not in os.environ:
        return
    waiting = Path(os.environ[TURNS])
    waiting.touch()
    deadline = time.monotonic() + LONGEST
    while waiting.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"this run got no turn for {LONGEST:g} s: the measurement that gives the turns has ended"
            )
        time.sleep(POLL)


def in_turns(runs: Sequence[Callable[[Mapping[str, str], Callable[[], bool]], Result]], seed: int = 0) -> list[Result]:
    """Make training runs at the same time, of which one at a time trains; return their results.

    Args:
        runs: functions that start a program and return what it came to. A function gets environment variables for its
            program, and a function that says whether to stop the program, because another run failed.
        seed: of the order of turns, which changes with each round.

    Raises:
        Exception: what the first run that failed raised.
    """
    given_up = threading.Event()
    order = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="gravac-turns-") as folder, ThreadPoolExecutor(len(runs)) as pool:
        files = [Path(folder, f"run{number}") for number in range(len(runs))]
        started = [pool.submit(run, {TURNS: str(path)}, given_up.is_set) for run, path in zip(runs, files, strict=True)]
        turns = list(zip(started, files, strict=True))
        try:
            for turn in turns:
                _wait(*turn)
            while not all(run.done() for run in started):
                order.shuffle(turns)
                for run, path in turns:
                    path.unlink(missing_ok=True)
                    _wait(run, path)
        finally:
            given_up.set()
            for path in files:
                path.unlink(missing_ok=True)
        return [run.result() for run in started]


def _wait(run: "Future[object]", waiting: Path) -> None:
    """Wait until a run waits for its next turn, or has ended.

    Raises:
        Exception: what the run raised.
    """
    while not run.done():
        if waiting.exists():
            return
        time.sleep(POLL)
    run.result()
