# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs every example as its first lines say, each in an environment with gravac and the extra that they name.

    python -m tests.packaging.check_examples [NAME ...]

An example fails when its program does, or says something that frightens. It takes minutes and is not part of CI.
"""

import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from gravac.lab.links.network import emulation_obstacle
from tests.packaging.environments import CONSTRAINTS, ROOT, Environment, wheel

FRIGHTENING = re.compile(r"warning|error|traceback|deprecat|exception|not found|failed", re.IGNORECASE)

USUAL = re.compile(r"OMP_NUM_THREADS|LeafSpec")
"""What torchrun says of threads, and Lightning of torch, in every run, with gravac or without."""

EMULATED = ("two_sites.py",)
"""Examples that make a network of their own, which takes root on Linux."""


def first_lines(example: Path) -> tuple[str | None, list[str]]:
    """Return the extra that an example's docstring names, and the last command in it that runs the example."""
    said = example.read_text(encoding="utf-8").split('"""')[1]
    extra = re.search(r"""pip install ["']\.\[(\w+)\]["']""", said)
    commands: list[str] = re.findall(rf"((?:torchrun|python) [^\n]*examples/{example.name})", said)
    return extra and extra[1], shlex.split(commands[-1])


def check(example: Path, built: Path, work: Path) -> list[str]:
    """Run one; return what is wrong with it."""
    extra, command = first_lines(example)
    if example.name in EMULATED and (reason := emulation_obstacle()) is not None:
        print(f"== {example.name}: skipped: {reason}", flush=True)
        return []
    environment = Environment(work / "venv", CONSTRAINTS.get(extra or "", "constraints.txt"))
    environment.install("torch")
    environment.install(f"{built}[{extra}]" if extra else str(built))
    shutil.copytree(ROOT / "examples", work / "examples")
    ran = environment.run([*command, "--steps", "20"], work)
    print(f"== {example.name}: {shlex.join(command)} --steps 20, extra: {extra or 'none'}\n{ran.stdout}", flush=True)
    failed = [f"{example.name}: exit status {ran.returncode}"] if ran.returncode else []
    lines = [line for line in ran.stdout.splitlines() if FRIGHTENING.search(line) and not USUAL.search(line)]
    return failed + [f"{example.name}: {line}" for line in lines]


def main(names: list[str]) -> int:
    """Check those named, or all; return 1 where one fails."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    chosen = [example for example in examples if not names or example.stem in names]
    with tempfile.TemporaryDirectory() as folder:
        built = wheel(Path(folder))
        faults = []
        for example in chosen:
            with tempfile.TemporaryDirectory() as work:
                faults += check(example, built, Path(work))
    print("\n".join(faults) or f"{len(chosen)} examples run")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
