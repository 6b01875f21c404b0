# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether the tests find as much as an earlier commit's: mutants of gravac, drawn at random, that both try to kill.

    pip install cosmic-ray
    python -m tests.mutants COMMIT --seed 0 --each 5 --json mutants.jsonl

A mutant is one change of one operator, number or branch of HEAD's gravac, drawn by cosmic-ray. Each room of ``ROOMS``
gets as many. The tests of a room run until the first failure: those of HEAD, and, if these do not kill the mutant,
those of the earlier commit. What the file has is not tried again: a run that was stopped goes on where it was.
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


def drawn(root: Path, seed: int, each: int) -> list[dict[str, Any]]:
    """Return mutants, as many of each room: the file, and an operator with the number of its occurrence."""
    from cosmic_ray.commands import init
    from cosmic_ray.work_db import WorkDB, use_db

    mutants: list[dict[str, Any]] = []
    for room in ROOMS:
        files = sorted((root / "gravac" / room).rglob("*.py"))
        with tempfile.TemporaryDirectory() as folder, use_db(Path(folder, "items.sqlite"), WorkDB.Mode.create) as db:
            init(files, db, {})
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

    folders = (*ROOMS[mutant["room"]], f"gravac/{mutant['room']}")  # the last for its doctests, in the suite's order
    tests = [folder for folder in folders if (root / folder).exists()]
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


def main(arguments: list[str] | None = None) -> int:
    """Draw and try mutants; print a line for each run of tests, and which mutants only the earlier tests kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", type=commit, help="the earlier commit, whose tests are compared with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=5, help="number of mutants of each room")
    parser.add_argument("--json", type=Path, required=True, help="file of the results, a line for each run of tests")
    options = parser.parse_args(arguments)
    lines = options.json.read_text(encoding="utf-8").splitlines() if options.json.exists() else []
    ran = [json.loads(line) for line in lines]

    def result(tests: str, mutant: dict[str, Any]) -> dict[str, Any] | None:
        return next((found for found in ran if {"tests": tests, **mutant}.items() <= found.items()), None)

    with (
        tempfile.TemporaryDirectory() as folder,
        worktree(Path(folder, "before"), options.commit) as before,
        worktree(Path(folder, "now"), commit("HEAD")) as now,
    ):
        subprocess.run(
            ["git", "checkout", "--quiet", commit("HEAD"), "--", "gravac", "policies"], cwd=before, check=True
        )
        drawn_mutants = drawn(now, options.seed, options.each)
        mutants = [mutant for i in range(options.each) for mutant in drawn_mutants[i :: options.each]]
        for tests, root in (("now", now), ("before", before)):
            for mutant in mutants:
                killed_now = (result("now", mutant) or {}).get("by")
                if result(tests, mutant) or (tests == "before" and killed_now):
                    continue
                ran.append({"tests": tests, **mutant, **killed(root, mutant)})
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(ran[-1]) + "\n")
                print(json.dumps(ran[-1]), flush=True)
    by_now = [mutant for mutant in mutants if (result("now", mutant) or {}).get("by")]
    missed = [mutant for mutant in mutants if mutant not in by_now and (result("before", mutant) or {}).get("by")]
    print(
        f"{len(mutants)} mutants; HEAD's tests kill {len(by_now)}; the earlier tests alone kill {len(missed)}:", missed
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
