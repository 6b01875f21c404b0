# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Protects training from failures of a sink: the first failure causes a warning, and the sink then writes no more."""

from types import TracebackType

from gravac.guarded import warn_without_raising


class SinkGuard:
    """Context manager that suppresses every ``Exception`` of a sink, and issues a warning about the first one.

    Args:
        name: name of the sink and of the file or folder that it writes, for the warning.

    Attributes:
        has_failed: whether an exception was suppressed; the sink must then stop writing.
    """

    def __init__(self, name: str) -> None:
        self.has_failed = False
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self.has_failed:
            self.has_failed = True
            message = f"{self._name}: {type(error).__name__}: {error}; telemetry stops here, training continues"
            warn_without_raising(message, stacklevel=3)
        return True
