# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a saved state: the types of its fields, and whether they fit the model.

A state is loaded only if it fits. All fields are checked before anything changes, and a refusal has the path of the
field that is wrong: ``residual/layer.3.weight: 4 elements, 4096 expected``.

To add a field, add a line to a class below. Controllers check their own states (``Controller.check``), by the classes
of these states.
"""

import copy
import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""Largest count that a state may have: a float represents every integer up to this one."""

LARGEST_SQUARE = 1e300
"""Largest finite sum of squares that a state may have, so that adding a few such sums does not overflow."""

FormByName = Mapping[str, Form]
"""Shapes, in memory order, and number formats of a model's parameters, by name; empty: the model is not known yet."""


class Fields(BaseModel):
    """Base class of a state's fields. Each field must have exactly its type; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


FieldsT = TypeVar("FieldsT", bound=Fields)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise ValueError("a dense tensor expected")
    return tensor


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    if not _dense(tensor).is_floating_point():
        raise ValueError("a tensor of floating-point numbers expected")
    if not (finite := tensor.isfinite()).all():
        raise ValueError(f"{int((~finite).sum())} of its {tensor.numel()} elements are not finite")
    return tensor


def _flat(*dtypes: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in dtypes:
            raise ValueError(f"{' or '.join(_dtype_name(dtype) for dtype in dtypes)} expected")
        if _dense(tensor).dim() != 1:
            raise ValueError("one dimension expected")
        return _finite(tensor)

    return check


def _factor(number: Any) -> Any:
    """Return a finite number above 0; an int stays an int, since names of measured numbers contain such factors."""
    if not (_is_number(number) and number > 0):
        raise ValueError("a finite number above 0 expected")
    return number


def _square(number: float) -> float:
    if number < 0 or LARGEST_SQUARE < number < math.inf:
        raise ValueError("a sum of squares expected")
    return number


Tensor = Annotated[torch.Tensor, AfterValidator(_dense)]
FiniteTensor = Annotated[torch.Tensor, AfterValidator(_finite)]
Sum = Annotated[torch.Tensor, AfterValidator(_flat(torch.float32, torch.float64))]
Residual = Annotated[torch.Tensor, AfterValidator(_flat(torch.float32, torch.bfloat16, torch.float64))]
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Positive = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Factor = Annotated[Any, AfterValidator(_factor)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
LossScale = Annotated[float, Field(ge=2**-100, le=2**100)]
Square = Annotated[float, AfterValidator(_square)]


def fields_of(kind: Any, **narrower: Any) -> type[Fields]:
    """Return a class of ``Fields`` that has the fields of a dataclass, all of them required.

    Args:
        kind: dataclass.
        narrower: types that replace those of the dataclass, by field name.
    """
    hints: dict[str, Any] = {**typing.get_type_hints(kind), **narrower}
    definitions: dict[str, Any] = {field.name: (hints[field.name], ...) for field in dataclasses.fields(kind)}
    return create_model(kind.__name__, __base__=Fields, **definitions)


FACTORS: dict[str, Any] = {"cf": Factor, "every": Positive, "delay": Count}
CandidateFields: Any = fields_of(Candidate, **FACTORS)
DecisionFields: Any = fields_of(DecisionRecord, **FACTORS, step=Count)


class FactorsFields(Fields):
    """Compression factors of the newest step; ``None`` is dense."""

    cf: Factor | None
    cfs: dict[str, Factor | None]


class PendingFields(Fields):
    """A rank's measurement of a step, which has not yet been summed over the ranks.

    Attributes:
        numbers: numbers by the names of ``slots(shadow)``; nan if not known.
        norms: squared norms of gradient sums, by parameter name.
    """

    step: Count
    candidate: CandidateFields
    first: Count
    steps: Positive
    shadow: tuple[Factor, ...]
    numbers: dict[str, float]
    norms: dict[str, Square]


class TotalsFields(Fields):
    """Totals of all steps of a run on a rank, bytes."""

    wire_bytes: Count
    dense_wire_bytes: Count
    norm_bytes: Count


class NativeFields(Fields):
    """Progress of a stretch of native steps, see ``NativeState``."""

    made: Count
    travels: bool
    uncounted: bool


class RankState(Fields):
    """A rank's state, as ``AdaptiveCompressor.state_dict`` returns it.

    Attributes:
        outer: state of outer steps, see ``OuterState``; ``None`` in other modes.
    """

    version: int
    world: Positive | None
    rank: Count | None
    base: str
    controller: str
    controller_state: dict[str, Any] | None
    step: Count
    trained: Count
    loss_scale: LossScale | None
    gain: Finite | None
    totals: TotalsFields
    candidate: CandidateFields | None
    factors: FactorsFields
    pending: tuple[PendingFields, ...]
    history: tuple[DecisionFields, ...]
    layout: tuple[tuple[str, ...], ...]
    residual: dict[str, Residual]
    sums: dict[str, Sum]
    releasing: dict[str, Sum]
    memory: dict[str, dict[str, FiniteTensor]]
    aside: dict[str, Residual]
    compute_s: Seconds | None
    candidates: tuple[tuple[Mode, str, Factor, Positive, Count], ...]
    native: NativeFields
    outer: dict[str, Any] | None


class SharesState(Fields):
    """Seconds and samples of a step: those of all ranks, as lists by rank, and this rank's own."""

    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    samples: tuple[Seconds, ...]
    own: tuple[Seconds, ...]


class FragmentState(Fields):
    """A fragment between two steps, as ``Fragment.state_dict`` returns it."""

    anchors: dict[str, FiniteTensor]
    own: dict[str, FiniteTensor]
    due: Count | None
    left: dict[str, FiniteTensor]
    keeps: Fraction
    applied: bool


class BuffersState(Fields):
    """Buffers, as ``Buffers.state_dict`` returns them: of any number format; elements may be infinite."""

    anchors: dict[str, Tensor]
    own: dict[str, Tensor]
    keeps: Fraction


class RefusalsState(Fields):
    """A rank's record of exchanges whose mean was not finite, as ``Refusals.state_dict`` returns it.

    Attributes:
        verdicts: number of each round that has not ended, and whether each fragment that arrived was applied.
    """

    skipped: Count
    counted_from: Count
    on_end: tuple[Count, ...]
    refused: tuple[Count, ...]
    verdicts: tuple[tuple[Count, tuple[bool, ...]], ...]


class OuterState(Fields):
    """The state of outer steps, as ``RoundState.dump`` returns it."""

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
    """All ranks' states, as ``gather`` returns them."""

    version: int
    world: Positive
    step: Count
    states: tuple[dict[str, Any], ...]


class Manifest(Fields):
    """Fields of a directory's manifest."""

    version: int
    world: Positive
    step: Count
    folder: Annotated[str, Field(pattern=r"^gravac-step[0-9]+-[0-9a-f]{8}\z")]


def validate(kind: type[FieldsT], state: object, path: str = "") -> FieldsT:
    """Check the types of a state's fields; return the fields, with tuples in place of lists.

    Args:
        kind: fields that the state must have.
        state: state, or an entry of a state.
        path: path of that entry.

    Raises:
        SettingsError: a field is missing, unknown, of another type, or out of range; the message has its path.
    """
    try:
        return kind.model_validate(as_tuples(state))
    except ValidationError as error:
        raise SettingsError(_explain(error, path)) from None


def validate_rank_state(state: Mapping[str, Any]) -> RankState:
    """Check that the fields of a rank's state fit each other; return the fields.

    Raises:
        SettingsError: a field is wrong, or two fields contradict each other.
    """
    fields = validate(RankState, state)
    if (fields.world is None) != (fields.rank is None) or (fields.world and (fields.rank or 0) >= fields.world):
        raise SettingsError(
            f"rank: {fields.rank} of {fields.world} ranks; a number from 0, below that of ranks expected"
        )
    names = [name for group in fields.layout for name in group]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"layout: {twice!r} is in two groups, one expected")
    for index, pending in enumerate(fields.pending):
        check_names(f"pending/{index}/numbers", pending.numbers, slots(pending.shadow))
    steps = [pending.step for pending in fields.pending]
    if steps != sorted(set(steps)) or (steps and steps[-1] >= fields.step):
        raise SettingsError(f"pending: of steps {steps}, ascending ones before step {fields.step} expected")
    if fields.controller_state is not None:
        check_plain(fields.controller_state, "controller_state")
    return fields


def check_fits(fields: Mapping[str, Mapping[str, Any]], forms: FormByName, base: Compressor) -> None:
    """Check that the tensors of a state fit the parameters of the model.

    Args:
        fields: fields of ``RankState`` by name, each with entries by parameter name: residuals, residuals that are
            released, sums, or compressors' memories.
        forms: see ``FormByName``.
        base: compressor that the memories belong to.

    Raises:
        SettingsError: a tensor is of a parameter that the model does not have, or of another shape or number format
            than the parameter.
    """
    if not forms:
        return
    for field, entries in fields.items():
        foreign = sorted(name for name in entries if name not in forms)
        if foreign:
            raise SettingsError(
                f"{field}: the model has no parameter {foreign[0]!r} ({len(foreign)} such in the state); load the "
                "state of this model, or a new one"
            )
        for name, entry in entries.items():
            shape, dtype = forms[name]
            elements = math.prod(shape)
            if field == "memory":
                for key, memory in entry.items():
                    if expected := base.misfit(key, memory, elements):
                        raise SettingsError(f"{field}/{name}/{key}: {describe(memory)}, {expected} expected")
                continue
            if entry.numel() != elements:
                raise SettingsError(f"{field}/{name}: {entry.numel()} elements, {elements} expected")
            is_wide = working(dtype) == torch.float64
            if field != "aside" and is_wide != (entry.dtype == torch.float64):
                expected = "float64" if is_wide else "float32"
                raise SettingsError(f"{field}/{name}: {_dtype_name(entry.dtype)}, {expected} expected")


def check_tensors(
    path: str, tensors: Mapping[str, torch.Tensor], current: Mapping[str, torch.Tensor], subset: bool = False
) -> None:
    """Check that tensors have the current tensors' names and shapes, and are finite wherever these are.

    Args:
        path: path of the tensors in the state.
        tensors: tensors by name.
        current: tensors by name that ``tensors`` are to replace.
        subset: whether names may be missing.

    Raises:
        SettingsError: a name, a shape or a number format differs, or an element is not finite although it currently is.
    """
    check_names(path, tensors, current, subset)
    for name, tensor in tensors.items():
        replaced = current[name]
        if tensor.shape != replaced.shape:
            raise SettingsError(f"{path}/{name}: shape {_shape(tensor)}, {_shape(replaced)} expected")
        if tensor.is_floating_point() != replaced.is_floating_point() or tensor.is_complex() != replaced.is_complex():
            raise SettingsError(f"{path}/{name}: {_dtype_name(tensor.dtype)}, {_dtype_name(replaced.dtype)} expected")
        if tensor.is_floating_point() and (~tensor.isfinite().to(replaced.device) & replaced.isfinite()).any():
            raise SettingsError(f"{path}/{name}: not finite, but it is finite in this run now")


def check_names(path: str, names: Iterable[str], expected: Iterable[str], subset: bool = False) -> None:
    """Check that a state has exactly the expected names.

    Args:
        path: path of the names in the state.
        names: names that the state has.
        expected: names that it should have.
        subset: whether names may be missing.

    Raises:
        SettingsError: a name is missing, or is not expected.
    """
    present = set(names)
    for name in expected:
        if name not in present and not subset:
            raise SettingsError(f"{path}/{name}: it is missing; {STATE_REMEDY}")
    unknown = sorted(present.difference(expected))
    if unknown:
        raise SettingsError(f"{path}/{unknown[0]}: it is unknown here; {STATE_REMEDY}")


LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf")
"""Names of entries in the states of torch's optimizers that are tensors of the parameter's shape."""

REQUIRED: tuple[tuple[type[torch.optim.Optimizer], tuple[str, ...]], ...] = (
    (torch.optim.Adam, ("step", "exp_avg", "exp_avg_sq")),
    (torch.optim.AdamW, ("step", "exp_avg", "exp_avg_sq")),
)
"""Entries that an optimizer's state must have for each parameter of which it has any entry."""


def check_optimizer(path: str, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that a state fits an optimizer: parameter groups, parameters' numbers, settings and shapes.

    Args:
        path: path of the state.
        state: an optimizer's ``state_dict()``.
        optimizer: optimizer that is to load the state.

    Raises:
        SettingsError: the state does not fit.
    """
    check_names(path, state, ("state", "param_groups"), subset=True)
    check_names(path, state, ("state", "param_groups"))
    entries, groups, own_groups = state["state"], state["param_groups"], optimizer.param_groups
    if not isinstance(entries, dict) or not isinstance(groups, (list, tuple)) or len(groups) != len(own_groups):
        raise SettingsError(
            f"{path}/param_groups: {describe(groups)}, {len(own_groups)} groups and their state expected; load "
            "the state of the same optimizer"
        )
    parameters: dict[Any, tuple[torch.Tensor, int]] = {}
    for index, (group, own_group) in enumerate(zip(groups, own_groups, strict=True)):
        group_path = f"{path}/param_groups/{index}"
        if not isinstance(group, dict):
            raise SettingsError(f"{group_path}: {describe(group)}, a dict expected")
        numbers = group.get("params")
        if not isinstance(numbers, (list, tuple)) or len(numbers) != len(own_group["params"]):
            raise SettingsError(
                f"{group_path}/params: {describe(numbers)}, {len(own_group['params'])} numbers expected; load "
                "the state of the same optimizer"
            )
        if any(type(number) is not int or number in parameters for number in numbers):
            raise SettingsError(f"{group_path}/params: {describe(numbers)}, numbers of parameters expected, each once")
        parameters |= dict(zip(numbers, ((parameter, index) for parameter in own_group["params"]), strict=True))
        for name in optimizer.defaults:
            if name not in group:
                raise SettingsError(f"{group_path}/{name}: it is missing")
        for name, setting in group.items():
            if name in own_group and name != "params":
                _check_setting(f"{group_path}/{name}", setting, own_group[name])
            if name == "capturable" and setting and any(parameter.is_cpu for parameter in own_group["params"]):
                raise SettingsError(f"{group_path}/{name}: {describe(setting)}, which torch refuses for CPU parameters")
            if name == "betas" and not all(0 <= beta < 1 for beta in setting):
                raise SettingsError(f"{group_path}/{name}: {describe(setting)}, numbers from 0 and below 1 expected")
    keys: dict[int, set[str]] = {}
    kinds = [kind for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer]
    is_of_torch = any(kind.__module__.startswith("torch.optim.") for kind in kinds)
    for number, entry in entries.items():
        entry_path = f"{path}/state/{number}"
        if number not in parameters or type(number) is not int or not isinstance(entry, dict):
            raise SettingsError(
                f"{entry_path}: {describe(entry)}, a dict for one of {len(parameters)} parameters expected"
            )
        parameter, group_number = parameters[number]
        for name, memory in entry.items():
            _check_memory(f"{entry_path}/{name}", name, memory, parameter if is_of_torch else None)
        required = next((names for kind, names in REQUIRED if isinstance(optimizer, kind)), ())
        if groups[group_number].get("amsgrad") and required:
            required = (*required, "max_exp_avg_sq")
        if entry and required:
            check_names(
                entry_path,
                entry.keys() & {*keys.setdefault(group_number, {*entry}), *required},
                {*keys[group_number], *required},
            )
            check_names(entry_path, entry, keys[group_number])


def _check_memory(path: str, name: str, memory: Any, parameter: torch.Tensor | None) -> None:
    """Check one entry of an optimizer's state of a parameter.

    Args:
        path: path of the entry in the state.
        name: the entry's name, such as ``"exp_avg"``.
        memory: the entry: a tensor or a plain value.
        parameter: the parameter; ``None``: the optimizer is not one of torch's, so the expected shape is not known.

    Raises:
        SettingsError: the entry is not finite, or its type or shape is not that of entries of this name.
    """
    if not isinstance(memory, torch.Tensor):
        if name == "step" and not (_is_number(memory) and memory >= 0):
            raise SettingsError(f"{path}: {describe(memory)}, a number of steps expected")
        if name in LIKE_PARAMETER and memory is not None:
            raise SettingsError(f"{path}: {describe(memory)}, a tensor expected")
        if isinstance(memory, float) and math.isnan(memory):
            raise SettingsError(f"{path}: nan, a number expected")
        return
    try:
        _dense(memory)
        if name in LIKE_PARAMETER or name == "step" or memory.is_floating_point():
            _finite(memory)
    except ValueError as error:
        raise SettingsError(f"{path}: {describe(memory)}, {error}") from None
    if parameter is not None and name in LIKE_PARAMETER and memory.shape != parameter.shape:
        raise SettingsError(f"{path}: shape {_shape(memory)}, {_shape(parameter)} expected")
    if name == "step" and (memory.numel() != 1 or float(memory) < 0):
        raise SettingsError(f"{path}: {describe(memory)}, a number of steps expected")


def _check_setting(path: str, setting: Any, own_setting: Any) -> None:
    """Check that a saved setting of an optimizer has the type of the optimizer's own setting, and a possible value.

    A number must be finite, and must not be negative unless the optimizer's own number is.

    Raises:
        SettingsError: the setting does not fit.
    """
    fits = True
    if _is_number(own_setting) and not isinstance(setting, torch.Tensor):
        fits = (
            _is_number(setting)
            and (setting >= 0 or own_setting < 0)
            and (isinstance(setting, float) or abs(setting) <= LARGEST_COUNT)
        )
    elif isinstance(own_setting, (bool, str)):
        fits = type(setting) is type(own_setting) or setting is None
    elif isinstance(own_setting, (tuple, list)):
        fits = isinstance(setting, (tuple, list)) and len(setting) == len(own_setting)
        for index, (element, own_element) in enumerate(zip(setting if fits else (), own_setting, strict=False)):
            _check_setting(f"{path}/{index}", element, own_element)
    if isinstance(setting, torch.Tensor):
        fits = (
            (_is_number(own_setting) or isinstance(own_setting, torch.Tensor))
            and setting.numel() == 1
            and bool(setting.isfinite().all())
        )
    if not fits:
        raise SettingsError(f"{path}: {describe(setting)}, one like {describe(own_setting)} expected")


def check_plain(state: Any, path: str) -> None:
    """Check that a state has only dicts with text as keys, lists, tuples, text, bools, ``None`` and finite numbers.

    Args:
        state: state, or an entry of a state.
        path: path of that entry.

    Raises:
        SettingsError: an entry or a key has another type, or a number is not finite.
    """
    if isinstance(state, dict):
        for key, entry in state.items():
            if not isinstance(key, str):
                raise SettingsError(f"{path}/{key}: {describe(key)} is a key, a word expected")
            check_plain(entry, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for index, entry in enumerate(state):
            check_plain(entry, f"{path}/{index}")
    elif not (state is None or isinstance(state, (str, bool)) or _is_number(state)):
        raise SettingsError(f"{path}: {describe(state)}, a plain and finite value expected")


def as_tuples(state: Any) -> Any:
    """Return a state with a tuple in place of each list."""
    if isinstance(state, dict):
        return {key: as_tuples(entry) for key, entry in state.items()}
    return tuple(map(as_tuples, state)) if isinstance(state, (list, tuple)) else state


def copy_state(state: Any) -> Any:
    """Return a state with copies of its tensors, which no longer refer to the file that the state was read from."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copy_state(entry) for key, entry in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(copy_state(entry) for entry in state)
    return copy.copy(state)


def describe(entry: Any) -> str:
    """Return a short description of an entry of a state: number format and shape of a tensor, else its ``repr``.

    Example:
        >>> describe(torch.zeros(2, 3))
        'float32 of shape (2, 3)'
    """
    if isinstance(entry, torch.Tensor):
        return f"{_dtype_name(entry.dtype)} of shape {_shape(entry)}"
    if isinstance(entry, (dict, list, tuple)) and len(entry) > 4:
        return f"a {type(entry).__name__} of {len(entry)}"
    try:
        text = repr(entry)
    except ValueError:  # an int of more digits than Python writes
        text = f"a {type(entry).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_number(x: Any) -> bool:
    return type(x) in (int, float) and abs(x) <= LARGEST_SQUARE


def _explain(error: ValidationError, path: str) -> str:
    """Return an error message: the path of the first wrong field, its content, and what is expected."""
    fault, *others = error.errors(include_url=False)
    location = "/".join(str(key) for key in ([path] if path else []) + [*fault["loc"]]) or "state"
    more = f" (and {len(others)} more)" if others else ""
    if fault["type"] == "missing":
        return f"{location}: it is missing{more}; {STATE_REMEDY}"
    if fault["type"] == "extra_forbidden":
        return f"{location}: it is unknown here{more}; {STATE_REMEDY}"
    expected = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return f"{location}: {describe(fault['input'])}, {expected}{more}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor) -> Sequence[int]:
    return tuple(tensor.shape)
