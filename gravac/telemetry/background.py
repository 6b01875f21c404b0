# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A sink that calls another sink on a thread, so that ranks do not wait for a slow sink."""

import queue
import threading
import time

from gravac.guarded import warn_without_raising
from gravac.settings import SettingsError
from gravac.telemetry.records import Record, Sink


class BackgroundSink:
    """Sink that passes records to another sink on a thread, in order, so that a slow sink delays no training step.

    Without this class all ranks wait while a sink processes a record. Writing TensorBoard, JSONL and CSV files takes
    microseconds; use this class for a tracker that sends records to a server. If the other sink is too slow, records
    are dropped.

    Args:
        sink: the other sink, which gets the records; called on a thread of its own.
        room: largest number of records that wait for the other sink, 1 or more; default: 1000. Further records are
            dropped.
        seconds: longest time, in seconds, that ``close`` waits until the other sink has processed the waiting records;
            0 or more, default: 10.

    Attributes:
        dropped: number of records that were dropped since too many were waiting.

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
            raise SettingsError(
                f"room: {room} is below 1; give the largest number of records that wait for the sink, such as 1000"
            )
        if not seconds >= 0:
            raise SettingsError(f"seconds: {seconds} is negative; give the longest time to wait in close(), such as 10")
        self._sink, self._close_seconds = sink, seconds
        self._waiting_records: queue.Queue[Record | None] = queue.Queue(room)
        self._is_closed = False
        self._has_failed = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="gravac-sink", daemon=True)
        self._thread.start()

    def __call__(self, record: Record) -> None:
        """Put a record into the queue for the sink, or drop the record if the queue is full; never waits."""
        if self._is_closed or self._has_failed:
            return
        try:
            self._waiting_records.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Wait until the other sink has processed all waiting records, and close it. May be called again.

        Waits for at most ``seconds``. Warns if records were dropped, or are still waiting then.
        """
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + self._close_seconds
        try:
            self._waiting_records.put(None, timeout=self._close_seconds)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        remaining_count = self._waiting_records.qsize() if self._thread.is_alive() else 0
        if lost_count := self.dropped + remaining_count:
            warn_without_raising(
                f"gravac: {self._sink!r} was too slow: {lost_count} records were dropped; write fewer records "
                "(every=...), or give BackgroundSink a larger room= or seconds="
            )

    def _run(self) -> None:
        """Pass records to the other sink until ``None`` arrives or that sink fails; then close it.

        Runs on the thread.
        """
        try:
            while (record := self._waiting_records.get()) is not None:
                self._sink(record)
        except Exception as failure:
            self._has_failed = True
            warn_without_raising(
                f"gravac: {self._sink!r} failed and gets no more records: {failure!r}; training continues"
            )
        try:
            close = getattr(self._sink, "close", None)
            if close is not None:
                close()
        except Exception as failure:
            warn_without_raising(f"gravac: {self._sink!r} failed when it was closed: {failure!r}")
