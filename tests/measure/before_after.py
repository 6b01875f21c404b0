# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a step takes longer than before: one commit against HEAD, in blocks that take turns.

A block is a process group of two gloo ranks on loopback, one thread each, that trains every workload of
``tests.measure.one_block`` with the package of one commit. Blocks come in the order before, after, after, before, so
that what drifts on the machine meets both. What is compared is each pair of blocks: the ratio of two median step times.

    python -m tests.measure.before_after BEFORE [--json FILE] [--blocks N] [--steps N]

Both commits are checked out as git worktrees in a temporary folder, which goes when the tool ends, however it ends.
What is not committed is not measured. Pairs that are complete are kept when it is stopped by Ctrl-C.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from gravac.lab.training.run import MALLOC
from tests.measure import one_block, results

ROOT = Path(__file__).parents[2]

WORLD = 2

BLOCK_SECONDS = 300
"""A block that takes longer hangs."""

SIDES = ("before", "after")

Block = dict[str, dict[str, float]]
"""Median seconds of a step and the wire ratio, by workload."""

SECTION = """## A step, before and after: `make measure-before-after BEFORE=<commit>`

Two gloo ranks on loopback, one thread each. Each commit in processes of its own, in blocks in the order before, after,
after, before; medians over blocks of a block's median step, and of the ratio of the two blocks of a pair with its 95 %
bootstrap interval.

<!-- table before_after: begin -->

<!-- table before_after: end -->
"""
"""What ``make tables`` appends to the document once there is a record."""


def order(blocks: int) -> list[tuple[str, str]]:
    """Return the sides of each pair of blocks: before first, after first, and so on."""
    return [SIDES if pair % 2 == 0 else SIDES[::-1] for pair in range(blocks)]


def summarize(pairs: list[dict[str, Block]]) -> results.Rows:
    """Return a row for each workload.

    Args:
        pairs: complete pairs, each with the ``Block`` of either side.
    """
    rows = []
    for what in pairs[0]["before"]:
        seconds = {side: [pair[side][what]["seconds"] for pair in pairs] for side in SIDES}
        ratios = [after / before for before, after in zip(seconds["before"], seconds["after"], strict=True)]
        low, high = results.interval(ratios)
        rows.append(
            {
                "what": what,
                "before_ms": round(1e3 * statistics.median(seconds["before"]), 2),
                "after_ms": round(1e3 * statistics.median(seconds["after"]), 2),
                "ratio": round(statistics.median(ratios), 4),
                "low": round(low, 4),
                "high": round(high, 4),
                "blocks": len(pairs),
                "wire_ratios": [pairs[-1][side][what]["wire_ratio"] for side in SIDES],
            }
        )
    return rows


def commit(name: str) -> str:
    """Return the full hash of a commit.

    Raises:
        ValueError: git knows no such commit.
    """
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise ValueError(f"BEFORE: git knows no commit {name!r}; name one, such as BEFORE=HEAD~3")
    return found.stdout.strip()


@contextmanager
def worktree(folder: Path, of: str) -> Iterator[Path]:
    """Check a commit out into a new folder; it is gone afterwards, also from git's list."""
    git = ["git", "-C", str(ROOT), "worktree"]
    try:
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), of], check=True)
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=False)


def block(code: Path, folder: Path, steps: int) -> Block:
    """Run one block with the package of a worktree.

    Args:
        code: the worktree.
        folder: holds the driver; the block's files go into a folder below it.
        steps: counted steps of each workload.

    Raises:
        RuntimeError: a rank failed, hung, or took the package from elsewhere.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        environment = {**MALLOC, **os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(folder / "one_block.py")]
        logs = [Path(place, f"rank{rank}.log") for rank in range(WORLD)]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                with log.open("wb") as output:
                    ranks.append(
                        subprocess.Popen(
                            [*command, str(rank), str(WORLD), place, str(steps)],
                            cwd=place,
                            env=environment,
                            stdin=subprocess.DEVNULL,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # Ctrl-C is for this process, which ends them
                        )
                    )
            wait(ranks, logs)
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        result = json.loads(Path(place, "result.json").read_text(encoding="utf-8"))
    if not Path(result["package"]).is_relative_to(code):
        raise RuntimeError(f"the block imported {result['package']}, which is not below {code}")
    times: Block = result["times"]
    return times


def wait(ranks: list[subprocess.Popen[bytes]], logs: list[Path]) -> None:
    """Wait until all ranks ended well.

    Raises:
        RuntimeError: one failed, with the end of what it wrote, or they did not end in time.
    """
    until = time.monotonic() + BLOCK_SECONDS
    while any(process.poll() is None for process in ranks):
        if time.monotonic() > until:
            raise RuntimeError(f"a block took more than {BLOCK_SECONDS} s")
        if any(process.poll() for process in ranks):
            break  # its peers may wait for it for ever
        time.sleep(0.05)
    for rank, (process, log) in enumerate(zip(ranks, logs, strict=True)):
        if process.poll():
            raise RuntimeError(f"rank {rank} failed:\n{log.read_text(errors='replace')[-2000:]}")


def measure(before: str, blocks: int, steps: int, path: str | None) -> results.Rows:
    """Run all pairs of blocks, telling of each; keep the rows after every pair; return them.

    Args:
        before: hash of the commit to compare HEAD with.
        blocks: blocks of each side.
        steps: counted steps of each workload in a block.
        path: where rows are kept; ``None`` keeps none.
    """
    pairs: list[dict[str, Block]] = []
    rows: results.Rows = []
    hashes = {"before": before, "after": commit("HEAD")}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(one_block.__file__, folder / "one_block.py")  # alone: beside tests/measure it would import that
        with worktree(folder / "before", hashes["before"]) as a, worktree(folder / "after", hashes["after"]) as b:
            code = {"before": a, "after": b}
            try:
                for sides in order(blocks):
                    pair = {}
                    for side in sides:
                        pair[side] = block(code[side], folder, steps)
                        told = ", ".join(f"{1e3 * one['seconds']:.1f}" for one in pair[side].values())
                        print(f"{time.monotonic() - began:5.0f} s  {side:<7}{told} ms", file=sys.stderr, flush=True)
                    pairs.append(pair)
                    rows = [{**row, **hashes, "steps": steps} for row in summarize(pairs)]
                    if path:
                        results.keep(rows, path)
            except KeyboardInterrupt:
                print(f"stopped: {len(pairs)} of {blocks} pairs are complete", file=sys.stderr)
    return rows


def table(rows: results.Rows) -> str:
    """Return Markdown of the rows."""
    lines = ["| what | before, ms | after, ms | after / before (95 % interval) |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {row['what']} | {row['before_ms']:.1f} | {row['after_ms']:.1f} "
        f"| {row['ratio']:.3f} ({row['low']:.3f}-{row['high']:.3f}) |"
        for row in rows
    ]
    first = rows[0]
    lines += ["", f"{first['before'][:10]} against {first['after'][:10]}, {first['blocks']} blocks of each."]
    return "\n".join(lines)


def stop(*_: Any) -> NoReturn:
    """End as Ctrl-C does."""
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="BEFORE", help="the commit to compare HEAD with")
    parser.add_argument("--json", help="file for the rows")
    parser.add_argument("--blocks", type=int, default=12, help="blocks of each commit (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="counted steps of each workload (default: %(default)s)")
    options = parser.parse_args(arguments)
    if min(options.blocks, options.steps) < 1:
        parser.error("--blocks and --steps: at least 1")
    signal.signal(signal.SIGTERM, stop)
    try:
        rows = measure(commit(options.before), options.blocks, options.steps, options.json)
    except ValueError as error:
        parser.error(str(error))
    print("\n".join(json.dumps(row) for row in rows))
    return 0 if rows and rows[0]["blocks"] == options.blocks else 130


if __name__ == "__main__":
    raise SystemExit(main())
