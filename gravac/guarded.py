# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Turns exceptions of users' functions into warnings, since an exception would end the thread that averages."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any


def warn_without_raising(message: str, stacklevel: int = 2, category: type[Warning] = RuntimeWarning) -> None:
    """Give a warning; if warnings raise (``python -W error``), print the message to standard error instead.

    Args:
        message: text of the warning.
        stacklevel: number of frames to go up, counted from the caller, as in ``warnings.warn``.
        category: class of the warning.
    """
    try:
        warnings.warn(message, category, stacklevel=stacklevel + 1)
    except category:
        with contextlib.suppress(Exception):
            print(message, file=sys.stderr)


class GuardedCaller:
    """Calls users' functions; turns the first exception of each into a warning, and ignores later exceptions."""

    def __init__(self) -> None:
        self._reported_names: set[str] = set()

    def __call__(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function with ``arguments``, and turn its exception into a warning.

        On the main thread, ``KeyboardInterrupt`` and ``SystemExit`` are raised.
        """
        try:
            function(*arguments)
        except BaseException as failure:
            if not isinstance(failure, Exception) and threading.current_thread() is threading.main_thread():
                raise
            self.report(getattr(function, "__qualname__", repr(function)), failure)

    def report(self, name: str, failure: BaseException) -> None:
        """Warn that a function failed, only at its first failure.

        Args:
            name: name of the function.
            failure: exception that the function raised.
        """
        if name not in self._reported_names:
            self._reported_names.add(name)
            warn_without_raising(f"gravac: {name} failed: {failure!r}; training continues", stacklevel=3)
