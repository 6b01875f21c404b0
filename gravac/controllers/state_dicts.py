# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""States as plain values (JSON types) for checkpoints: all but candidates and forecasts, which a restore gets anew."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from gravac.candidate import Candidate, Mode
from gravac.settings import STATE_REMEDY, SettingsError

StateT = TypeVar("StateT")

NOT_DUMPED = ("candidate", "candidates", "forecasts", "low", "high")
"""Fields of windows and states that hold candidates and forecasts. A restore gets them anew."""

EXCLUDED: dict[str, Any] = {**dict.fromkeys(NOT_DUMPED, True), "window": {"candidate"}}
"""pydantic's ``exclude`` for ``NOT_DUMPED``, of a window or of a state with a window."""

Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
"""A count of 0 or more, or a position in a list."""

Positive = Annotated[int, Field(ge=1, le=2**53, strict=True)]
"""A number of steps, 1 or more."""

Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
"""A number that is neither infinite nor nan."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
"""A finite number, 0 or more: seconds, samples, a squared norm."""

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
"""A finite number above 0."""

Factor = Annotated[float, Field(ge=1e-9, le=1e9, strict=True)]
"""A compression factor, or the ratio of two."""


def identify(candidates: Iterable[Candidate]) -> list[list[str | float]]:
    """Return the identity of each candidate: a list ``[mode, compressor, cf, every, delay]``.

    Positions in a dumped state refer to the returned list.

    Example:
        >>> identify([Candidate("outer", "topk", 10.0, every=50)])
        [['outer', 'topk', 10.0, 50, 0]]
    """
    return [
        [candidate.mode, candidate.compressor, candidate.cf, candidate.every, candidate.delay]
        for candidate in candidates
    ]


def candidate_of(identity: Sequence[Any]) -> Candidate:
    """Return the candidate of an identity that ``identify`` returned.

    Example:
        >>> candidate_of(["outer", "topk", 10.0, 50, 25]).every
        50
    """
    mode, compressor, cf, every, delay = identity
    return Candidate(mode=mode, compressor=compressor, cf=cf, every=every, delay=delay)


def name_of(identity: Sequence[Any]) -> str:
    """Return the candidate's name for an identity that ``identify`` returned, as text for readers.

    Example:
        >>> name_of(["outer", "topk", 10.0, 50, 25])
        'topk 10x every 50 steps behind 25'
    """
    return str(candidate_of(identity))


def to_plain(state: Any) -> dict[str, Any]:
    """Return a dataclass's fields as plain values, tuples as lists, without candidates and forecasts."""
    kind: Any = type(state)
    dumped: dict[str, Any] = _adapter(kind).dump_python(state, mode="json", exclude=EXCLUDED)
    return dumped


def from_plain(kind: Callable[..., StateT], dumped: Mapping[str, Any]) -> StateT:
    """Return the state of the plain values that ``to_plain`` returned.

    Args:
        kind: class of the state, a dataclass.
        dumped: what ``to_plain`` returned, with the fields ``NOT_DUMPED`` added; keys that are no fields are ignored.

    Raises:
        SettingsError: a field has a wrong type or range.
    """
    try:
        restored: StateT = _adapter(kind).validate_python(dumped)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = "/".join(map(str, ("controller_state", *fault["loc"])))
        raise SettingsError(f"{path}: {fault['msg']} (got {fault['input']!r:.80})") from None
    return restored


def check_names(kind: Any, dumped: Mapping[str, Any], extra_names: Collection[str], window: Any) -> None:
    """Check that a dumped state, and the window in it, have the field names that ``to_plain`` writes.

    Args:
        kind: class of the state, a dataclass; ``None``: the state is its window.
        dumped: the dumped state.
        extra_names: names that the controller added.
        window: class of the window.

    Raises:
        SettingsError: a name is missing or unknown, or the state or its window is no dict.
    """
    _check_field_names("controller_state", dumped, {"window", *extra_names, *_field_names(kind)})
    _check_field_names("controller_state/window", dumped["window"], _field_names(window))


def identified(identities: Any, path: str = "controller_state/candidates") -> tuple[Candidate, ...]:
    """Return the candidates of identities that ``identify`` returned.

    Raises:
        SettingsError: ``identities`` is not a list, as ``identify`` returns it, of one candidate or more.
    """
    try:
        checked = _adapter(tuple[tuple[Mode, str, Above0, Positive, Count], ...]).validate_python(identities)
    except ValidationError:
        checked = ()
    if not checked:
        raise SettingsError(
            f"{path}: {identities!r:.80}, mode, compressor, CF, every and delay of each candidate expected"
        )
    return tuple(candidate_of(identity) for identity in checked)


def check_positions(positions: Mapping[str, Sequence[int]], count: int) -> None:
    """Check that each position in a dumped state is below the number of candidates.

    Args:
        positions: positions by the name of their field.
        count: number of candidates.

    Raises:
        SettingsError: a position is ``count`` or more; the message names its field.
    """
    for name, positions_in_field in positions.items():
        for position in positions_in_field:
            if position >= count:
                raise SettingsError(f"controller_state/{name}: {position}, a position of {count} candidates expected")


def state_from_plain(
    kind: Callable[..., StateT], dumped: Mapping[str, Any], running: Candidate, **not_dumped: Sequence[Any]
) -> StateT:
    """Return the state of the plain values that ``to_plain`` returned.

    Args:
        kind: class of the state: a dataclass with a ``window`` of the candidate that runs.
        dumped: the dumped state.
        running: candidate that runs.
        not_dumped: ``candidates`` or ``forecasts``, whichever the state has, in the order of the dump.
    """
    return from_plain(kind, {**dumped, **not_dumped, "window": {**dumped["window"], "candidate": running}})


def _check_field_names(path: str, dumped: Any, names: set[str]) -> None:
    """Raise ``SettingsError`` unless a dumped dataclass is a dict with exactly these keys."""
    if not isinstance(dumped, Mapping):
        raise SettingsError(f"{path}: {dumped!r:.80}, its fields {', '.join(sorted(names))} expected")
    for name in sorted(names - {*dumped}):
        raise SettingsError(f"{path}/{name}: it is missing; {STATE_REMEDY}")
    for name in sorted(map(str, {*dumped} - names)):
        raise SettingsError(f"{path}/{name}: it is unknown here; {STATE_REMEDY}")


def _field_names(kind: Any) -> set[str]:
    """Return the names of a dataclass's fields that ``to_plain`` dumps."""
    return set() if kind is None else {field.name for field in fields(kind)} - {*NOT_DUMPED}


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type; made once."""
    return TypeAdapter(kind)
