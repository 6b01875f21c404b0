# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times a newcomer's path: from ``pip install`` of gravac until TensorBoard's files hold a decision on the CF.

    python -m tests.packaging.newcomer.measure [--json FILE] [NAME ...]

For each script here: an environment with torch and the framework, which such a user has; then the clock starts, gravac
is installed as its page says, and the changed script is started. Reading and typing are not in it.
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
    "torchrun": (None, "docs/usage.md"),
    "lightning": ("lightning", "docs/lightning.md"),
    "accelerate": ("accelerate", "docs/accelerate.md"),
    "trainer": ("transformers", "docs/trainer.md"),
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


def path(name: str) -> dict[str, Any]:
    """Go a path; return its row.

    Raises:
        RuntimeError: the script ended, or the time was over, without a decision.
    """
    framework, page_of_it = PATHS[name]
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        environment = Environment(folder / "venv", CONSTRAINTS.get(framework or "", "constraints.txt"))
        environment.install("torch")
        if framework is not None:
            environment.install(framework)
        began = time.monotonic()
        environment.install(f"{ROOT}[{framework}]" if framework else str(ROOT))
        installed = time.monotonic() - began
        trained = first_decision(environment, launch(name), folder)
        record = next(one for one in read_jsonl(folder / "runs/mine/gravac.jsonl") if isinstance(one, DecisionRecord))
        return {
            "path": name,
            "page": page_of_it,
            "lines": len(changed(name)),
            "install_seconds": round(installed, 1),
            "start_to_decision_seconds": round(trained, 1),
            "decision_step": record.step,
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
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    write([path(name) for name in arguments.names or PATHS], arguments.json)


if __name__ == "__main__":
    main()
