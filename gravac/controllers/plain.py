# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""States as plain values, for checkpoints: all that is in one but candidates, which are given again at a restore."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from gravac.candidate import Candidate
from gravac.settings import SettingsError

StateT = TypeVar("StateT")

CANDIDATES: dict[str, Any] = {"candidate": True, "candidates": True, "low": True, "high": True, "window": {"candidate"}}
"""Fields that are left out, of a window or of a state that has one."""

Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
"""A number of things, or a position."""

Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
"""A number that is neither infinite nor nan."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
"""Such a number that is not negative: seconds, samples, a squared norm."""

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
"""Such a number above 0."""

Factor = Annotated[float, Field(ge=1e-9, le=1e9, strict=True)]
"""A compression factor, or the ratio of two."""


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
    try:
        restored: StateT = _adapter(kind).validate_python(plain)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = "/".join(map(str, ("controller_state", *fault["loc"])))
        raise SettingsError(f"{where}: {fault['msg']} (got {fault['input']!r:.80})") from None
    return restored


def check_names(kind: Any, plain: Mapping[str, Any], besides: Collection[str], window: Any) -> None:
    """Check that a plain state, and the window in it, have the names that ``to_plain`` gave them.

    Args:
        kind: class of the state, a dataclass; ``None``: the window is all of it.
        plain: what was dumped.
        besides: names that the controller added.
        window: class of the window.

    Raises:
        SettingsError: a name is missing or unknown, or the state or its window is no dict.
    """
    _check_named("controller_state", plain, {"window", *besides, *_names(kind)})
    _check_named("controller_state/window", plain["window"], _names(window))


def identified(plain: Any, path: str = "controller_state/candidates") -> tuple[Candidate, ...]:
    """Return candidates with the identity that ``identify`` gave, and all else made up, to check a state with.

    Raises:
        SettingsError: ``plain`` is not what ``identify`` gives of one candidate or more.
    """
    try:
        rows = _adapter(tuple[tuple[str, Above0, Count, Count] | tuple[str, Above0, Count] | tuple[str, Above0], ...])
        given = rows.validate_python(plain)
    except ValidationError:
        given = ()
    if not given:
        raise SettingsError(f"{path}: {plain!r:.80}, a name and a CF of each candidate expected")
    full = ((*one, *(1, 0)[len(one) - 2 :]) for one in given)
    return tuple(Candidate(name, cf, 1.0, every=every, delay=delay) for name, cf, every, delay in full)


def check_positions(positions: Mapping[str, Sequence[int]], count: int) -> None:
    """Check that each position in a state is one of ``count`` candidates; an error names the position.

    Raises:
        SettingsError: one is not.
    """
    for name, given in positions.items():
        for position in given:
            if position >= count:
                raise SettingsError(f"controller_state/{name}: {position}, a position of {count} candidates expected")


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


def _check_named(path: str, plain: Any, names: set[str]) -> None:
    if not isinstance(plain, Mapping):
        raise SettingsError(f"{path}: {plain!r:.80}, its fields {', '.join(sorted(names))} expected")
    for name in sorted(names - {*plain}):
        raise SettingsError(f"{path}/{name}: it is missing")
    for name in sorted(map(str, {*plain} - names)):
        raise SettingsError(f"{path}/{name}: it is unknown here")


def _names(kind: Any) -> set[str]:
    return set() if kind is None else {field.name for field in fields(kind)} - {*CANDIDATES}


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
