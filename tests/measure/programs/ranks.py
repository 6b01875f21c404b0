# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs of a race as commands of their ranks, and the run of a command on hosts with emulated links."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from gravac.lab.links.network import INTERFACE, EmulatedNetwork
from gravac.lab.links.schedule import Schedule
from tests.measure.programs import PROGRAMS, nanogpt, with_mingpt
from tests.measure.programs.methods import BEGINS, RANKS, REPORT

SEEN = re.compile(
    r"^step (\d+): train loss (?:[\d.]+|nan|inf), val loss (-?[\d.]+|nan|inf), seconds ([\d.]+)", re.MULTILINE
)

SILENCE = 900.0
"""Seconds of silence after which a run is ended as a failure."""

Curve = Sequence[Sequence[float]]
"""Steps, loss and seconds of training, of each evaluation."""


class RunFailed(RuntimeError):
    """The program failed. The message has the end of what it said."""


class Program(ABC):
    """A program whose ranks are started by a command.

    Attributes:
        name: name in the record and the table.
    """

    name: str

    @abstractmethod
    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """Write what the program needs into a folder; return the command that runs one rank.

        Args:
            folder: empty folder, in which the command will run.
            method: one of ``METHODS``.
            seed: of weights and batches.
            steps: number of steps in which the learning rate falls.
            total: number of steps that are made.
            evaluations: number of evaluations after the first one, before any step.
        """


@dataclass(frozen=True)
class NanoGPT(Program):
    """nanoGPT's ``train.py`` with the edits of ``tests.measure.programs.nanogpt``.

    Attributes:
        clone: folder of the clone.
        width: width of the embedding.
        rate: learning rate.
    """

    clone: Path
    width: int = 208
    rate: float = 1e-3

    @property
    def name(self) -> str:  # type: ignore[override]
        """Width and learning rate."""
        return f"nanogpt, width {self.width}, rate {self.rate:g}"

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        text = (self.clone / "train.py").read_text(encoding="utf-8")
        (folder / "train.py").write_text(nanogpt.patched(text, nanogpt.edits(method, seed)), encoding="utf-8")
        for other in ("model.py", "configurator.py"):
            shutil.copy(self.clone / other, folder)
        nanogpt.write_characters(folder / "data" / "library")
        arguments = nanogpt.arguments(self.width, self.rate, steps, total, evaluations)
        return [sys.executable, "train.py", *arguments]


@dataclass(frozen=True)
class TaskProgram(Program):
    """A program of ``tests.measure.programs`` in a plain training loop, at the middle of its learning rates.

    Attributes:
        name: its name there.
    """

    name: str

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        rates = PROGRAMS[self.name].rates
        numbers = (seed, rates[len(rates) // 2], steps, total, evaluations)
        module = "tests.measure.programs.train_task"
        return [sys.executable, "-m", module, self.name, method, *map(str, numbers)]


@dataclass(frozen=True)
class MinGPT(Program):
    """minGPT-ddp of pytorch/examples, at a constant learning rate as in the program.

    Attributes:
        clone: folder of the clone of pytorch/examples.
        rate: learning rate.
    """

    clone: Path
    rate: float = 1e-3
    name: ClassVar[str] = "mingpt"

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        with_mingpt.write(self.clone, folder)
        numbers = (seed, self.rate, steps, total, evaluations)
        return [sys.executable, "-m", with_mingpt.__name__, method, *map(str, numbers)]


def trained(
    folder: Path,
    command: Sequence[str],
    network: EmulatedNetwork,
    environment: Mapping[str, str],
    given_up: Callable[[], bool],
) -> str:
    """Run a program on all ranks, with one thread each; return what rank 0 printed.

    The link follows its schedule from the program's line ``BEGINS`` on.

    Args:
        folder: folder that it runs in; the ranks meet by a file there.
        command: the program and its arguments.
        network: hosts of the ranks.
        environment: more environment variables of the program.
        given_up: function without arguments that returns True if the program is to end now.

    Raises:
        RunFailed: it failed, said nothing for ``SILENCE`` seconds, or was given up.
    """
    paths = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE, "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": str(RANKS), "MEET": f"file://{folder}/store", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1",
        **environment,
    }  # fmt: skip
    ranks: list[subprocess.Popen[bytes]] = []
    outputs = [folder / f"rank{rank}.log" for rank in range(RANKS)]
    with Schedule(network) as schedule:
        try:
            for rank, path in enumerate(outputs):
                with path.open("wb") as said:
                    ranks.append(
                        subprocess.Popen(
                            [*network.prefix(rank), *command],
                            cwd=folder,
                            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                            stdout=said,
                            stderr=said,
                            start_new_session=True,
                        )
                    )
            _wait(ranks, outputs[0], schedule, given_up)
        finally:
            for process in ranks:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    texts = [path.read_text(errors="replace") for path in outputs]
    if any(process.returncode for process in ranks):
        codes = [process.returncode for process in ranks]
        ends = " | ".join(text[-2000:] for text in texts)
        raise RunFailed(f"the ranks ended with exit statuses {codes}; ends of their outputs: {ends}")
    return texts[0]


def _wait(
    ranks: Sequence["subprocess.Popen[bytes]"], output: Path, schedule: Schedule, given_up: Callable[[], bool]
) -> None:
    """Wait until all ranks have ended, one has failed, or nothing was said for long; follow the link's schedule."""
    news, length = time.monotonic(), 0
    while any(process.poll() is None for process in ranks):
        size = output.stat().st_size
        if size != length:
            news, length = time.monotonic(), size
            if BEGINS in output.read_text(errors="replace"):
                schedule.follow()
        if time.monotonic() - news > SILENCE:
            end = output.read_text(errors="replace")[-2000:]
            raise RunFailed(f"the program printed nothing for {SILENCE:g} s; end of its output: {end}")
        if given_up():
            raise RunFailed("ended: another run that took turns with it failed, or the measurement was stopped")
        if any(process.poll() for process in ranks):
            return
        time.sleep(0.05)


def curve_and_report(output: str, total: int, name: str) -> tuple[list[tuple[int, float, float]], dict[str, Any]]:
    """Return the steps, loss and seconds of each evaluation that a program printed, and the report of gravac if any.

    Args:
        output: what rank 0 printed.
        total: number of steps that the program was to make.
        name: name of the run, for the error.

    Raises:
        RunFailed: the program did not evaluate after its last step.
    """
    curve = [(int(step), float(loss), float(seconds)) for step, loss, seconds in SEEN.findall(output)]
    if not curve or curve[-1][0] != total:
        raise RunFailed(f"{name}: no evaluation after step {total}; end of the output: {output[-4000:]}")
    reports = [line.removeprefix(REPORT) for line in output.splitlines() if line.startswith(REPORT)]
    return curve, json.loads(reports[0]) if reports else {}
