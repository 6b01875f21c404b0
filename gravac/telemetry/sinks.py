# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hands records to all sinks of a run, on rank 0. A sink that fails gets no more records; training continues."""

import atexit
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from gravac.guarded import warn_without_raising
from gravac.telemetry.jsonl import JSONLSink
from gravac.telemetry.records import Record, Sink
from gravac.telemetry.tensorboard import TensorBoardSink


class Sinks:
    """Hands records to the user's sinks, and to TensorBoard and JSONL if there is a folder for logs.

    In a forked process records are ignored, since the sinks' files and threads belong to the parent process.

    Args:
        sinks: the user's sinks.
        log_dir: folder for TensorBoard and JSONL; ``None``: neither is written. Only the rank that calls ``open`` uses
            the folder.
    """

    def __init__(self, sinks: Sequence[Sink], log_dir: Path | None) -> None:
        self._sinks: list[Sink] = []
        self._user_sinks = list(sinks)
        self._log_dir = log_dir
        self._pid = 0

    def open(self) -> None:
        """Begin to hand records to the sinks; called on rank 0. Logs are closed at exit, also if interrupted.

        Raises:
            SettingsError: the folder cannot be written.
        """
        self._pid = os.getpid()
        self._sinks = list(self._user_sinks)
        if self._log_dir is not None:
            self._sinks.append(TensorBoardSink(self._log_dir))
            self._sinks.append(JSONLSink(self._log_dir / "gravac.jsonl"))
        close = weakref.WeakMethod(self.close)

        def at_exit() -> None:
            if (close_if_alive := close()) is not None:
                close_if_alive()

        atexit.register(at_exit)

    def __call__(self, record: Record) -> None:
        """Hand a record to each sink; a sink that fails gets no more records."""
        if os.getpid() != self._pid:
            return
        for sink in list(self._sinks):
            try:
                sink(record)
            except Exception as failure:
                self._sinks.remove(sink)
                warn_without_raising(
                    f"gravac: {sink!r} failed and gets no more records: {failure!r}", category=UserWarning
                )

    def close(self) -> None:
        """Close the sinks that have ``close``, even if one fails, and hand out no more records."""
        if os.getpid() != self._pid:
            return
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            try:
                close = getattr(sink, "close", None)
                if close is not None:
                    close()
            except Exception as failure:
                warn_without_raising(f"gravac: {sink!r} failed when it was closed: {failure!r}", category=UserWarning)
