# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Base class of objects that hold threads, process groups and files, and therefore must be closed and never copied."""

from typing import NoReturn, TypeVar

SelfT = TypeVar("SelfT", bound="Closeable")


class Closeable:
    """Base class of objects that a ``with`` block closes at its end, and that cannot be copied or pickled."""

    def close(self) -> None:
        """Finish the work in flight, and release threads, groups and files. May be called again."""

    def __enter__(self: SelfT) -> SelfT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name}: cannot be copied or pickled; save state_dict() and load it into a new {name}")
