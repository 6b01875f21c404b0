# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a session from the parent process: starts worker processes, reads rank 0's events, and ends all workers."""

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
from gravac.lab.links.owner import is_orphaned, owner_mark
from gravac.lab.links.schedule import Schedule
from gravac.lab.mesh import Mesh
from gravac.lab.training.session import Leg, SessionSpec

PATIENCE_S = 120.0
"""Seconds without an event after which a session is stuck; on a limited link, ``10 x workers`` dense steps more."""

POLL_SECONDS = 0.1
"""Seconds between two polls of the workers and of rank 0's events."""

TERMINATING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command."""

MALLOC_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment variables of workers, by which glibc keeps freed memory. Variables that the user has set prevail.

By default, glibc may return memory to the operating system in every step, which costs up to 15 % of a step's time.
Whether glibc does so depends on the heap's layout, which differs between runs by chance.
"""

Event = dict[str, Any]
"""Event that rank 0 reported as one line of JSON: kind (``event``), index of the leg (``leg``), and further fields."""


class RunFailed(RuntimeError):
    """A worker failed, was killed, or got stuck. The message has the end of the worker's output."""


@dataclass(frozen=True)
class TrainingSettings:
    """Settings that all runs of a comparison share.

    Attributes:
        workers: number of workers, 2 to 8.
        link: the link between workers as text, for logs and messages.
        slowest: lowest rate of the link at any time, in bits per second; ``None``: not limited.
        task: name of a reference task.
        scale: scale of the task's model; 1 suits two cores.
        data: folder of the task's data, for tasks that need a folder.
        seed: seed of initial weights and batches.
        log_dir: folder of TensorBoard logs, with a subfolder for each leg's label; ``None``: no logs.
        mesh: mesh on which a model in shards trains; ``None``: DDP, without shards.
    """

    workers: int
    link: str
    slowest: float | None
    task: str = "charlm"
    scale: float = 1.0
    data: str = ""
    seed: int = 0
    log_dir: Path | None = None
    mesh: Mesh | None = None


class TrainingRun:
    """A session, in which worker processes train one or more legs; a leg trains a fresh model with one method.

    Use as a context manager: the workers start at the beginning of the block. The end of the block kills the workers
    that still run, and removes temporary files.

    Args:
        legs: legs to train, in order.
        settings: settings that the compared runs share.
        network: emulated links of the workers; on a mesh, of the replicas, whose workers share a link. ``None``: the
            workers communicate over loopback, and gravac limits its exchange to the lowest rate in ``settings``.
    """

    def __init__(self, legs: Sequence[Leg], settings: TrainingSettings, network: EmulatedNetwork | None) -> None:
        self._legs = tuple(legs)
        self._settings = settings
        self._network = network
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()
        self._leg_index = 0
        self._patience_s = PATIENCE_S
        self._schedule: Schedule | None = None

    def __enter__(self) -> TrainingRun:
        _remove_leftovers()
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{owner_mark()}-run-")))
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
        """Process ids of the workers, in the order of ranks."""
        return [worker.pid for worker in self._workers]

    def events(self) -> Iterator[Event]:
        """Yield rank 0's events until all workers have ended; wait for each event.

        A leg has an event ``start``, then ``step`` and ``evaluation`` events, and an event ``end``.

        Raises:
            RunFailed: a worker failed, or the session got stuck; all workers were killed.
        """
        latest_event_time = time.monotonic()
        ended_legs = 0
        events_path = self._folder / "events.jsonl"
        events_path.touch()
        with events_path.open() as events_file:
            partial_line = ""
            while True:
                all_ended = all(worker.poll() == 0 for worker in self._workers)
                while chunk := events_file.readline():
                    partial_line += chunk
                    if partial_line.endswith("\n"):
                        event = json.loads(partial_line)
                        partial_line, latest_event_time = "", time.monotonic()
                        self._follow_event(event)
                        ended_legs += event["event"] == "end"
                        yield event
                if all_ended and ended_legs == len(self._legs):
                    return
                self._raise_if_failed(all_ended, time.monotonic() - latest_event_time > self._patience_s)
                time.sleep(POLL_SECONDS)

    def _start(self) -> None:
        """Start a worker process for each rank."""
        settings, network = self._settings, self._network
        spec = SessionSpec(
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
            mesh=None if settings.mesh is None else str(settings.mesh),
        )
        environment = {
            **MALLOC_ENVIRONMENT,
            **os.environ,
            "GLOO_SOCKET_IFNAME": INTERFACE if network else "lo",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(settings.workers):
            command = [sys.executable, "-m", "gravac.lab.training.worker", spec.to_json(), str(rank)]
            host = rank if settings.mesh is None else settings.mesh.replica_of(rank)
            with open(self._folder / f"rank{rank}.log", "wb") as log, _defer_signals():
                self._workers.append(
                    subprocess.Popen(
                        [*(network.prefix(host) if network else []), *command],
                        stdin=subprocess.PIPE,  # never written to; a worker reads its end when the parent ends
                        stdout=log,
                        stderr=log,
                        env=environment,
                        start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the workers
                    )
                )

    def _follow_event(self, event: Event) -> None:
        """Note the leg of an event; at a leg's start, start the changes of the link and set the time limit."""
        self._leg_index = event["leg"]
        if event["event"] != "start":
            return
        if self._schedule:
            self._schedule.follow()
        if self._settings.slowest is not None:
            dense_step_s = 2 * 32 * event["parameters"] / self._settings.slowest
            self._patience_s = PATIENCE_S + 10 * self._settings.workers * dense_step_s

    def _raise_if_failed(self, all_ended: bool, stuck: bool) -> None:
        """Raise ``RunFailed`` if a worker failed, if all workers ended before the last leg did, or if ``stuck``."""
        failed_statuses = {rank: status for rank, worker in enumerate(self._workers) if (status := worker.poll())}
        if failed_statuses:
            # report a killed worker (status below 0) first: the other workers fail because of the kill
            rank = min(failed_statuses, key=lambda rank: failed_statuses[rank] > 0)
            status = failed_statuses[rank]
            raise self._kill_and_describe(
                rank, f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            )
        if all_ended:
            raise self._kill_and_describe(0, "ended without a result")
        if stuck:
            raise self._kill_and_describe(
                0, f"has reported nothing for {self._patience_s:.0f} s; use a faster link or fewer workers"
            )

    def _kill_and_describe(self, rank: int, reason: str) -> RunFailed:
        """Kill all workers; return the error to raise, with the output of a rank.

        If the rank printed nothing, the error has the output of another rank.
        """
        self._kill()
        rank_outputs = [
            (self._folder / f"rank{number}.log").read_text(errors="replace").strip()
            for number in range(len(self._workers))
        ]
        output = rank_outputs[rank] or next((text for text in rank_outputs if text), "(no output)")
        label = self._legs[self._leg_index].label
        return RunFailed(f"{label}: worker {rank} {reason}. End of its output:\n{output[-2000:]}")

    def _kill(self) -> None:
        """Kill all workers with the processes that they started, and wait until the workers have ended."""
        for worker in self._workers:
            if worker.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
        for worker in self._workers:
            worker.wait(timeout=30)
            if worker.stdin:
                worker.stdin.close()


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer ``TERMINATING_SIGNALS`` to the end of a block, so that a process started in the block can be ended."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread handles signals
        return
    received_signals: list[int] = []
    handled_signals = [number for number in TERMINATING_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {
        number: signal.signal(number, lambda number, _: received_signals.append(number)) for number in handled_signals
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if received_signals:
            signal.raise_signal(received_signals[0])


def _remove_leftovers() -> None:
    """Remove the temporary folders of earlier sessions whose parent process was killed."""
    for folder in Path(tempfile.gettempdir()).glob("gravac-*-run-*"):
        if is_orphaned(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
