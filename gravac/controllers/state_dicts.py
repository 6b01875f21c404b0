# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers' states as plain values (JSON types) for checkpoints, and checks of dumped states.

Candidates and forecasts are not dumped, since ``restore`` gets those of the resumed run.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from gravac.candidate import Candidate, Mode
from gravac.settings import STATE_REMEDY, SettingsError

StateT = TypeVar("StateT")

FIELDS_NOT_DUMPED = ("candidate", "candidates", "forecasts", "low", "high")
"""Fields of windows and states that contain candidates or forecasts: ``restore`` gets those of the resumed run."""

EXCLUDED_FIELDS: dict[str, Any] = {**dict.fromkeys(FIELDS_NOT_DUMPED, True), "window": {"candidate"}}
"""Value of pydantic's ``exclude`` that leaves out ``FIELDS_NOT_DUMPED``, of a window or of a state with a window."""

Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
"""Type of a count, 0 or more, or of a position in a list."""

Positive = Annotated[int, Field(ge=1, le=2**53, strict=True)]
"""Type of a number of steps, 1 or more."""

Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
"""Type of a number that is neither infinite nor nan."""

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
"""Type of a finite number, 0 or more: seconds, samples, a squared norm."""

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
"""Type of a finite number above 0."""

Factor = Annotated[float, Field(ge=1e-9, le=1e9, strict=True)]
"""Type of a compression factor, or of the ratio of two factors."""


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
    """Return the candidate whose identity ``identify`` returned.

    Example:
        >>> candidate_of(["outer", "topk", 10.0, 50, 25]).every
        50
    """
    mode, compressor, cf, every, delay = identity
    return Candidate(mode=mode, compressor=compressor, cf=cf, every=every, delay=delay)


def name_of(identity: Sequence[Any]) -> str:
    """Return a name, for readers, of the candidate whose identity ``identify`` returned.

    Example:
        >>> name_of(["outer", "topk", 10.0, 50, 25])
        'topk 10x every 50 steps applied 25 steps later'
    """
    return str(candidate_of(identity))


def to_plain(state: Any) -> dict[str, Any]:
    """Return the fields of a state (a dataclass) as plain values: tuples as lists, no candidates, no forecasts."""
    state_class: Any = type(state)
    dumped: dict[str, Any] = _adapter(state_class).dump_python(state, mode="json", exclude=EXCLUDED_FIELDS)
    return dumped


def from_plain(state_class: Callable[..., StateT], dumped: Mapping[str, Any]) -> StateT:
    """Return the state whose plain values ``to_plain`` returned.

    Args:
        state_class: class of the state, a dataclass.
        dumped: what ``to_plain`` returned, with the fields ``FIELDS_NOT_DUMPED`` added; keys that are no fields are
            ignored.

    Raises:
        SettingsError: a field has a wrong type or range.
    """
    try:
        restored_state: StateT = _adapter(state_class).validate_python(dumped)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = "/".join(map(str, ("controller_state", *fault["loc"])))
        raise SettingsError(f"{path}: {fault['msg']} (got {fault['input']!r:.80})") from None
    return restored_state


def check_names(state_class: Any, dumped: Mapping[str, Any], extra_names: Collection[str], window_class: Any) -> None:
    """Check that a dumped state, and the window in it, have the field names that ``to_plain`` writes.

    Args:
        state_class: class of the state, a dataclass; ``None``: the state is only a window.
        dumped: state of the controller in a checkpoint.
        extra_names: names that the controller adds to those of ``to_plain``.
        window_class: class of the window, a dataclass.

    Raises:
        SettingsError: a name is missing or unknown, or the state or its window is no dict.
    """
    _check_field_names("controller_state", dumped, {"window", *extra_names, *_field_names(state_class)})
    _check_field_names("controller_state/window", dumped["window"], _field_names(window_class))


def candidates_of(identities: Any, path: str = "controller_state/candidates") -> tuple[Candidate, ...]:
    """Return the candidates whose identities ``identify`` returned.

    Args:
        identities: dumped list of identities.
        path: path of that list in the checkpoint, for the message.

    Raises:
        SettingsError: ``identities`` is not a list as ``identify`` returns, of one candidate or more.
    """
    try:
        checked_identities = _adapter(tuple[tuple[Mode, str, Above0, Positive, Count], ...]).validate_python(identities)
    except ValidationError:
        checked_identities = ()
    if not checked_identities:
        raise SettingsError(
            f"{path}: {identities!r:.80} is no list with mode, compressor, CF, every and delay of each candidate; "
            f"{STATE_REMEDY}"
        )
    return tuple(candidate_of(identity) for identity in checked_identities)


def check_positions(positions: Mapping[str, Sequence[int]], count: int) -> None:
    """Check that each position in a dumped state is below the number of candidates.

    Args:
        positions: positions in the list of candidates, by the name of the field that has them.
        count: number of candidates.

    Raises:
        SettingsError: a position is ``count`` or more; the message names its field.
    """
    for name, positions_in_field in positions.items():
        for position in positions_in_field:
            if position >= count:
                raise SettingsError(
                    f"controller_state/{name}: {position} is no position of {count} candidates; {STATE_REMEDY}"
                )


def state_from_plain(
    state_class: Callable[..., StateT], dumped: Mapping[str, Any], running: Candidate, **not_dumped: Sequence[Any]
) -> StateT:
    """Return the state, with candidates and window, whose plain values ``to_plain`` returned.

    Args:
        state_class: class of the state: a dataclass with a ``window`` of the candidate that runs.
        dumped: state of the controller in a checkpoint.
        running: candidate that runs.
        not_dumped: the field ``candidates`` or ``forecasts``, whichever the state has, in the order of the dump.
    """
    return from_plain(state_class, {**dumped, **not_dumped, "window": {**dumped["window"], "candidate": running}})


def _check_field_names(path: str, dumped: Any, names: set[str]) -> None:
    """Raise ``SettingsError`` unless a dumped dataclass is a dict whose keys are ``names``."""
    if not isinstance(dumped, Mapping):
        raise SettingsError(
            f"{path}: {dumped!r:.80} is no dict with the fields {', '.join(sorted(names))}; {STATE_REMEDY}"
        )
    for name in sorted(names - {*dumped}):
        raise SettingsError(f"{path}/{name}: it is missing; {STATE_REMEDY}")
    for name in sorted(map(str, {*dumped} - names)):
        raise SettingsError(f"{path}/{name}: this run expects no such entry; {STATE_REMEDY}")


def _field_names(state_class: Any) -> set[str]:
    """Return the names of a dataclass's fields that ``to_plain`` dumps."""
    return set() if state_class is None else {field.name for field in fields(state_class)} - {*FIELDS_NOT_DUMPED}


@functools.cache
def _adapter(data_class: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type, a dataclass for example; each is made once."""
    return TypeAdapter(data_class)
