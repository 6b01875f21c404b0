# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""States as plain values, for checkpoints: all but the candidates and forecasts, which a restore is given anew."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, fields
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from gravac.candidate import Candidate, Mode
from gravac.settings import SettingsError

StateT = TypeVar("StateT")

GIVEN = ("candidate", "candidates", "forecasts", "low", "high")
"""Fields of windows and states that a restore is given: candidates and forecasts."""

EXCLUDED: dict[str, Any] = {**dict.fromkeys(GIVEN, True), "window": {"candidate"}}
"""Fields that are left out of plain values: those given, of a window or of a state with a window."""

Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
"""A number of things, or a position."""

Positive = Annotated[int, Field(ge=1, le=2**53, strict=True)]
"""A number of steps, 1 or more."""

Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
"""A number that is neither infinite nor nan."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
"""Such a number that is not negative: seconds, samples, a squared norm."""

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
"""Such a number above 0."""

Factor = Annotated[float, Field(ge=1e-9, le=1e9, strict=True)]
"""A compression factor, or the ratio of two."""


def identify(candidates: Iterable[Candidate]) -> list[list[str | float]]:
    """Return each candidate as a list ``[mode, compressor, cf, every, delay]``: what positions in a state refer to.

    Example:
        >>> identify([Candidate("outer", "topk", 10.0, every=50)])
        [['outer', 'topk', 10.0, 50, 0]]
    """
    return [list(astuple(candidate)) for candidate in candidates]


def candidate_of(identity: Sequence[Any]) -> Candidate:
    """Return the candidate of an identity that ``identify`` gave.

    Example:
        >>> candidate_of(["outer", "topk", 10.0, 50, 25]).every
        50
    """
    mode, compressor, cf, every, delay = identity
    return Candidate(mode=mode, compressor=compressor, cf=cf, every=every, delay=delay)


def named(identity: Sequence[Any]) -> str:
    """Return an identity that ``identify`` gave, in words.

    Example:
        >>> named(["outer", "topk", 10.0, 50, 25])
        'topk 10x every 50 steps behind 25'
    """
    return str(candidate_of(identity))


def to_plain(state: Any) -> dict[str, Any]:
    """Return a dataclass's fields as plain values, tuples as lists, without candidates and forecasts."""
    kind: Any = type(state)
    plain: dict[str, Any] = _adapter(kind).dump_python(state, mode="json", exclude=EXCLUDED)
    return plain


def from_plain(kind: Callable[..., StateT], plain: Mapping[str, Any]) -> StateT:
    """Return what ``to_plain`` made plain, with the fields that are given; keys that are no fields are ignored."""
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
    """Return the candidates that ``identify`` made plain.

    Raises:
        SettingsError: ``plain`` is not what ``identify`` gives of one candidate or more.
    """
    try:
        identities = _adapter(tuple[tuple[Mode, str, Above0, Positive, Count], ...]).validate_python(plain)
    except ValidationError:
        identities = ()
    if not identities:
        raise SettingsError(f"{path}: {plain!r:.80}, mode, compressor, CF, every and delay of each candidate expected")
    return tuple(candidate_of(identity) for identity in identities)


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
    kind: Callable[..., StateT], plain: Mapping[str, Any], running: Candidate, **given: Sequence[Any]
) -> StateT:
    """Return the state that ``to_plain`` made plain.

    Args:
        kind: class of the state: a dataclass with a ``window`` of the candidate that runs.
        plain: what was dumped.
        running: candidate that runs.
        given: ``candidates`` or ``forecasts``, whichever the state has, in the order of the dump.
    """
    return from_plain(kind, {**plain, **given, "window": {**plain["window"], "candidate": running}})


def _check_named(path: str, plain: Any, names: set[str]) -> None:
    if not isinstance(plain, Mapping):
        raise SettingsError(f"{path}: {plain!r:.80}, its fields {', '.join(sorted(names))} expected")
    for name in sorted(names - {*plain}):
        raise SettingsError(f"{path}/{name}: it is missing")
    for name in sorted(map(str, {*plain} - names)):
        raise SettingsError(f"{path}/{name}: it is unknown here")


def _names(kind: Any) -> set[str]:
    return set() if kind is None else {field.name for field in fields(kind)} - {*GIVEN}


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
