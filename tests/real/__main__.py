# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that gravac was not made on: they run, their ranks stay equal, they learn, save and resume.

    python -m tests.real SOURCES [--program NAME] [--settings TEXT]

``SOURCES`` is a folder with clones of karpathy/nanoGPT and pytorch/examples. Each program is copied, patched with the
lines of ``tests/real/*.patch``, and run twice by two processes over gloo: from scratch, then from what it saved itself.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gravac.settings import SettingsError
from tests.measure.nanogpt import free_port
from tests.real.programs import EVERY, HERE, PROGRAMS, RANKS, Program
from tests.real.witness import digest_of_state

SETTINGS = ("every=1", "every=5", EVERY, "every=(1, 20), native=False, pace=2e6")
"""Settings that each program is run with; ``pace`` emulates a link of so many bits per second."""

PATIENCE = 600
"""Seconds after which a run is ended as a failure."""

FALLEN = 0.9
"""The last loss is below the first by this factor at least."""


@dataclass(frozen=True)
class Run:
    """One run of a program.

    Attributes:
        reports: what each rank's witness wrote.
        output: what all ranks printed.
        seconds: seconds that it took.
    """

    reports: Sequence[Mapping[str, Any]]
    output: str
    seconds: float


def run(program: Program, folder: Path, resumed: bool) -> Run:
    """Run a program in its folder.

    Raises:
        RuntimeError: it failed, or did not end in time; with the end of its output.
    """
    witnessed = folder / ("resumed" if resumed else "from_scratch")
    witnessed.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parents[1]), os.environ.get("PYTHONPATH"))))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    torchrun += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    command = [*torchrun, str(HERE / "witness.py"), str(witnessed), program.script, *program.arguments(resumed)]
    began = time.monotonic()
    with (witnessed / "output.txt").open("w+", encoding="utf-8") as printed:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            code: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its workers
                process.wait()
        printed.seek(0)
        output = printed.read()
    if code != 0:
        ended = f"did not end in {PATIENCE} s" if code is None else f"ended with {code}"
        raise RuntimeError(f"{program.name} {ended}; it printed: {output[-6000:]}")
    reports = [json.loads((witnessed / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
    return Run(reports, output, time.monotonic() - began)


def faults(program: Program, ran: Run, resumed: bool) -> list[str]:
    """Return what is wrong with a run of any kind, in words."""
    first, *others = ran.reports
    found = []
    if first["steps"] != program.steps[resumed]:
        found.append(f"made {first['steps']} steps, not {program.steps[resumed]}")
    for rank, report in enumerate(others, start=1):
        if report["shared"] != first["shared"]:
            found.append(f"what rank {rank} shares is not what rank 0 does: {report['shared']}, {first['shared']}")
        if report["end"] != first["end"]:
            found.append(f"rank {rank} ends with other weights than rank 0")
    return found


def check(program: Program, sources: Path, settings: str) -> list[str]:
    """Run a program from scratch and resumed, print what was seen, and return what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "program"
        program.set_up(sources, folder, settings)
        ran = run(program, folder, resumed=False)
        found = faults(program, ran, resumed=False)
        saved = program.saved(folder)
        share = digest_of_state(saved.weights)
        if share != ran.reports[0]["shared"].get(str(saved.steps)):
            found.append(f"saved after {saved.steps} steps what ranks did not share there")
        again = run(program, folder, resumed=True)
        found += [f"resumed: {fault}" for fault in faults(program, again, resumed=True)]
        if again.reports[0]["shared"]["0"] != share:
            found.append("resumed at other weights than were saved")
    before, after = program.losses(ran.output), program.losses(again.output)
    if not before[-1] < FALLEN * before[0]:
        found.append(f"the loss did not fall: {before}")
    if not after[-1] < FALLEN * before[0]:
        found.append(f"resumed: the loss is {after}, and was {before}")
    print(f"{program.name}, {settings}: {'FAILED' if found else 'passed'}")
    for kind, each, losses in (("from scratch", ran, before), ("resumed", again, after)):
        print(f"  {kind}: {each.seconds:.0f} s, losses {losses}, {ways(each.reports)}")
    for fault in found:
        print(f"  {fault}")
    sys.stdout.flush()
    return found


def ways(reports: Sequence[Mapping[str, Any]]) -> str:
    """Return in words how steps were run."""
    first = reports[0]
    apart = [at for at in first["own"] if len({report["own"][at] for report in reports}) > 1]
    changes = ", ".join(f"{after} from step {step}" for step, _, after in first["changes"])
    at_end = f"ends {first['mode']}, every {first['every']}"
    sent = f"{first['sent_bytes'] / 1e6:.1f} MB sent by gravac"
    return f"{changes or 'no change of mode'}; {at_end}; own weights differ at {', '.join(apart) or 'no step'}; {sent}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, help="a folder with clones of karpathy/nanoGPT and pytorch/examples")
    parser.add_argument("--program", choices=[program.name for program in PROGRAMS], help="only this one")
    parser.add_argument(
        "--settings", nargs="+", default=SETTINGS, help="settings of AdaptiveCompressor, as Python text"
    )
    options = parser.parse_args()
    wrong = 0
    for program in PROGRAMS:
        if options.program in (None, program.name):
            for settings in options.settings:
                try:
                    wrong += bool(check(program, options.sources.resolve(), settings))
                except SettingsError as error:
                    print(error)
                    return 2
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
