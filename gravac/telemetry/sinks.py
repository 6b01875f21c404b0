# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Passes records to all sinks of a run, on rank 0. A sink that fails gets no more records; training continues."""

import atexit
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from gravac.guarded import warn_without_raising
from gravac.telemetry.jsonl import JSONLSink
from gravac.telemetry.logging_sink import LoggingSink
from gravac.telemetry.records import Record, Sink
from gravac.telemetry.tensorboard import TensorBoardSink


class Sinks:
    """Passes records to the user's sinks, to Python's logging, and to TensorBoard and JSONL if there is a log folder.

    In a forked process, such as a data loader's worker, records are ignored: the sinks' files and threads belong to the
    parent process.

    Args:
        sinks: the user's sinks, see ``Sink``.
        log_dir: folder for TensorBoard and JSONL files; ``None``: no such files are written. Only the rank that calls
            ``open`` writes to the folder.
    """

    def __init__(self, sinks: Sequence[Sink], log_dir: Path | None) -> None:
        self._sinks: list[Sink] = []
        self._user_sinks = list(sinks)
        self._log_dir = log_dir
        self._owner_pid = 0

    def open(self) -> None:
        """Create the sinks of ``log_dir``, and pass records to all sinks from now on; called on rank 0.

        The sinks are closed when the process exits, also after an interrupt.

        Raises:
            SettingsError: ``log_dir`` cannot be written to.
        """
        self._owner_pid = os.getpid()
        self._sinks = [*self._user_sinks, LoggingSink()]
        if self._log_dir is not None:
            self._sinks.append(TensorBoardSink(self._log_dir))
            self._sinks.append(JSONLSink(self._log_dir / "gravac.jsonl"))
        weak_close_method = weakref.WeakMethod(self.close)

        def at_exit() -> None:
            if (close_method := weak_close_method()) is not None:
                close_method()

        atexit.register(at_exit)

    def __call__(self, record: Record) -> None:
        """Pass a record to each sink; a sink that fails gets no more records."""
        if os.getpid() != self._owner_pid:
            return
        for sink in list(self._sinks):
            try:
                sink(record)
            except Exception as failure:
                self._sinks.remove(sink)
                warn_without_raising(
                    f"gravac: {sink!r} failed and gets no more records: {failure!r}; training continues",
                    category=UserWarning,
                )

    def close(self) -> None:
        """Close all sinks that have a method ``close``, also if some of them fail, and pass on no more records."""
        if os.getpid() != self._owner_pid:
            return
        sinks, self._sinks = self._sinks, []
        for sink in sinks:
            try:
                close = getattr(sink, "close", None)
                if close is not None:
                    close()
            except Exception as failure:
                warn_without_raising(
                    f"gravac: {sink!r} failed when it was closed: {failure!r}; its last records may be missing",
                    category=UserWarning,
                )
