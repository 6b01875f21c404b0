# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a saved state: the types of its fields, and whether they fit the model.

A state is loaded only if it fits. All fields are checked before the run changes. An error message has the path of the
wrong field: ``residual/layer.3.weight: has 4 elements; it should have 4096``.

To add a field, add a line to a class below. Controllers check their own states (``Controller.check``).
"""

import copy
import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from gravac.averaging.plan import Form
from gravac.candidate import Candidate, Mode
from gravac.compressors import Compressor
from gravac.compressors.dtypes import working
from gravac.measurement import slots
from gravac.settings import STATE_REMEDY, SettingsError
from gravac.telemetry.records import DecisionRecord

LARGEST_COUNT = 2**53
"""Largest count that a state may have: a float represents every integer up to this number exactly."""

LARGEST_SUM_OF_SQUARES = 1e300
"""Largest finite sum of squares that a state may have; a few such sums can be added without overflow."""

FormByName = Mapping[str, Form]
"""Shape, in memory order, and dtype of each parameter of a model, by name; empty if the model is not known yet."""


class Fields(BaseModel):
    """Base class of a state's fields. Each field must have exactly the declared type; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


FieldsT = TypeVar("FieldsT", bound=Fields)


def require_dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor unchanged; raise ``ValueError`` if it is sparse, quantized, or on the meta device."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise ValueError("it should be a dense tensor")
    return tensor


def require_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor unchanged; raise ``ValueError`` unless it is dense, of a floating dtype, and finite."""
    if not require_dense(tensor).is_floating_point():
        raise ValueError("it should be a tensor of floating-point numbers")
    if not (finite_mask := tensor.isfinite()).all():
        raise ValueError(f"{int((~finite_mask).sum())} of its {tensor.numel()} elements are not finite")
    return tensor


def _flat_tensor_check(*dtypes: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a validator for pydantic: a function that gets a tensor, of any shape, and returns it unchanged.

    The validator raises ``ValueError`` unless the tensor is flat, finite, and of one of ``dtypes``.
    """

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in dtypes:
            raise ValueError(f"it should be {' or '.join(_dtype_name(dtype) for dtype in dtypes)}")
        if require_dense(tensor).dim() != 1:
            raise ValueError("it should have one dimension")
        return require_finite(tensor)

    return check


def _check_factor(number: Any) -> Any:
    """Return a compression factor unchanged; raise ``ValueError`` unless it is a finite number above 0.

    An int stays an int, since a name in the state, such as ``"error at 10"``, contains the factor as text. For 10.0 the
    name would be ``"error at 10.0"``.
    """
    if not (is_number(number) and number > 0):
        raise ValueError("it should be a finite number above 0")
    return number


def _check_sum_of_squares(number: float) -> float:
    """Return a sum of squares unchanged; raise ``ValueError`` if the number is negative, or finite and too large."""
    if number < 0 or LARGEST_SUM_OF_SQUARES < number < math.inf:
        raise ValueError(f"it should be a sum of squares, from 0 to {LARGEST_SUM_OF_SQUARES:g}")
    return number


DenseTensor = Annotated[torch.Tensor, AfterValidator(require_dense)]
FiniteTensor = Annotated[torch.Tensor, AfterValidator(require_finite)]
GradientSum = Annotated[torch.Tensor, AfterValidator(_flat_tensor_check(torch.float32, torch.float64))]
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Factor = Annotated[Any, AfterValidator(_check_factor)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
LossScale = Annotated[float, Field(ge=2**-100, le=2**100)]
SumOfSquares = Annotated[float, AfterValidator(_check_sum_of_squares)]


def fields_of(dataclass_type: Any, **narrower_types: Any) -> type[Fields]:
    """Return a subclass of ``Fields`` with the fields of a dataclass, all of them required.

    Args:
        dataclass_type: the dataclass.
        narrower_types: types by field name, which replace those of the dataclass, such as a positive int in place of
            an int.
    """
    type_hints: dict[str, Any] = {**typing.get_type_hints(dataclass_type), **narrower_types}
    field_definitions: dict[str, Any] = {
        field.name: (type_hints[field.name], ...) for field in dataclasses.fields(dataclass_type)
    }
    return create_model(dataclass_type.__name__, __base__=Fields, **field_definitions)


NARROWER_TYPES: dict[str, Any] = {"cf": Factor, "every": PositiveCount, "delay": Count}
CandidateFields: Any = fields_of(Candidate, **NARROWER_TYPES)
DecisionFields: Any = fields_of(DecisionRecord, **NARROWER_TYPES, step=Count)


class FactorsFields(Fields):
    """Compression factors of the newest step, see ``Factors``; ``None`` is dense."""

    cf: Factor | None
    cfs: dict[str, Factor | None]


class PendingFields(Fields):
    """A rank's measurement of a step, which has not yet been summed over the ranks; see ``LocalMeasurement``.

    Attributes:
        numbers: this rank's times, energy (squared norm), errors and other numbers of the step, by the names that
            ``gravac.measurement.slots`` returns; nan if not known.
        norms: squared norm of each parameter's sum of gradients over steps, by parameter name; empty if the controller
            did not request these norms.
    """

    step: Count
    candidate: CandidateFields
    first: Count
    steps: PositiveCount
    shadow: tuple[Factor, ...]
    numbers: dict[str, float]
    norms: dict[str, SumOfSquares]


class TotalsFields(Fields):
    """Total bytes of all steps of a run on one rank, see ``RunTotals``."""

    wire_bytes: Count
    dense_wire_bytes: Count
    norm_bytes: Count


class NativeFields(Fields):
    """State of a stretch: consecutive native steps, which gravac times together.

    Attributes:
        made: number of training steps made in the stretch.
        travels: whether the ranks' times of the previous stretch are being summed, and the sums are not known yet.
        uncounted: whether a step has been made that ``made`` does not include yet.
    """

    made: Count
    travels: bool
    uncounted: bool


class ShardPlaceFields(Fields):
    """Position of a rank's shard within a whole parameter, see ``ShardPlace``."""

    offset: tuple[Count, ...]
    shape: tuple[Count, ...]
    padded_shape: tuple[Count, ...]


class RankState(Fields):
    """A rank's state, as ``AdaptiveCompressor.state_dict`` returns it; see ``RunState`` for fields not listed here.

    Attributes:
        aside: part of each parameter's unsent gradient that the compressor's memory has, not the residual; flat, by
            parameter name.
        outer: state of outer steps, see ``OuterState``; ``None`` in other modes.
        shards: positions of this rank's shards in the whole parameters, by parameter name; ``None`` if each rank has
            whole parameters.
    """

    version: int
    world: PositiveCount | None
    rank: Count | None
    base: str
    controller: str
    controller_state: dict[str, Any] | None
    step: Count
    trained: Count
    loss_scale: LossScale | None
    gain: FiniteFloat | None
    totals: TotalsFields
    candidate: CandidateFields | None
    factors: FactorsFields
    pending: tuple[PendingFields, ...]
    history: tuple[DecisionFields, ...]
    layout: tuple[tuple[str, ...], ...]
    residual: dict[str, GradientSum]
    sums: dict[str, GradientSum]
    memory: dict[str, dict[str, FiniteTensor]]
    aside: dict[str, GradientSum]
    compute_s: Seconds | None
    candidates: tuple[tuple[Mode, str, Factor, PositiveCount, Count], ...]
    native: NativeFields
    outer: dict[str, Any] | None
    shards: dict[str, ShardPlaceFields] | None = None


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
        raise SettingsError(_explain(error, path)) from None
    except RecursionError:
        raise SettingsError(f"{path or 'state'}: is nested too deeply; {STATE_REMEDY}") from None


def validate_rank_state(state: Mapping[str, Any]) -> RankState:
    """Check a rank's state: the types of its fields, and that they do not contradict each other.

    Returns:
        The fields as an object, with tuples in place of lists.

    Raises:
        SettingsError: a field is wrong, or two fields contradict each other.
    """
    fields = validate(RankState, state)
    if (fields.world is None) != (fields.rank is None) or (fields.world and (fields.rank or 0) >= fields.world):
        expected_text = "be None, as world is" if fields.world is None else f"be from 0 to {fields.world - 1}"
        raise misfit("rank", f"is {fields.rank}, while world (the number of ranks) is {fields.world}", expected_text)
    names = [name for group in fields.layout for name in group]
    if len(names) > len(set(names)):
        repeated_name = next(name for name in names if names.count(name) > 1)
        raise misfit("layout", f"has the parameter {repeated_name!r} more than once", "have each parameter once")
    for index, pending in enumerate(fields.pending):
        check_names(f"pending/{index}/numbers", pending.numbers, slots(pending.shadow))
    steps = [pending.step for pending in fields.pending]
    if steps != sorted(set(steps)) or (steps and steps[-1] >= fields.step):
        raise misfit("pending", f"has the steps {steps}", f"have ascending steps before step {fields.step}")
    if fields.controller_state is not None:
        check_plain(fields.controller_state, "controller_state")
    return fields


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
                raise misfit(f"{field_name}/{name}", f"is {_dtype_name(entry.dtype)}", f"be {expected_text}")


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
            raise misfit(f"{path}/{name}", f"is {_dtype_name(tensor.dtype)}", f"be {_dtype_name(current_tensor.dtype)}")
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


def describe(entry: Any) -> str:
    """Return an entry of a state as a short text: dtype and shape of a tensor, else the ``repr``.

    Example:
        >>> describe(torch.zeros(2, 3))
        'float32 of shape (2, 3)'
    """
    if isinstance(entry, torch.Tensor):
        return f"{_dtype_name(entry.dtype)} of shape {shape_of(entry)}"
    if isinstance(entry, (dict, list, tuple)) and len(entry) > 4:
        return f"a {type(entry).__name__} of {len(entry)} entries"
    try:
        text = repr(entry)
    except ValueError:  # an int with more digits than Python converts to text
        text = f"a {type(entry).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def is_number(x: Any) -> bool:
    """True for an int or a float whose absolute value is at most ``LARGEST_SUM_OF_SQUARES``; False for bool and nan."""
    return type(x) in (int, float) and abs(x) <= LARGEST_SUM_OF_SQUARES


def _explain(error: ValidationError, path: str) -> str:
    """Return an error message for a state: path of the first wrong field, what is there, and what should be there.

    Args:
        error: pydantic's error.
        path: path of the checked part within the state; empty for a whole state.
    """
    fault, *further_faults = error.errors(include_url=False)
    location = "/".join(str(key) for key in ([path] if path else []) + [*fault["loc"]]) or "state"
    more_faults_text = f" (and {len(further_faults)} more faults)" if further_faults else ""
    if fault["type"] == "missing":
        return f"{location}: the entry is missing{more_faults_text}; {STATE_REMEDY}"
    if fault["type"] == "extra_forbidden":
        return f"{location}: this run expects no such entry{more_faults_text}; {STATE_REMEDY}"
    expected = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return f"{location}: is {describe(fault['input'])}; {expected}{more_faults_text}; {STATE_REMEDY}"


def misfit(path: str, actual: str, expected: str) -> SettingsError:
    """Return an error that says what a state's entry is, what it should be, and which state to load.

    Args:
        path: path of the entry.
        actual: what the entry is, such as ``"has 4 elements"``.
        expected: what the entry should be, after "it should": ``"have 2048"``.
    """
    return SettingsError(f"{path}: {actual}; it should {expected}; {STATE_REMEDY}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor as a plain tuple, for messages."""
    return tuple(tensor.shape)
