# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A sink that runs another sink on a thread, so that ranks do not wait for a slow sink."""

import queue
import threading
import time

from gravac.guarded import warn_without_raising
from gravac.settings import SettingsError
from gravac.telemetry.records import Record, Sink


class BackgroundSink:
    """Hands records to another sink on a thread, in order, so that a slow sink delays no training step.

    Without this class the exchange thread calls the sink, and all ranks wait meanwhile. Writing TensorBoard, JSONL and
    CSV files takes microseconds; use this class for a tracker that sends to a server. If the sink cannot keep up,
    records are dropped.

    Args:
        sink: sink that takes the records, on a thread of its own.
        room: number of records that may wait, 1 or more; default: 1000. Further records are dropped.
        seconds: longest time, in seconds, that ``close`` waits for the sink to take the waiting records; 0 or more,
            default: 10.

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
        """Queue a record for the sink; never waits."""
        if self._closed or self._failed:
            return
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Wait until the sink has taken the waiting records, and close it. May be called again.

        Warns if records were dropped.
        """
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + self._seconds
        try:
            self._waiting.put(None, timeout=self._seconds)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        remaining = self._waiting.qsize() if self._thread.is_alive() else 0
        if lost := self.dropped + remaining:
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
