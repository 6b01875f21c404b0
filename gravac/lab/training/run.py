# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a session from the parent process: starts a worker process per rank, reads rank 0's events, ends all workers.

In a session, the same worker processes train one or more legs, one after another. A *leg* is the training of a fresh
model with one method of exchanging gradients.
"""

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

from gravac.lab.links.network import CONTROL_INTERFACE, INTERFACE, EmulatedNetwork
from gravac.lab.links.owner import is_orphaned, owner_mark
from gravac.lab.links.schedule import Schedule
from gravac.lab.mesh import Mesh
from gravac.lab.training.session import Leg, SessionSpec

STUCK_AFTER_S = 120.0
"""Seconds without an event from rank 0 after which a session counts as stuck, and its workers are killed.

On a link of limited rate, the time of ``10 x workers`` steps with dense exchange is added.
"""

POLL_SECONDS = 0.1
"""Seconds from one check of the worker processes and of rank 0's events to the next."""

TERMINATING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a user or the system sends to end the ``gravac`` command."""

MALLOC_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Environment variables of workers, by which glibc keeps freed memory; the user's own values take precedence.

By default, glibc may return memory to the operating system in every step, which costs up to 15 % of a step's time.
Whether glibc does so depends on the heap's layout, which differs by chance from run to run.
"""

Event = dict[str, Any]
"""Event that rank 0 wrote as a line of JSON: kind (``event``), index of the leg (``leg``), and further fields."""


class RunFailed(RuntimeError):
    """A worker process failed, was killed, or got stuck; the message contains the end of the worker's output."""


@dataclass(frozen=True)
class TrainingSettings:
    """Settings that are the same in all training runs that are compared with each other.

    Attributes:
        workers: number of worker processes, one per rank, 2 to 8.
        link: the link between workers as text, such as ``"100mbit"``, for logs and messages.
        lowest_rate_bps: lowest rate that the link has at any time, in bits per second; ``None``: not limited.
        task: name of a reference task (model, data, optimizer and metric), see ``gravac.lab.tasks``.
        scale: scale of the task's model, about proportional to its number of parameters; 1 suits two cores.
        data: folder of the task's data; empty if the task needs no folder.
        seed: seed of initial weights and batches.
        log_dir: folder of TensorBoard logs, with a subfolder for each leg, named by the leg's label; ``None``: no logs.
        mesh: mesh on which a model in shards trains; ``None``: DDP, without shards.
    """

    workers: int
    link: str
    lowest_rate_bps: float | None
    task: str = "charlm"
    scale: float = 1.0
    data: str = ""
    seed: int = 0
    log_dir: Path | None = None
    mesh: Mesh | None = None


class TrainingRun:
    """A session, in which the same worker processes train one or more legs, one after another.

    A leg trains a fresh model with one method of exchanging gradients. The object is a context manager: entering the
    ``with`` block starts the workers. Leaving the block kills the workers that still run, and removes temporary files.

    Args:
        legs: legs to train, in order.
        settings: settings that all compared runs share.
        network: emulated links, one for each worker; on a mesh, one for each replica, whose workers share the link.
            ``None``: the workers communicate over loopback, and gravac limits its exchange to
            ``settings.lowest_rate_bps``.
    """

    def __init__(self, legs: Sequence[Leg], settings: TrainingSettings, network: EmulatedNetwork | None) -> None:
        self._legs = tuple(legs)
        self._settings = settings
        self._network = network
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()
        self._leg_index = 0
        self._stuck_after_s = STUCK_AFTER_S
        self._schedule: Schedule | None = None

    def __enter__(self) -> TrainingRun:
        _remove_leftovers()
        with ExitStack() as stack:
            self._session_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{owner_mark()}-run-")))
            if self._network:
                self._schedule = stack.enter_context(Schedule(self._network))
            stack.callback(self._kill_workers)
            self._start_workers()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, in the order of their ranks."""
        return [worker.pid for worker in self._workers]

    def events(self) -> Iterator[Event]:
        """Yield each event of rank 0 as soon as it is written; return when all workers have ended.

        Each leg has one event ``start``, then events ``step`` and ``evaluation``, and then one event ``end``.

        Raises:
            RunFailed: a worker failed, or rank 0 wrote no event for too long. All workers have then been killed.
        """
        latest_event_time = time.monotonic()
        ended_leg_count = 0
        events_path = self._session_folder / "events.jsonl"
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
                        self._note_event(event)
                        ended_leg_count += event["event"] == "end"
                        yield event
                if all_ended and ended_leg_count == len(self._legs):
                    return
                self._raise_if_failed(all_ended, time.monotonic() - latest_event_time > self._stuck_after_s)
                time.sleep(POLL_SECONDS)

    def _start_workers(self) -> None:
        """Start a worker process for each rank, and append the processes to ``self._workers``."""
        settings, network = self._settings, self._network
        spec = SessionSpec(
            task=settings.task,
            scale=settings.scale,
            seed=settings.seed,
            data=settings.data,
            workers=settings.workers,
            session_folder=str(self._session_folder),
            log_dir=str(settings.log_dir) if settings.log_dir is not None else None,
            counted_interface=INTERFACE if network else None,
            command_interface=CONTROL_INTERFACE if network else None,
            paced_bps=None if network else settings.lowest_rate_bps,
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
            link_number = rank if settings.mesh is None else settings.mesh.replica_of(rank)
            with open(self._session_folder / f"rank{rank}.log", "wb") as log_file, _defer_signals():
                self._workers.append(
                    subprocess.Popen(
                        [*(network.prefix(link_number) if network else []), *command],
                        stdin=subprocess.PIPE,  # never written to; the worker ends when the pipe closes
                        stdout=log_file,
                        stderr=log_file,
                        env=environment,
                        start_new_session=True,  # Ctrl-C reaches only the parent, which then kills the workers
                    )
                )

    def _note_event(self, event: Event) -> None:
        """Remember which leg an event belongs to, for error messages.

        The event ``start`` of a leg also starts the schedule of the link's rates, if the link has one. It also sets the
        number of seconds without an event after which the session counts as stuck.
        """
        self._leg_index = event["leg"]
        if event["event"] != "start":
            return
        if self._schedule:
            self._schedule.follow()
        if self._settings.lowest_rate_bps is not None:
            dense_exchange_s = 2 * 32 * event["parameters"] / self._settings.lowest_rate_bps
            self._stuck_after_s = STUCK_AFTER_S + 10 * self._settings.workers * dense_exchange_s

    def _raise_if_failed(self, all_ended: bool, stuck: bool) -> None:
        """Kill all workers and raise ``RunFailed`` if the session cannot continue; otherwise do nothing.

        Args:
            all_ended: whether all workers have ended with status 0, before rank 0 reported the end of the last leg.
            stuck: whether rank 0 has written no event for too long.
        """
        failed_statuses = {rank: status for rank, worker in enumerate(self._workers) if (status := worker.poll())}
        if failed_statuses:
            # if a worker was killed (status below 0), report that one: the others failed because of the kill
            rank = min(failed_statuses, key=lambda rank: failed_statuses[rank] > 0)
            status = failed_statuses[rank]
            raise self._kill_and_describe(
                rank, f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            )
        if all_ended:
            raise self._kill_and_describe(0, "ended without a result")
        if stuck:
            raise self._kill_and_describe(
                0, f"has reported nothing for {self._stuck_after_s:.0f} s; use a faster link or fewer workers"
            )

    def _kill_and_describe(self, rank: int, failure: str) -> RunFailed:
        """Kill all workers; return an error for the caller to raise, with the end of a worker's output.

        Args:
            rank: rank of the worker to blame. If this worker printed nothing, the error has another worker's output.
            failure: what happened to the worker, such as ``"ended without a result"``.
        """
        self._kill_workers()
        rank_outputs = [
            (self._session_folder / f"rank{output_rank}.log").read_text(errors="replace").strip()
            for output_rank in range(len(self._workers))
        ]
        ranks_with_output = [
            output_rank for output_rank in (rank, *range(len(rank_outputs))) if rank_outputs[output_rank]
        ]
        label = self._legs[self._leg_index].label
        if not ranks_with_output:
            return RunFailed(f"{label}: worker {rank} {failure}. No worker printed anything.")
        output = rank_outputs[ranks_with_output[0]]
        return RunFailed(
            f"{label}: worker {rank} {failure}. End of worker {ranks_with_output[0]}'s output:\n{output[-2000:]}"
        )

    def _kill_workers(self) -> None:
        """Kill all workers and the processes that the workers started; wait until all workers have ended."""
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
    """Return a context in which ``TERMINATING_SIGNALS`` wait; the first signal received is raised on exit.

    So a signal cannot interrupt the start of a worker process before the caller knows the process and can kill it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread handles signals
        return
    received_signals: list[int] = []
    handled_signals = [
        signal_number for signal_number in TERMINATING_SIGNALS if signal.getsignal(signal_number) is not signal.SIG_IGN
    ]
    previous_handlers = {
        signal_number: signal.signal(signal_number, lambda signal_number, _: received_signals.append(signal_number))
        for signal_number in handled_signals
    }
    try:
        yield
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, signal.SIG_DFL if handler is None else handler)
        if received_signals:
            signal.raise_signal(received_signals[0])


def _remove_leftovers() -> None:
    """Remove the temporary folders of earlier sessions whose parent process was killed."""
    for session_folder in Path(tempfile.gettempdir()).glob("gravac-*-run-*"):
        if is_orphaned(session_folder.name):
            shutil.rmtree(session_folder, ignore_errors=True)
