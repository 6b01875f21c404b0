# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times a newcomer's path: from ``pip install`` of gravac until TensorBoard's files hold a decision on the CF.

    python -m tests.packaging.newcomer.measure --environments FOLDER --prepare [NAME ...]
    python -m tests.packaging.newcomer.measure --environments FOLDER [--json FILE] [NAME ...]

The first makes an environment for each script, with torch and the framework, which such a user has. The second installs
gravac there as its page says, and starts the changed script; that is what the clock counts, without reading and typing.
"""

import argparse
import difflib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from gravac.telemetry import DecisionRecord, page, read_jsonl
from tests.measure.results import write
from tests.packaging.environments import CONSTRAINTS, ROOT, Environment

HERE = Path(__file__).parent

PATHS = {
    "torchrun": (None, "docs/how-to/attach.md"),
    "lightning": ("lightning", "docs/how-to/frameworks.md"),
    "accelerate": ("accelerate", "docs/how-to/frameworks.md"),
    "trainer": ("transformers", "docs/how-to/frameworks.md"),
}
"""Framework (its package and gravac's extra) and page of each pair of scripts."""

PATIENCE = 300.0
"""Seconds after which the first decision is not waited for any more."""


def changed(name: str) -> list[str]:
    """Return the lines that were added to a script, or taken from it, with ``+`` or ``-``, blank ones left out."""
    before, after = ((HERE / f"{name}_{when}.py").read_text().splitlines() for when in ("before", "after"))
    lines = [line for line in difflib.ndiff(before, after) if re.match(r"[-+] ", line)]
    return [line for line in lines if line[2:].strip()]


def launch(name: str) -> list[str]:
    """Return the command that starts the changed script, as the script's first lines say."""
    file = HERE / f"{name}_after.py"
    said = file.read_text().split('"""')[1]
    (command,) = re.findall(r": ((?:torchrun|python) .*)train\.py", said)
    return [*command.split(), str(file)]


def decided(folder: Path) -> bool:
    """Tell whether a file of TensorBoard's below a folder holds a decision."""
    tag = page.DECISION_TEXT.encode()
    return any(tag in file.read_bytes() for file in folder.rglob("events.out.tfevents.*"))


def prepare(name: str, folder: Path) -> None:
    """Make the environment that such a user has."""
    framework, _ = PATHS[name]
    environment = Environment(folder / name, CONSTRAINTS.get(framework or "", "constraints.txt"))
    environment.install("torch")
    if framework is not None:
        environment.install(framework)


def path(name: str, folder: Path) -> dict[str, Any]:
    """Go a path in its prepared environment; return its row.

    Raises:
        RuntimeError: the script ended, or the time was over, without a decision.
    """
    framework, told = PATHS[name]
    environment = Environment(folder / name, CONSTRAINTS.get(framework or "", "constraints.txt"), new=False)
    began = time.monotonic()
    environment.install(f"{ROOT}[{framework}]" if framework else str(ROOT))
    installed = time.monotonic() - began
    with tempfile.TemporaryDirectory() as at:
        trained = first_decision(environment, launch(name), Path(at))
        records = read_jsonl(Path(at) / "runs/mine/gravac.jsonl")
    return {
        "path": name,
        "page": told,
        "lines": len(changed(name)),
        "install_seconds": round(installed, 1),
        "start_to_decision_seconds": round(trained, 1),
        "decision_step": next(one.step for one in records if isinstance(one, DecisionRecord)),
    }


def first_decision(environment: Environment, command: list[str], folder: Path) -> float:
    """Return the seconds from a script's start until its first decision is in TensorBoard's files, and end it."""
    began = time.monotonic()
    with (folder / "said.txt").open("w+") as said:
        run = subprocess.Popen(
            command, cwd=folder, env=environment.variables(), stdout=said, stderr=said, start_new_session=True
        )
        try:
            while not (found := decided(folder)) and run.poll() is None and time.monotonic() - began < PATIENCE:
                time.sleep(0.2)
            seconds = time.monotonic() - began
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGTERM)
                run.wait()
        said.seek(0)
        text = said.read()
    print(text, flush=True)
    if not found:
        raise RuntimeError(f"{' '.join(command)}: no decision in {seconds:.0f} s; it said: {text[-2000:]}")
    return seconds


def main() -> None:
    """Go the paths named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *PATHS], metavar="NAME")
    parser.add_argument("--environments", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--prepare", action="store_true", help="make the environments, and measure nothing")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    names, folder = arguments.names or list(PATHS), arguments.environments.absolute()
    if arguments.prepare:
        for name in names:
            prepare(name, folder)
    else:
        write([path(name, folder) for name in names], arguments.json)


if __name__ == "__main__":
    main()
