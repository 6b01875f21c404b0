# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""All sinks of a run as one, on rank 0. A sink that fails is dropped; training goes on."""

import atexit
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path

from gravac.telemetry.jsonl import JSONLSink
from gravac.telemetry.records import Record, Sink
from gravac.telemetry.tensorboard import TensorBoardSink, check_writable


class Sinks:
    """Hands records to the user's sinks, and to TensorBoard and JSONL when there is a folder.

    Args:
        sinks: the user's sinks.
        log_dir: folder for TensorBoard and JSONL; ``None``: neither is written.

    Raises:
        SettingsError: the folder cannot be written. Checked at once, on every rank alike, and not at the first record.
    """

    def __init__(self, sinks: Sequence[Sink], log_dir: Path | None) -> None:
        self._sinks: list[Sink] = []
        self._given = list(sinks)
        self._log_dir = log_dir
        if log_dir is not None:
            check_writable(log_dir)

    def open(self) -> None:
        """Hand records on from now on, as rank 0 does. Logs are closed at exit, also of an interrupted run."""
        self._sinks = list(self._given)
        if self._log_dir is not None:
            self._sinks += [TensorBoardSink(self._log_dir), JSONLSink(self._log_dir / "gravac.jsonl")]
        close = weakref.WeakMethod(self.close)

        def at_exit() -> None:
            if (close_if_alive := close()) is not None:
                close_if_alive()

        atexit.register(at_exit)

    def __call__(self, record: Record) -> None:
        """Hand a record to each sink."""
        for sink in list(self._sinks):
            try:
                sink(record)
            except Exception as failure:
                self._sinks.remove(sink)
                warnings.warn(f"gravac: {sink!r} failed and gets no more records: {failure!r}", stacklevel=2)

    def close(self) -> None:
        """Close the sinks that can be closed; hand on nothing more."""
        for sink in self._sinks:
            close = getattr(sink, "close", None)
            if close is not None:
                close()
        self._sinks = []
