# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What holds threads, groups and files of a running training: it is closed when done with, and never copied."""

from typing import NoReturn, TypeVar

SelfT = TypeVar("SelfT", bound="Live")


class Live:
    """Closes itself at the end of a ``with``, and refuses to be copied or pickled."""

    def close(self) -> None:
        """Finish what is under way. May be called again."""

    def __enter__(self: SelfT) -> SelfT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name}: cannot be copied or pickled; save state_dict() and load it into a new one")
