# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the workers of a session from the parent process: starts them, reads their events, and ends all of them."""

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
"""Seconds without events after which a session counts as stuck, plus the time of ten dense steps on its link."""

POLL_SECONDS = 0.1

TERMINATING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Variables of the environment by which glibc keeps freed memory. By default, glibc may return memory to the system and
ask for it again in every step, which takes up to 15 % of a step. Whether glibc does so depends on the heap's layout, by
chance, and differs between runs. Variables that the user has set take precedence."""

Event = dict[str, Any]
"""Event that rank 0 reported, from one line of JSON."""


class RunFailed(RuntimeError):
    """A worker ended with an error, was killed, or got stuck; the message has the end of the worker's output."""


@dataclass(frozen=True)
class TrainingSettings:
    """The settings that runs of one comparison share.

    Attributes:
        workers: number of workers, 2 to 8.
        link: the link as text, for logs and messages.
        slowest: lowest rate of the link, bits per second; ``None``: not limited.
        task: name of a reference task.
        scale: scale of the task.
        data: folder of the task's data, for tasks that need a folder.
        seed: seed of weights and batches.
        log_dir: folder of TensorBoard logs, with a subfolder for each leg's label; ``None``: no logs.
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
    """A session of one or more legs; a context manager that ends all processes and removes all temporary files.

    Args:
        legs: legs to train, in order.
        settings: settings that the compared runs share.
        network: the workers' links; ``None``: paced, over the machine's loopback interface.
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

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, by rank."""
        return [worker.pid for worker in self._workers]

    def events(self) -> Iterator[Event]:
        """Yield rank 0's events (``start``, ``step``, ``evaluation``, ``end``) until all workers ended.

        Each event has the index of its leg.

        Raises:
            RunFailed: a worker failed or got stuck; all workers were killed.
        """
        latest_event_time = time.monotonic()
        ended_legs = 0
        path = self._folder / "events.jsonl"
        path.touch()
        with path.open() as lines:
            incomplete = ""
            while True:
                all_ended = all(worker.poll() == 0 for worker in self._workers)
                while chunk := lines.readline():
                    incomplete += chunk
                    if incomplete.endswith("\n"):
                        event = json.loads(incomplete)
                        incomplete, latest_event_time = "", time.monotonic()
                        self._note(event)
                        ended_legs += event["event"] == "end"
                        yield event
                if all_ended and ended_legs == len(self._legs):
                    return
                self._check(all_ended, time.monotonic() - latest_event_time > self._patience)
                time.sleep(POLL_SECONDS)

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
            with open(self._folder / f"rank{rank}.log", "wb") as log, _deferred_signals():
                self._workers.append(
                    subprocess.Popen(
                        [*(network.prefix(rank) if network else []), *command],
                        stdin=subprocess.PIPE,  # never written to: its end tells the worker that the parent ended
                        stdout=log,
                        stderr=log,
                        env=environment,
                        start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the workers
                    )
                )

    def _note(self, event: Event) -> None:
        """Note the event's leg; at a leg's start, start the link's schedule and set the patience."""
        self._leg = event["leg"]
        if event["event"] != "start":
            return
        if self._schedule:
            self._schedule.follow()
        if self._settings.slowest is not None:
            dense_step = 2 * 32 * event["parameters"] / self._settings.slowest
            self._patience = PATIENCE + 10 * self._settings.workers * dense_step

    def _check(self, all_ended: bool, stuck: bool) -> None:
        """Raise ``RunFailed`` if a worker failed, if all ended too early, or if they are stuck."""
        statuses = {rank: status for rank, worker in enumerate(self._workers) if (status := worker.poll())}
        if statuses:
            rank = min(statuses, key=lambda rank: statuses[rank] > 0)  # the other workers fail after a killed worker
            status = statuses[rank]
            raise self._failure(
                rank, f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            )
        if all_ended:
            raise self._failure(0, "ended without a result")
        if stuck:
            raise self._failure(0, "has not reported for too long; try a higher --rate or fewer --workers")

    def _failure(self, rank: int, reason: str) -> RunFailed:
        """Kill all workers, and return the error with the output of a rank, or of any rank that printed anything."""
        self._kill()
        logs = [
            (self._folder / f"rank{number}.log").read_text(errors="replace").strip()
            for number in range(len(self._workers))
        ]
        message = logs[rank] or next((log for log in logs if log), "(it said nothing)")
        label = self._legs[self._leg].label
        return RunFailed(f"{label}: worker {rank} {reason}. Its last words:\n{message[-2000:]}")

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
def _deferred_signals() -> Iterator[None]:
    """Defer the signals that end a command to the end of a block, so that each started process is known by then."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread handles signals
        return
    received: list[int] = []
    numbers = [number for number in TERMINATING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if received:
            signal.raise_signal(received[0])


def _remove_leftovers() -> None:
    """Remove the temporary folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob("gravac-*-run-*"):
        if orphaned(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
