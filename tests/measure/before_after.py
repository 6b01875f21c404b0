# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a step takes longer than before: one commit against HEAD, taking turns every second.

Each side is a process group of two gloo ranks on loopback, one thread each, with the package of one commit and with
that commit's own driver, ``tests/measure/one_side.py``, which says what lines the two sides share. Both live at the
same time and train the same workloads, but never at once: a turn of some steps of one, then of the other, in the order
before, after, after, before, while the other side waits for a word. So what drifts on the machine from second to second
meets both. What is compared is each pair of turns: the ratio of two median step times. A workload that only one side's
driver knows is skipped.

    python -m tests.measure.before_after BEFORE [--json FILE] [--pairs N] [--steps N]

Both commits are checked out as git worktrees in a temporary folder, which goes when the tool ends, however it ends.
What is not committed is not measured. Workloads that are complete are kept when it is stopped by Ctrl-C.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NoReturn

from gravac.lab.training.run import MALLOC_ENVIRONMENT
from tests.measure import results
from tests.worktrees import commit, worktree

DRIVER = Path("tests", "measure", "one_side.py")
"""Where a commit has its driver."""

WORLD = 2

PATIENCE = 120.0
"""Seconds after which a side that does not answer hangs."""

SIDES = ("before", "after")

Pair = dict[str, float]
"""Median seconds of a step of one turn of each side."""


def order(pairs: int) -> list[tuple[str, str]]:
    """Return the sides of each pair of turns: before first, after first, and so on."""
    return [SIDES if pair % 2 == 0 else SIDES[::-1] for pair in range(pairs)]


def summarize(what: str, pairs: list[Pair], wire_ratios: list[float]) -> dict[str, Any]:
    """Return the row of a workload.

    Args:
        what: its name.
        pairs: all its pairs of turns.
        wire_ratios: of the last step of either side.
    """
    ratios = [pair["after"] / pair["before"] for pair in pairs]
    low, high = results.interval(ratios)
    return {
        "what": what,
        **{f"{side}_ms": round(1e3 * statistics.median(pair[side] for pair in pairs), 2) for side in SIDES},
        "ratio": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "pairs": len(pairs),
        "wire_ratios": wire_ratios,
    }


class Side:
    """Ranks that train as the driver of a worktree has them train; a context manager that ends them.

    Args:
        code: the worktree.
        folder: holds a folder of the ranks' files.
    """

    def __init__(self, code: Path, folder: Path) -> None:
        self._code, self._folder = code, folder

    def __enter__(self) -> "Side":
        self._place = Path(tempfile.mkdtemp(dir=self._folder))
        environment = {**MALLOC_ENVIRONMENT, **os.environ, "PYTHONPATH": str(self._code), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", ".".join(DRIVER.with_suffix("").parts)]
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(WORLD):
            with self._log(rank).open("w") as log:
                self._ranks.append(
                    subprocess.Popen(
                        [*command, str(rank), str(WORLD), str(self._place)],
                        cwd=self._code,
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                        start_new_session=True,  # Ctrl-C is for this process, which ends them
                    )
                )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._ranks:
            process.kill()
            process.wait()

    def workloads(self) -> list[str]:
        """Return what can be trained; said once, at the beginning.

        Raises:
            RuntimeError: the package is not the worktree's, or see ``tell``.
        """
        answer = self._answers()[0]
        if not Path(answer["package"]).is_relative_to(self._code):
            raise RuntimeError(f"a rank imported {answer['package']}, which is not below {self._code}")
        return list(answer["workloads"])

    def tell(self, words: str) -> dict[str, Any]:
        """Have every rank do something, and return what rank 0 answers.

        Raises:
            RuntimeError: a rank failed, with the end of what it wrote, or did not answer in time.
        """
        for process in self._ranks:
            _pipe(process.stdin).write(f"{words}\n")
            _pipe(process.stdin).flush()
        return self._answers()[0]

    def _answers(self) -> list[dict[str, Any]]:
        late = threading.Timer(PATIENCE, self.__exit__)
        late.start()
        try:
            lines = [_pipe(process.stdout).readline() for process in self._ranks]
        finally:
            late.cancel()
        for rank, line in enumerate(lines):
            if not line:
                raise RuntimeError(
                    f"rank {rank} failed or hung; end of its output:\n{self._log(rank).read_text()[-2000:]}"
                )
        return [json.loads(line) for line in lines]

    def _log(self, rank: int) -> Path:
        return self._place / f"rank{rank}.log"


def _pipe(end: IO[str] | None) -> IO[str]:
    assert end is not None
    return end


def shared(workloads: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the workloads that both sides train, in the order of after, and a line for each that is skipped.

    Args:
        workloads: names of what each side's driver can train.

    Raises:
        ValueError: they have none in common.
    """
    both = [name for name in workloads["after"] if name in workloads["before"]]
    if not both:
        raise ValueError(
            "BEFORE: the drivers of this commit and of HEAD have no workload in common; name a later commit"
        )
    skipped = [
        f"skipped {name}: only the driver of {side} knows it"
        for side in SIDES
        for name in workloads[side]
        if name not in both
    ]
    return both, skipped


def measure(before: str, pairs: int, steps: int, path: str | None) -> results.Rows:
    """Time every workload that both sides have, telling of each; keep the rows after each; return them.

    Args:
        before: hash of the commit to compare HEAD with.
        pairs: pairs of turns of each workload.
        steps: steps of a turn.
        path: where rows are kept; ``None`` keeps none.

    Raises:
        ValueError: a commit has no driver, or the two have no workload in common.
    """
    hashes = {"before": before, "after": commit("HEAD")}
    rows: results.Rows = []
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        code = {name: stack.enter_context(worktree(folder / name, of)) for name, of in hashes.items()}
        check_drivers(code)
        sides = {name: stack.enter_context(Side(at, folder)) for name, at in code.items()}
        workloads, skipped = shared({name: side.workloads() for name, side in sides.items()})
        for line in skipped:
            print(line, file=sys.stderr)
        try:
            for what in workloads:
                row = _timed(what, sides, pairs, steps)
                rows.append({**row, **hashes, "steps": steps})
                told = f"{row['ratio']:.3f} ({row['low']:.3f}-{row['high']:.3f})"
                print(f"{time.monotonic() - began:5.0f} s  {what}: {told}", file=sys.stderr, flush=True)
                if path:
                    results.keep(rows, path)
        except KeyboardInterrupt:
            print(f"stopped: {len(rows)} of {len(workloads)} workloads are complete", file=sys.stderr)
    return rows


def check_drivers(code: Mapping[str, Path]) -> None:
    """Refuse a side whose worktree has no driver: another copy of the file would drive it.

    Raises:
        ValueError: a side has none.
    """
    for name, tree in code.items():
        if not (tree / DRIVER).exists():
            raise ValueError(f"{name.upper()}: the commit has no {DRIVER}; name a commit that has this file")


def _timed(what: str, sides: dict[str, Side], pairs: int, steps: int) -> dict[str, Any]:
    """Time one workload: the row of it."""
    for side in sides.values():
        side.tell(f"open {what}")
    found = [{name: sides[name].tell(f"run {steps}")["seconds"] for name in turns} for turns in order(pairs)]
    return summarize(what, found, [side.tell("close")["wire_ratio"] for side in sides.values()])


def stop(*_: Any) -> NoReturn:
    """End as Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="the commit to compare HEAD with")
    parser.add_argument("--json", help="file to write the rows to")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of turns of a workload (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=7, help="steps of a turn (default: %(default)s)")
    options = parser.parse_args(arguments)
    if min(options.pairs, options.steps) < 1:
        parser.error(f"--pairs {options.pairs}, --steps {options.steps}: both must be at least 1")
    signal.signal(signal.SIGTERM, stop)
    try:
        rows = measure(commit(options.before), options.pairs, options.steps, options.json)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(json.dumps(row) for row in rows))
    return 0 if rows else 130


if __name__ == "__main__":
    raise SystemExit(main())
