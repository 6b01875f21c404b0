# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training never dies of telemetry: the first failure of a sink warns, and from then on the sink is silent."""

from types import TracebackType

from gravac.guarded import warn_without_raising


class Quiet:
    """A context that swallows every ``Exception`` of its body and warns about the first one.

    Args:
        name: what failed, for the warning: a sink and where it writes.

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
            message = f"{self._name}: {type(error).__name__}: {error}; telemetry stops here, training goes on"
            warn_without_raising(message, stacklevel=3)
        return True
