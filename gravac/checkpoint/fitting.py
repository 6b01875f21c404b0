# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that the tensors of a saved state fit the model, and the types of the state of outer steps.

A state is loaded only if it fits. All fields are checked before the run changes. An error message has the path of the
wrong field: ``residual/layer.3.weight: has 4 elements; it should have 4096``. ``gravac.saved`` checks the types of a
state's other fields. Controllers check their own states (``Controller.check``).
"""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gravac.averaging.plan import Form
from gravac.compressors import Compressor
from gravac.compressors.dtypes import working
from gravac.ranges import LARGEST_SUM_OF_SQUARES, Count, Fraction, PositiveCount, Seconds
from gravac.saved import DenseTensor, FiniteTensor, describe, dtype_name, explain, misfit, shape_of
from gravac.settings import STATE_REMEDY, SettingsError

FormByName = Mapping[str, Form]
"""Shape, in memory order, and dtype of each parameter of a model, by name; empty if the model is not known yet."""


class Fields(BaseModel):
    """Base class of a state's fields. Each field must have exactly the declared type; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


FieldsT = TypeVar("FieldsT", bound=Fields)


class SharesState(Fields):
    """Speeds of the ranks in outer steps, as ``Shares.state_dict`` returns them.

    Attributes:
        seconds: seconds that a step takes on each rank, by rank; empty if not known yet.
        samples: samples that a step uses on each rank, by rank; empty if not known yet.
        own: this rank's seconds (median of the last round) and samples of a step; empty before the first round ends.
    """

    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    samples: tuple[Seconds, ...]
    own: tuple[Seconds, ...]


class FragmentState(Fields):
    """State of a fragment (a part of the model that is exchanged by itself) in outer steps.

    ``Fragment.state_dict`` returns this state.

    Attributes:
        anchors: weights after the last exchange, the same on all ranks, by parameter name.
        own: this rank's weights, by parameter name.
        due: earliest step of this rank, by number, at which it applies the anchors to its weights; ``None``: nothing is
            to be applied.
        left: this rank's weights when its pseudo-gradient was sent, by parameter name; may be empty.
        keeps: k, in [0, 1): when the rank applies the anchors, its weights become k * weights + (1 - k) * anchors.
        applied: whether the newest mean of pseudo-gradients was applied to the anchors.
    """

    anchors: dict[str, FiniteTensor]
    own: dict[str, FiniteTensor]
    due: Count | None
    left: dict[str, FiniteTensor]
    keeps: Fraction
    applied: bool


class BuffersState(Fields):
    """State of a model's buffers in outer steps, as ``Buffers.state_dict`` returns it.

    Attributes:
        anchors: buffers after the last exchange, the same on all ranks, by name, of any dtype; elements need
            not be finite.
        own: this rank's buffers, by name, of any dtype; elements need not be finite.
        keeps: k, in [0, 1): when the rank applies the anchors, its buffers become k * buffers + (1 - k) * anchors.
    """

    anchors: dict[str, DenseTensor]
    own: dict[str, DenseTensor]
    keeps: Fraction


class RefusalsState(Fields):
    """A rank's record of exchanges in outer steps whose mean was not finite, and was not applied.

    ``Refusals.state_dict`` returns this state.

    Attributes:
        skipped: number of exchanges so far whose mean was not applied.
        counted_from: number of the first round that may appear in ``on_end``: 0, or the round in which gravac last
            raised an error because ``on_end`` was too long.
        on_end: numbers of the newest consecutive rounds in which no mean was applied.
        refused: numbers of the newest few rounds in which at least one mean was not applied.
        verdicts: an entry ``(round, applied)`` for each round that has not been counted yet. ``round`` is the round's
            number; ``applied`` has a bool for each mean that has arrived: whether the mean was applied.
    """

    skipped: Count
    counted_from: Count
    on_end: tuple[Count, ...]
    refused: tuple[Count, ...]
    verdicts: tuple[tuple[Count, tuple[bool, ...]], ...]


class OuterState(Fields):
    """The state of outer steps, as ``RoundState.dump`` returns it; ``RoundState`` explains the fields."""

    phase: Literal["timing", "undecided", "decided"]
    ended: Count
    steps: Count
    in_round: Count
    every: Count
    delay: Count
    shares: SharesState | None
    fragments: tuple[FragmentState, ...]
    buffers: BuffersState
    optimizer: dict[str, Any]
    inner: tuple[dict[str, Any], ...]
    refusals: RefusalsState


class GatheredStates(Fields):
    """The states of all ranks in one dict, as ``gather`` returns them."""

    version: int
    world: PositiveCount
    step: Count
    states: tuple[dict[str, Any], ...]


class Manifest(Fields):
    """Fields of a checkpoint directory's manifest, the file that names the newest checkpoint's folder.

    Attributes:
        sha256: SHA-256 of each rank's file, in hexadecimal, in the order of the ranks.
    """

    version: int
    world: PositiveCount
    step: Count
    folder: Annotated[str, Field(pattern=r"^gravac-step[0-9]+-[0-9a-f]{8}\z")]
    sha256: tuple[str, ...]


def validate(fields_class: type[FieldsT], state: object, path: str = "") -> FieldsT:
    """Check the types of a state's fields; return the fields as an object, with tuples in place of lists.

    Args:
        fields_class: class with the fields that the state must have.
        state: a whole state, or a part of a state.
        path: path of that part within the state, for messages; empty for a whole state.

    Raises:
        SettingsError: a field is missing, unknown, of another type, or out of range; the message has the field's path.
    """
    try:
        return fields_class.model_validate(as_tuples(state))
    except ValidationError as error:
        raise SettingsError(explain(error, path)) from None
    except RecursionError:
        raise SettingsError(f"{path or 'state'}: is nested too deeply; {STATE_REMEDY}") from None


def check_fits(fields: Mapping[str, Mapping[str, Any]], forms: FormByName, base: Compressor) -> None:
    """Check that the tensors of a state fit the parameters of the model.

    Args:
        fields: the fields ``residual``, ``sums``, ``aside`` or ``memory`` of a state; each is a dict by
            parameter name.
        forms: shape (dimensions in memory order) and dtype of each parameter, by name; empty: nothing is checked.
        base: compressor that will use the tensors in ``memory``.

    Raises:
        SettingsError: a tensor is of a parameter that the model does not have, or has another number of elements or
            another dtype than the model needs.
    """
    if not forms:
        return
    for field_name, entries in fields.items():
        foreign_names = sorted(name for name in entries if name not in forms)
        if foreign_names:
            raise SettingsError(
                f"{field_name}: the model has no parameter {foreign_names[0]!r} ({len(foreign_names)} such names in "
                "the state); load a state of this model"
            )
        for name, entry in entries.items():
            shape, dtype = forms[name]
            elements = math.prod(shape)
            if field_name == "memory":
                for key, memory in entry.items():
                    if expected_text := base.misfit(key, memory, elements):
                        raise misfit(f"{field_name}/{name}/{key}", f"is {describe(memory)}", f"have {expected_text}")
                continue
            if entry.numel() != elements:
                raise misfit(f"{field_name}/{name}", f"has {entry.numel()} elements", f"have {elements}")
            is_wide = working(dtype) == torch.float64
            if field_name != "aside" and is_wide != (entry.dtype == torch.float64):
                expected_text = "float64" if is_wide else "float32"
                raise misfit(f"{field_name}/{name}", f"is {dtype_name(entry.dtype)}", f"be {expected_text}")


def check_tensors(
    path: str,
    tensors: Mapping[str, torch.Tensor],
    current: Mapping[str, torch.Tensor],
    may_lack_names: bool = False,
    may_be_infinite: bool = False,
) -> None:
    """Check that saved tensors can replace current ones: same names and shapes, and finite if the current ones are.

    Args:
        path: path of the tensors within the state, for messages.
        tensors: the saved tensors, by name.
        current: the tensors that the saved ones will replace, by name.
        may_lack_names: whether ``tensors`` may lack names of ``current``.
        may_be_infinite: whether saved tensors may have elements that are not finite, as buffers may.

    Raises:
        SettingsError: a name, a shape or a kind of number differs; or a saved tensor has elements that are not finite,
            but the current tensor is finite.
    """
    check_names(path, tensors, current, may_lack_names)
    for name, tensor in tensors.items():
        current_tensor = current[name]
        if tensor.shape != current_tensor.shape:
            raise misfit(f"{path}/{name}", f"has shape {shape_of(tensor)}", f"have {shape_of(current_tensor)}")
        if (
            tensor.is_floating_point() != current_tensor.is_floating_point()
            or tensor.is_complex() != current_tensor.is_complex()
        ):
            raise misfit(f"{path}/{name}", f"is {dtype_name(tensor.dtype)}", f"be {dtype_name(current_tensor.dtype)}")
        if (
            not may_be_infinite
            and tensor.is_floating_point()
            and (~tensor.isfinite().to(current_tensor.device) & current_tensor.isfinite()).any()
        ):
            raise misfit(f"{path}/{name}", "has elements that are not finite", "be finite, as it is in this run")


def check_names(path: str, names: Iterable[str], expected_names: Iterable[str], may_lack_names: bool = False) -> None:
    """Check that a part of a state has exactly the expected names.

    Args:
        path: path of that part within the state, for messages.
        names: names that the part has.
        expected_names: names that the part should have.
        may_lack_names: whether expected names may be missing.

    Raises:
        SettingsError: a name is missing, or is not expected.
    """
    present_names = set(names)
    for name in expected_names:
        if name not in present_names and not may_lack_names:
            raise SettingsError(f"{path}/{name}: the entry is missing; {STATE_REMEDY}")
    unknown_names = sorted(present_names.difference(expected_names))
    if unknown_names:
        raise SettingsError(f"{path}/{unknown_names[0]}: this run expects no such entry; {STATE_REMEDY}")


def check_plain(state: Any, path: str) -> None:
    """Check that a state has only dicts with text as keys, lists, tuples, text, bools, ``None`` and finite numbers.

    Args:
        state: a whole state, or a part of a state.
        path: path of that part within the state, for messages.

    Raises:
        SettingsError: a part or a key has another type, or a number is not finite.
    """
    if isinstance(state, dict):
        for key, entry in state.items():
            if not isinstance(key, str):
                raise misfit(path, f"has the key {describe(key)}", "have only texts as keys")
            check_plain(entry, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for index, entry in enumerate(state):
            check_plain(entry, f"{path}/{index}")
    elif not (state is None or isinstance(state, (str, bool)) or is_number(state)):
        raise misfit(path, f"is {describe(state)}", "be a dict, list, text, bool, None or finite number")


def as_tuples(state: Any) -> Any:
    """Return a state with tuples in place of lists, at every depth."""
    if isinstance(state, dict):
        return {key: as_tuples(entry) for key, entry in state.items()}
    return tuple(map(as_tuples, state)) if isinstance(state, (list, tuple)) else state


def copy_state(state: Any) -> Any:
    """Return a deep copy of a state; tensors that were mapped from a file are read into memory."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copy_state(entry) for key, entry in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(copy_state(entry) for entry in state)
    return copy.copy(state)


def is_number(x: Any) -> bool:
    """True for an int or a float whose absolute value is at most ``LARGEST_SUM_OF_SQUARES``; False for bool and nan."""
    return type(x) in (int, float) and abs(x) <= LARGEST_SUM_OF_SQUARES
