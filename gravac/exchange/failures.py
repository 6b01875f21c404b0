# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tells all ranks why a rank failed, through keys in the store (``torch.distributed.Store``) of the process groups.

1. Each process group has a key. The first rank that fails writes its number and its error under the keys of its groups.
   Ranks that fail later do not overwrite the key.
2. A rank that waits for a collective reads the keys only after ``LOOK_SECONDS``, or when the collective has failed.
   Without failures and stalls, no rank reads the store, so collectives do not become slower.
3. A rank that has read the error adds 1 to a counter in the store. The failed rank waits, for at most
   ``LINGER_SECONDS``, until the other ranks have read the error; so does rank 0, whose process may run the store's
   server.

The store may be gone together with the rank that failed, and a call of a store that does not answer may never return.
Each call therefore runs on a daemon thread of its own, for which a caller waits for at most ``STORE_SECONDS``. So does
the process when it exits: a call that returned after the interpreter has begun to shut down would abort the process.
"""

import atexit
import contextlib
import json
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10 has two classes of this name
from typing import Any, NamedTuple

import torch.distributed as dist

LOOK_SECONDS = 1.0
"""Interval, in seconds, at which a waiting rank checks whether another rank failed."""

STORE_SECONDS = 2.0
"""Longest time, in seconds, for which a rank that failed waits for the store."""

LINGER_SECONDS = 5.0
"""Longest time, in seconds, for which a failed rank waits before it exits, so that other ranks can read its error."""

_store_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
"""Threads that call the store, those that have ended included, until they are collected."""

_failures_created: Counter[tuple[str, int]] = Counter()
"""Number of ``Failures`` objects created so far with a group, by the group's name and this process's rank in the group.

The number is a part of a group's key in the store. It must be the same on all ranks of the group."""


class ExchangeError(RuntimeError):
    """A collective failed, or another rank failed, or a rank did not answer within the process group's timeout.

    The message names the training step and the exchanged tensors, and the rank that failed and its error, as far as
    known. If torch raised an error, that error is the ``__cause__``. Nothing is exchanged in later steps.
    """


class _Report(NamedTuple):
    """What a rank wrote under a group's key.

    Attributes:
        rank: number of the rank in the group.
        world: number of ranks in the group.
        error: class and message of the rank's error.
        no_answer: whether the rank failed only because another rank did not answer.
    """

    rank: int
    world: int
    error: str
    no_answer: bool


class Failures:
    """Tells the other ranks of process groups that this rank failed, and reads whether one of them failed.

    No method raises an exception, and no method calls the store on the caller's thread.

    Args:
        groups: process groups that this rank exchanges over, each listed once. All ranks of a group must create the
            same number of ``Failures`` objects with this group.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._group_keys: list[tuple[str, int, int]] = []
        for group in groups:
            name, rank = group.group_name, dist.get_rank(group)
            _failures_created[name, rank] += 1
            self._group_keys.append(
                (f"gravac/failed/{name}/{_failures_created[name, rank]}", rank, dist.get_world_size(group))
            )
        self._store: Any = dist.distributed_c10d._get_default_store() if self._group_keys else None
        self._may_host_store = bool(self._group_keys) and dist.get_rank() == 0
        self._reading: Future[list[_Report] | None] | None = None
        self._reading_since_s = 0.0
        # keys of errors that other ranks have yet to read, each with its group's number of ranks
        self._unread_keys: list[tuple[str, int]] = []
        self._keys_read: set[str] = set()

    def report(self, failure: BaseException, no_answer: bool) -> None:
        """Tell the other ranks that this rank failed, and why, unless another rank failed first.

        Args:
            failure: this rank's error.
            no_answer: whether this rank failed only because another rank did not answer.
        """
        error = f"{type(failure).__name__}: {failure}"
        lingers = not isinstance(failure, ExchangeError)

        def write() -> None:
            for key, rank, world in self._group_keys:
                if self._store.add(key + "/count", 1) == 1:
                    self._store.set(key, json.dumps(_Report(rank, world, error, no_answer)._asdict()))
                    self._unread_keys += [(key, world)] if lingers else []

        if self._group_keys:
            _result(_started(write), 0.0 if self._store_is_stuck else STORE_SECONDS)

    def look(self, causes_only: bool = False) -> str | None:
        """Return a text with the failed rank and its error, or ``None`` if no other rank is known to have failed.

        Starts to read the store. Without ``causes_only``, the method does not wait, and a later call returns the text.

        Args:
            causes_only: whether to ignore ranks that failed only because another rank did not answer. The method then
                waits for the store, for at most ``STORE_SECONDS``.
        """
        reports = self._read_reports(0.0)
        if causes_only and not reports:
            reports = self._read_reports(STORE_SECONDS)
        for report in reports:
            if not report.no_answer:
                return f"rank {report.rank} of {report.world} failed: {report.error}"
        if reports and not causes_only:
            return f"rank {reports[0].rank} of {reports[0].world} stopped waiting: {reports[0].error}"
        return None

    def linger(self) -> None:
        """Wait for at most ``LINGER_SECONDS`` until the other ranks have read an error that this rank wrote.

        A rank that failed because another rank did not answer does not wait, except for rank 0 if it has read the
        error of another rank. The method also waits until the store is not being read any more, for at most
        ``STORE_SECONDS``: the interpreter may exit when this method has returned.
        """
        deadline_s = time.monotonic() + LINGER_SECONDS
        unread_keys, self._unread_keys = self._unread_keys, []

        def wait_until_read() -> None:
            for key, world in unread_keys:
                while self._store.add(key + "/seen", 0) < world - 1 and time.monotonic() < deadline_s:
                    time.sleep(0.05)

        if unread_keys and not self._store_is_stuck:
            _result(_started(wait_until_read), LINGER_SECONDS + STORE_SECONDS)
        self._await_reading(STORE_SECONDS)

    @property
    def _store_is_stuck(self) -> bool:
        """True if the store has not answered for ``STORE_SECONDS``."""
        reading = self._reading
        return reading is not None and not reading.done() and self._reading_s >= STORE_SECONDS

    @property
    def _reading_s(self) -> float:
        """Seconds since this rank began to read the store."""
        return time.monotonic() - self._reading_since_s

    def _read_reports(self, seconds: float) -> list[_Report]:
        """Return other ranks' reports; an empty list if there are none, or if they were not read within ``seconds``.

        Starts to read the store, unless this rank is still reading. The next call returns what was read.
        """
        if self._reading is None and self._group_keys:
            self._reading_since_s = time.monotonic()
            self._reading = _started(self._read)
        return self._await_reading(seconds)

    def _await_reading(self, seconds: float) -> list[_Report]:
        """Return what was read from the store; wait until ``seconds`` have passed since this rank began to read."""
        reading = self._reading
        if reading is None:
            return []
        reports: list[_Report] | None = _result(reading, max(0.0, seconds - self._reading_s))
        if reading.done():
            self._reading = None
        return reports or []

    def _read(self) -> list[_Report]:
        """Read other ranks' reports, and count this rank as one that has read them. Runs on a thread of its own."""
        reports = []
        for key, local_rank, world in self._group_keys:
            if not self._store.check([key]):
                continue
            report = _Report(**json.loads(self._store.get(key).decode()))
            if report.rank == local_rank:
                continue
            reports.append(report)
            if key not in self._keys_read and not report.no_answer:
                self._keys_read.add(key)
                self._store.add(key + "/seen", 1)
                self._unread_keys += [(key, world)] if self._may_host_store else []
        return reports


def _started(function: Callable[[], Any]) -> "Future[Any]":
    """Call a function on a new daemon thread; return a future of its result, which is ``None`` if the call fails."""
    future: Future[Any] = Future()

    def call() -> None:
        result = None
        with contextlib.suppress(Exception):  # the store is gone
            result = function()
        future.set_result(result)

    thread = threading.Thread(target=call, name="gravac-store", daemon=True)
    _store_threads.add(thread)
    try:
        thread.start()
    except RuntimeError:  # the interpreter exits
        future.set_result(None)
    return future


@atexit.register
def _await_store_threads() -> None:
    """Wait until the store's calls in flight have returned, for at most ``STORE_SECONDS`` in total."""
    end_s = time.monotonic() + STORE_SECONDS
    for thread in [*_store_threads]:
        if thread.is_alive():
            thread.join(max(0.0, end_s - time.monotonic()))


def _result(future: "Future[Any]", seconds: float) -> Any:
    """Return a future's result; ``None`` if there is none within ``seconds``."""
    with contextlib.suppress(FutureTimeoutError):
        return future.result(seconds)
    return None
