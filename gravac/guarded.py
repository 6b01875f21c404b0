# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Calls users' functions, and warns, without raising: an exception would end the thread that all ranks wait for."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any


def warn_without_raising(message: str, stacklevel: int = 2, category: type[Warning] = RuntimeWarning) -> None:
    """Warn; print to standard error instead if warnings are errors (``python -W error``).

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


class Guarded:
    """Calls users' functions; warns of the first failure of each, and lets training continue."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def __call__(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function. Never raises, except ``KeyboardInterrupt`` and ``SystemExit`` on the main thread."""
        try:
            function(*arguments)
        except BaseException as failure:
            if not isinstance(failure, Exception) and threading.current_thread() is threading.main_thread():
                raise
            self.report(getattr(function, "__qualname__", repr(function)), failure)

    def report(self, name: str, failure: BaseException) -> None:
        """Warn of a failure, unless a failure under the same name was reported before."""
        if name not in self._reported:
            self._reported.add(name)
            warn_without_raising(f"gravac: {name} failed: {failure!r}; training continues", stacklevel=3)
