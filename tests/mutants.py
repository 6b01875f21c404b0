# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether the tests find as much as an earlier commit's: mutants of gravac, drawn at random, that both try to kill.

    pip install cosmic-ray
    python -m tests.mutants COMMIT --seed 0 --each 5 --json mutants.jsonl

A mutant is one change of one operator, number or branch, drawn by cosmic-ray. Each room of ``ROOMS`` gets as many. Only
files that are the same in both commits are mutated. The tests of a room run until the first failure, once in a worktree
of the earlier commit and once in one of HEAD. A run that was stopped goes on where it was with the same file.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.worktrees import commit, worktree

ROOMS = {
    "averaging": ("tests/averaging", "tests/compressors"),
    "compressors": ("tests/compressors",),
    "engine": ("tests/engine", "tests/distributed"),
    "exchange": ("tests/exchange", "tests/distributed"),
    "modes": ("tests/modes", "tests/outer"),
    "sources": ("tests/sources", "tests/distributed", "tests/modes", "tests/hsdp"),
    "controllers": ("tests/controllers",),
    "checkpoint": ("tests/checkpoint",),
}
"""Folders of tests that belong to each folder of ``gravac/``."""

TIMEOUT_S = 1500.0
"""Seconds after which a run of tests counts as killed: a mutant that hangs is found."""


def drawn(root: Path, before: Path, seed: int, each: int) -> list[dict[str, Any]]:
    """Return mutants, as many of each room: the file, and an operator with the number of its occurrence."""
    from cosmic_ray.commands import init
    from cosmic_ray.work_db import WorkDB, use_db

    mutants: list[dict[str, Any]] = []
    for room in ROOMS:
        files = sorted((root / "gravac" / room).rglob("*.py"))
        same = [path for path in files if _text(path) == _text(before / path.relative_to(root))]
        with tempfile.TemporaryDirectory() as folder, use_db(Path(folder, "items.sqlite"), WorkDB.Mode.create) as db:
            init(same, db, {})
            items = [mutation for item in db.work_items for mutation in item.mutations]
        items.sort(key=lambda item: (str(item.module_path), item.operator_name, item.occurrence))
        mutants += [
            {
                "room": room,
                "file": str(Path(item.module_path).relative_to(root)),
                "operator": item.operator_name,
                "occurrence": item.occurrence,
                "line": item.start_pos[0],
            }
            for item in random.Random(f"{seed} {room}").sample(items, each)
        ]
    return mutants


def killed(root: Path, mutant: dict[str, Any]) -> dict[str, Any]:
    """Run the tests of a mutant's room in a worktree; return the first that fails (else ``None``), and seconds."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    tests = [folder for folder in ROOMS[mutant["room"]] if (root / folder).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    with use_mutation(root / mutant["file"], get_operator(mutant["operator"])(), mutant["occurrence"]):
        try:
            ran = subprocess.run(
                [*command, *tests], cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return {"by": "timeout", "seconds": TIMEOUT_S}
    failed = [line.split(" - ")[0] for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    by = None if ran.returncode == 0 else failed[0] if failed else ran.stdout[-300:] + ran.stderr[-300:]
    return {"by": by, "seconds": round(time.monotonic() - began, 1)}


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def main(arguments: list[str] | None = None) -> int:
    """Draw and try mutants; print a line for each, and how many of those that the old tests kill the new ones kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", type=commit, help="the earlier commit, whose tests are compared with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=5, help="number of mutants of each room")
    parser.add_argument("--json", type=Path, required=True, help="file of the results, a line for each mutant")
    options = parser.parse_args(arguments)
    tried = [json.loads(line) for line in (_text(options.json) or "").splitlines()]
    with (
        tempfile.TemporaryDirectory() as folder,
        worktree(Path(folder, "before"), options.commit) as before,
        worktree(Path(folder, "now"), commit("HEAD")) as now,
    ):
        mutants = drawn(now, before, options.seed, options.each)
        for round_robin in range(options.each):
            for mutant in mutants[round_robin :: options.each]:
                if any(mutant.items() <= found.items() for found in tried):
                    continue
                found = {**mutant, "before": killed(before, mutant), "now": killed(now, mutant)}
                tried.append(found)
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found) + "\n")
                print(json.dumps(found), flush=True)
    by_old = [found for found in tried if found["before"]["by"] is not None]
    by_both = [found for found in by_old if found["now"]["by"] is not None]
    print(f"{len(tried)} mutants; the earlier tests kill {len(by_old)}, of which the present tests kill {len(by_both)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
