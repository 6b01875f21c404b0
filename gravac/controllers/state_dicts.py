# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts states of controllers to plain values (JSON types) for checkpoints, and back; checks dumped states.

Candidates and forecasts are not dumped, since ``Controller.restore`` gets the forecasts of the resumed run.
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
"""Fields of states and windows that contain candidates or forecasts. They are not dumped, since ``Controller.restore``
gets the forecasts of the resumed run."""

EXCLUDED_FIELDS: dict[str, Any] = {**dict.fromkeys(FIELDS_NOT_DUMPED, True), "window": {"candidate"}}
"""Value for pydantic's argument ``exclude`` that leaves out ``FIELDS_NOT_DUMPED`` of a state and of its window."""

Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
"""Type of an integer of 0 or more: a count, or a position in a list."""

PositiveCount = Annotated[int, Field(ge=1, le=2**53, strict=True)]
"""Type of an integer of 1 or more, such as a number of steps."""

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

    Dumped states contain the returned list. Their positions are indices of that list.

    Example:
        >>> identify([Candidate("outer", "topk", 10.0, every=50)])
        [['outer', 'topk', 10.0, 50, 0]]
    """
    return [
        [candidate.mode, candidate.compressor, candidate.cf, candidate.every, candidate.delay]
        for candidate in candidates
    ]


def candidate_of(identity: Sequence[Any]) -> Candidate:
    """Return the candidate of an identity ``[mode, compressor, cf, every, delay]``, as ``identify`` returns.

    Example:
        >>> candidate_of(["outer", "topk", 10.0, 50, 25]).every
        50
    """
    mode, compressor, cf, every, delay = identity
    return Candidate(mode=mode, compressor=compressor, cf=cf, every=every, delay=delay)


def name_of(identity: Sequence[Any]) -> str:
    """Return a readable name of the candidate of an identity, as ``identify`` returns.

    Example:
        >>> name_of(["outer", "topk", 10.0, 50, 25])
        'topk 10x every 50 steps (applied 25 steps later)'
    """
    return str(candidate_of(identity))


def to_plain(state: Any) -> dict[str, Any]:
    """Return the fields of a state, a dataclass, as JSON types, by field name; without ``FIELDS_NOT_DUMPED``."""
    state_class: Any = type(state)
    dumped: dict[str, Any] = _type_adapter(state_class).dump_python(state, mode="json", exclude=EXCLUDED_FIELDS)
    return dumped


def from_plain(state_class: Callable[..., StateT], dumped: Mapping[str, Any]) -> StateT:
    """Return a state from the plain values that ``to_plain`` returned.

    Args:
        state_class: class of the state, a dataclass.
        dumped: dict that ``to_plain`` returned, with the candidates or forecasts added that ``state_class`` needs
            (``FIELDS_NOT_DUMPED``). Keys that are no fields are ignored.

    Raises:
        SettingsError: a field has a wrong type or range.
    """
    try:
        restored_state: StateT = _type_adapter(state_class).validate_python(dumped)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = "/".join(map(str, ("controller_state", *fault["loc"])))
        raise SettingsError(f"{path}: {fault['msg']} (got {fault['input']!r:.80}); {STATE_REMEDY}") from None
    return restored_state


def check_names(state_class: Any, dumped: Mapping[str, Any], extra_names: Collection[str], window_class: Any) -> None:
    """Raise ``SettingsError`` if a dumped state, or the window in it, has other keys than expected.

    Args:
        state_class: class of the state, a dataclass; ``None``: the state has no fields but its window.
        dumped: state of the controller in a checkpoint.
        extra_names: keys that the controller adds to those of ``to_plain``.
        window_class: class of the window, a dataclass.

    Raises:
        SettingsError: a key is missing or unknown, or the state or its window is no dict.
    """
    _check_field_names("controller_state", dumped, {"window", *extra_names, *_field_names(state_class)})
    _check_field_names("controller_state/window", dumped["window"], _field_names(window_class))


def candidates_of(identities: Any, path: str = "controller_state/candidates") -> tuple[Candidate, ...]:
    """Check a list in which ``identify`` saved candidates in a checkpoint, and return these candidates.

    Args:
        identities: identities in a dumped state.
        path: path of ``identities`` in the checkpoint, for the error message.

    Raises:
        SettingsError: ``identities`` is empty, or not a list of identities.
    """
    try:
        checked_identities = _type_adapter(tuple[tuple[Mode, str, Above0, PositiveCount, Count], ...]).validate_python(
            identities
        )
    except ValidationError:
        checked_identities = ()
    if not checked_identities:
        raise SettingsError(
            f"{path}: {identities!r:.80} is not a list with mode, compressor, CF, every and delay of each candidate; "
            f"{STATE_REMEDY}"
        )
    return tuple(candidate_of(identity) for identity in checked_identities)


def check_positions(positions: Mapping[str, Sequence[int]], count: int) -> None:
    """Raise ``SettingsError`` if a position in a dumped state is not below the number of candidates.

    Args:
        positions: positions in the list of candidates, by the name of the field that contains them.
        count: number of candidates.

    Raises:
        SettingsError: a position is ``count`` or more; the message names its field.
    """
    for name, positions_in_field in positions.items():
        for position in positions_in_field:
            if position >= count:
                raise SettingsError(
                    f"controller_state/{name}: {position} is not below {count}, the number of candidates; "
                    f"{STATE_REMEDY}"
                )


def state_from_plain(
    state_class: Callable[..., StateT], dumped: Mapping[str, Any], running: Candidate, **not_dumped: Sequence[Any]
) -> StateT:
    """Return a state with a window from the plain values that ``to_plain`` returned.

    Args:
        state_class: class of the state: a dataclass with a field ``window``.
        dumped: state of the controller in a checkpoint.
        running: candidate that runs, whose steps are in the window.
        not_dumped: the field ``candidates`` or ``forecasts`` of the state, by its name. Positions in ``dumped`` are
            indices of its value.
    """
    return from_plain(state_class, {**dumped, **not_dumped, "window": {**dumped["window"], "candidate": running}})


def _check_field_names(path: str, dumped: Any, expected_names: set[str]) -> None:
    """Raise ``SettingsError`` if a dumped dataclass is no dict, or if its keys differ from ``expected_names``.

    Args:
        path: path of the dumped dataclass in the checkpoint, for the error message.
        dumped: the dumped dataclass.
        expected_names: expected keys.
    """
    if not isinstance(dumped, Mapping):
        raise SettingsError(
            f"{path}: {dumped!r:.80} is not a dict with the fields {', '.join(sorted(expected_names))}; {STATE_REMEDY}"
        )
    for name in sorted(expected_names - {*dumped}):
        raise SettingsError(f"{path}/{name}: the entry is missing; {STATE_REMEDY}")
    for name in sorted(map(str, {*dumped} - expected_names)):
        raise SettingsError(f"{path}/{name}: this run expects no such entry; {STATE_REMEDY}")


def _field_names(state_class: Any) -> set[str]:
    """Return the names of the fields of a dataclass that ``to_plain`` dumps; empty for ``None``."""
    return set() if state_class is None else {field.name for field in fields(state_class)} - {*FIELDS_NOT_DUMPED}


@functools.cache
def _type_adapter(data_class: Any) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type, such as a dataclass; the adapter of each type is made once."""
    return TypeAdapter(data_class)
