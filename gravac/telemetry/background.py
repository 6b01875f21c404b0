# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A sink on a thread of its own, for one that takes long: what a sink takes, all ranks would wait for."""

import queue
import threading
import time

from gravac.guarded import warn_without_raising
from gravac.settings import SettingsError
from gravac.telemetry.records import Record, Sink


class BackgroundSink:
    """Hands records to another sink on a thread, in order, so that a slow sink delays no training step.

    The exchange thread calls the sinks, and while it does, no rank goes on. TensorBoard, JSONL and CSV files take
    microseconds; a tracker that asks a server belongs in here. If the sink cannot keep up, records are dropped.

    Args:
        sink: takes the records, on a thread of its own.
        room: number of records that may wait; further ones are dropped.
        seconds: longest time that ``close`` waits for the sink to take what waits.

    Attributes:
        dropped: number of records dropped.

    Raises:
        SettingsError: ``room`` is below 1, or ``seconds`` is negative.

    Example:
        >>> records = []
        >>> sink = BackgroundSink(records.append)
        >>> sink("a record")
        >>> sink.close()
        >>> records
        ['a record']
    """

    def __init__(self, sink: Sink, room: int = 1000, seconds: float = 10.0) -> None:
        if room < 1:
            raise SettingsError(f"room: {room} records is below 1; use 1000")
        if not seconds >= 0:
            raise SettingsError(f"seconds: {seconds} is negative; use 10")
        self._sink, self._seconds = sink, seconds
        self._waiting: queue.Queue[Record | None] = queue.Queue(room)
        self._closed = False
        self._failed = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="gravac-sink", daemon=True)
        self._thread.start()

    def __call__(self, record: Record) -> None:
        """Have a record handed on; never waits."""
        if self._closed or self._failed:
            return
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Have the sink take what waits, and close it. May be called again. Warns if records were dropped."""
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + self._seconds
        try:
            self._waiting.put(None, timeout=self._seconds)
            self._thread.join(max(0.0, until - time.monotonic()))
        except queue.Full:
            pass
        left = self._waiting.qsize() if self._thread.is_alive() else 0
        if lost := self.dropped + left:
            warn_without_raising(
                f"gravac: {self._sink!r} was too slow: {lost} records were dropped; write fewer (every=...), or give "
                f"BackgroundSink more room or seconds"
            )

    def _run(self) -> None:
        try:
            while (record := self._waiting.get()) is not None:
                self._sink(record)
        except Exception as failure:
            self._failed = True
            warn_without_raising(f"gravac: {self._sink!r} failed and gets no more records: {failure!r}")
        try:
            close = getattr(self._sink, "close", None)
            if close is not None:
                close()
        except Exception as failure:
            warn_without_raising(f"gravac: {self._sink!r} failed when it was closed: {failure!r}")
