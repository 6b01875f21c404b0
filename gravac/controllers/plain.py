# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""States as plain values, for checkpoints: all that is in one but candidates, which are given again at a restore."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter

from gravac.candidate import Candidate

StateT = TypeVar("StateT")

CANDIDATES: dict[str, Any] = {"candidate": True, "candidates": True, "low": True, "high": True, "window": {"candidate"}}
"""Fields that are left out, of a window or of a state that has one."""


def identify(candidates: Sequence[Candidate]) -> list[list[str | float]]:
    """Return compressor, CF and, where there are outer steps, ``every`` and ``delay`` of each candidate.

    Those are what positions in a state refer to.
    """
    return [
        [
            one.compressor,
            one.cf,
            *([one.every] if max(one.every - 1, one.delay) else []),
            *([one.delay] * (one.delay > 0)),
        ]
        for one in candidates
    ]


def named(identity: Sequence[Any]) -> str:
    """Return one of ``identify``'s in words.

    Example:
        >>> named(["topk", 10.0, 50, 25])
        'topk 10x every 50 steps behind 25'
    """
    compressor, cf, *when = identity
    return str(Candidate(compressor, cf, 1.0, every=when[0] if when else 1, delay=when[1] if when[1:] else 0))


def to_plain(state: Any) -> dict[str, Any]:
    """Return a dataclass's fields as plain values, tuples as lists, without candidates."""
    kind: Any = type(state)
    plain: dict[str, Any] = _adapter(kind).dump_python(state, mode="json", exclude=CANDIDATES)
    return plain


def from_plain(kind: Callable[..., StateT], plain: Mapping[str, Any]) -> StateT:
    """Return what ``to_plain`` made plain, with candidates; keys that are no fields of ``kind`` are left aside."""
    restored: StateT = _adapter(kind).validate_python(plain)
    return restored


def state_from_plain(
    kind: Callable[..., StateT], plain: Mapping[str, Any], candidates: Sequence[Candidate], running: int
) -> StateT:
    """Return the state that ``to_plain`` made plain.

    Args:
        kind: class of the state: a dataclass with ``candidates``, and a ``window`` of the one that runs.
        plain: what was dumped.
        candidates: what may be chosen, as at the dump.
        running: position of the candidate that runs.
    """
    window = {**plain["window"], "candidate": candidates[running]}
    return from_plain(kind, {**plain, "candidates": candidates, "window": window})


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
