# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Keeps training safe from failures of a sink: the first failure warns, and the sink then writes nothing more."""

from types import TracebackType

from gravac.guarded import warn_without_raising


class Quiet:
    """A context manager that catches every ``Exception`` of its body, and warns about the first.

    Args:
        name: name of the sink and of the file or folder that it writes, for the warning.

    Attributes:
        failed: whether a body has raised; the owner then stops writing.
    """

    def __init__(self, name: str) -> None:
        self.failed = False
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self.failed:
            self.failed = True
            message = f"{self._name}: {type(error).__name__}: {error}; telemetry stops here, training continues"
            warn_without_raising(message, stacklevel=3)
        return True
