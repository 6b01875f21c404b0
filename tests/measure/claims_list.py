# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The list of claims: ids of all tests that ``make test`` collects, doctests included, without their parameters.

    python -m tests.measure.claims_list [--out FILE] [--against FILE]

Two lists compare: which tests are gone, which are new, and which of both have the same name in another file. Modules
whose packages are missing are not collected, so lists compare only if they were made in alike environments.
"""

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gravac.lab.provenance import UNRECORDED
from tests.measure.results import todays

ROOT = Path(__file__).parents[2]

COMMENT = "#"
"""Start of a line that is not of the list."""


@dataclass
class Difference:
    """How two lists differ.

    Attributes:
        gone: ids that only the earlier list has.
        new: ids that only the later list has.
        moved: earlier and later id of tests of the same name in another file or class.
    """

    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    moved: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"moved {earlier} -> {later}" for earlier, later in self.moved]
        lines += [f"gone  {claim}" for claim in self.gone]
        lines += [f"new   {claim}" for claim in self.new]
        return "\n".join([*lines, f"{len(self.gone)} gone, {len(self.new)} new, {len(self.moved)} moved"])


def claims(collected: str) -> list[str]:
    """Return the ids, sorted, each once, without parameters.

    Args:
        collected: what ``pytest --collect-only -q`` prints.
    """
    return sorted({line.partition("[")[0] for line in collected.splitlines() if "::" in line})


def collect() -> list[str]:
    """Collect the suite here.

    Raises:
        RuntimeError: pytest cannot collect it; the message has what pytest says.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"pytest cannot collect the suite:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return claims(ran.stdout)


def read(text: str) -> list[str]:
    """Return the ids of a list that was written."""
    return [line for line in text.splitlines() if line and not line.startswith(COMMENT)]


def compare(earlier: Iterable[str], later: Iterable[str]) -> Difference:
    """Compare two lists; a test of the same name elsewhere is moved if only one has that name on either side."""
    before, after = set(earlier), set(later)
    gone, new = before - after, after - before
    named: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, ids in enumerate((gone, new)):
        for claim in ids:
            named[claim.rpartition("::")[2]][side].append(claim)
    pairs = [(old[0], fresh[0]) for old, fresh in named.values() if len(old) == len(fresh) == 1]
    return Difference(
        gone=sorted(gone - {old for old, _ in pairs}),
        new=sorted(new - {fresh for _, fresh in pairs}),
        moved=sorted(pairs),
    )


def main(arguments: list[str] | None = None) -> int:
    """Collect, write the list, and compare it; return 1 if a test is gone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE", help="write the list to this file instead of printing it")
    parser.add_argument("--against", metavar="FILE", help="compare with the list in this file")
    options = parser.parse_args(arguments)
    here = collect()
    if options.out:
        code = todays().code
        head = f"{COMMENT} {len(here)} tests, {code if code == UNRECORDED else 'commit ' + code}"
        Path(options.out).write_text("\n".join([head, *here, ""]), encoding="utf-8")
    elif not options.against:
        print("\n".join(here))
    if not options.against:
        return 0
    difference = compare(read(Path(options.against).read_text(encoding="utf-8")), here)
    print(difference)
    return 1 if difference.gone else 0


if __name__ == "__main__":
    raise SystemExit(main())
