# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""All ranks of one session, seen from the parent: start the processes, follow them, leave none behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gravac.lab.links.network import CONTROL, INTERFACE, EmulatedNetwork
from gravac.lab.links.owner import mark, orphaned
from gravac.lab.links.schedule import Schedule
from gravac.lab.training.session import Leg, Spec

PATIENCE = 120.0
"""Seconds without news after which a session counts as stuck, besides the time its link needs for ten dense steps."""

POLL = 0.1

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command."""

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment that has glibc keep what is freed. By default it returns memory to the system and asks for it again every
step, or does not, as the heap happens to lie: up to 15 % of a step, by chance, in one run and not in the next. The
user's own environment comes first."""

Event = dict[str, Any]


class RunFailed(RuntimeError):
    """A worker ended with an error, was killed, or the run got stuck. The message has the worker's last words."""


@dataclass(frozen=True)
class TrainingSettings:
    """The settings that runs of one comparison share.

    Attributes:
        workers: number of workers, 2 to 8.
        link: link in words, for logs and messages.
        slowest: lowest rate of the link, bits per second; ``None`` is not limited.
        task: name of a reference task.
        scale: scale of the task.
        data: folder of its data, for tasks that bring none.
        seed: seed of weights and batches.
        log_dir: folder of TensorBoard logs, with one for each leg's label; ``None`` writes none.
    """

    workers: int
    link: str
    slowest: float | None
    task: str = "charlm"
    scale: float = 1.0
    data: str = ""
    seed: int = 0
    log_dir: Path | None = None


class TrainingRun:
    """One session, of one or more legs; a context manager that leaves no process and no temporary file.

    Args:
        legs: legs to train, in order.
        settings: settings shared with the other runs.
        network: the workers' links; ``None`` is paced mode on the machine's loopback.
    """

    def __init__(self, legs: Sequence[Leg], settings: TrainingSettings, network: EmulatedNetwork | None) -> None:
        self._legs = tuple(legs)
        self._settings = settings
        self._network = network
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()
        self._leg = 0
        self._patience = PATIENCE
        self._schedule: Schedule | None = None

    def __enter__(self) -> TrainingRun:
        _remove_leftovers()
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{mark()}-run-")))
            if self._network:
                self._schedule = stack.enter_context(Schedule(self._network))
            stack.callback(self._kill)
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """The workers' processes, by rank."""
        return [worker.pid for worker in self._workers]

    def events(self) -> Iterator[Event]:
        """Yield what rank 0 reports (``start``, ``step``, ``evaluation``, ``end``) until all workers ended.

        Each has the index of its leg.

        Raises:
            RunFailed: see there; all workers have been killed by then.
        """
        news = time.monotonic()
        ended = 0
        path = self._folder / "events.jsonl"
        path.touch()
        with path.open() as lines:
            pending = ""
            while True:
                over = all(worker.poll() == 0 for worker in self._workers)
                while chunk := lines.readline():
                    pending += chunk
                    if pending.endswith("\n"):
                        event = json.loads(pending)
                        pending, news = "", time.monotonic()
                        self._note(event)
                        ended += event["event"] == "end"
                        yield event
                if over and ended == len(self._legs):
                    return
                self._check(over, time.monotonic() - news > self._patience)
                time.sleep(POLL)

    def _start(self) -> None:
        settings, network = self._settings, self._network
        spec = Spec(
            task=settings.task,
            scale=settings.scale,
            seed=settings.seed,
            data=settings.data,
            workers=settings.workers,
            folder=str(self._folder),
            log_dir=str(settings.log_dir) if settings.log_dir is not None else None,
            interface=INTERFACE if network else None,
            control=CONTROL if network else None,
            pace=None if network else settings.slowest,
            link=settings.link,
            legs=self._legs,
        )
        environment = {
            **MALLOC,
            **os.environ,
            "GLOO_SOCKET_IFNAME": INTERFACE if network else "lo",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(settings.workers):
            command = [sys.executable, "-m", "gravac.lab.training.worker", spec.to_json(), str(rank)]
            with open(self._folder / f"rank{rank}.log", "wb") as log, _signals_wait():
                self._workers.append(
                    subprocess.Popen(
                        [*(network.prefix(rank) if network else []), *command],
                        stdin=subprocess.PIPE,  # never written to: its end tells the worker that we are gone
                        stdout=log,
                        stderr=log,
                        env=environment,
                        start_new_session=True,  # Ctrl-C reaches us alone, and we end them
                    )
                )

    def _note(self, event: Event) -> None:
        self._leg = event["leg"]
        if event["event"] != "start":
            return
        if self._schedule:
            self._schedule.follow()
        if self._settings.slowest is not None:
            dense_step = 2 * 32 * event["parameters"] / self._settings.slowest
            self._patience = PATIENCE + 10 * self._settings.workers * dense_step

    def _check(self, over: bool, stuck: bool) -> None:
        codes = {rank: code for rank, worker in enumerate(self._workers) if (code := worker.poll())}
        if codes:
            rank = min(codes, key=lambda rank: codes[rank] > 0)  # a killed one takes the others with it
            code = codes[rank]
            raise self._failed(rank, f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}")
        if over:
            raise self._failed(0, "ended without a result")
        if stuck:
            raise self._failed(0, "has not reported for too long; try a higher --rate or fewer --workers")

    def _failed(self, rank: int, how: str) -> RunFailed:
        self._kill()
        words = [(self._folder / f"rank{r}.log").read_text(errors="replace").strip() for r in range(len(self._workers))]
        message = words[rank] or next((text for text in words if text), "(it said nothing)")
        label = self._legs[self._leg].label
        return RunFailed(f"{label}: worker {rank} {how}. Its last words:\n{message[-2000:]}")

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
        for worker in self._workers:
            worker.wait(timeout=30)
            if worker.stdin:
                worker.stdin.close()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Have the signals that end a command wait for the block's end: a process that was started is known by then."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled elsewhere
        return
    came: list[int] = []
    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda number, _: came.append(number)) for number in heeded}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


def _remove_leftovers() -> None:
    """Remove the temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("gravac-*-run-*"):
        if orphaned(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
