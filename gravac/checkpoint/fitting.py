# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of a saved state: the types of its fields, and whether they fit the model.

A state is loaded only if it fits. All fields are checked before anything changes, and the error has the path of the
field that is wrong: ``residual/layer.3.weight: has 4 elements; it should have 4096``.

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
"""Largest count that a state may have: a float represents every integer up to this number exactly."""

LARGEST_SQUARE = 1e300
"""Largest finite sum of squares that a state may have; a few such sums can be added without overflow."""

FormByName = Mapping[str, Form]
"""Shape, in memory order, and dtype of each parameter of a model, by name; empty if the model is not known yet."""


class Fields(BaseModel):
    """Base class of a state's fields. Contents must have exactly the field's type; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


FieldsT = TypeVar("FieldsT", bound=Fields)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor; raise ``ValueError`` if it is sparse, quantized or without memory."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise ValueError("it should be a dense tensor")
    return tensor


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor; raise ``ValueError`` unless it is a dense tensor of finite floating-point numbers."""
    if not _dense(tensor).is_floating_point():
        raise ValueError("it should be a tensor of floating-point numbers")
    if not (finite := tensor.isfinite()).all():
        raise ValueError(f"{int((~finite).sum())} of its {tensor.numel()} elements are not finite")
    return tensor


def _flat(*dtypes: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that returns its tensor, but raises unless it is finite, flat and of one of the dtypes."""

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in dtypes:
            raise ValueError(f"it should be {' or '.join(_dtype_name(dtype) for dtype in dtypes)}")
        if _dense(tensor).dim() != 1:
            raise ValueError("it should have one dimension")
        return _finite(tensor)

    return check


def _factor(number: Any) -> Any:
    """Return a finite number above 0, or raise ``ValueError``; an int stays an int: names contain its text."""
    if not (_is_number(number) and number > 0):
        raise ValueError("it should be a finite number above 0")
    return number


def _square(number: float) -> float:
    """Return a sum of squares, which may be infinite or nan; raise ``ValueError`` if the number cannot be one."""
    if number < 0 or LARGEST_SQUARE < number < math.inf:
        raise ValueError(f"it should be a sum of squares, from 0 to {LARGEST_SQUARE:g}")
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
        kind: the dataclass.
        narrower: types by field name, which replace those of the dataclass.
    """
    hints: dict[str, Any] = {**typing.get_type_hints(kind), **narrower}
    definitions: dict[str, Any] = {field.name: (hints[field.name], ...) for field in dataclasses.fields(kind)}
    return create_model(kind.__name__, __base__=Fields, **definitions)


NARROWER: dict[str, Any] = {"cf": Factor, "every": Positive, "delay": Count}
CandidateFields: Any = fields_of(Candidate, **NARROWER)
DecisionFields: Any = fields_of(DecisionRecord, **NARROWER, step=Count)


class FactorsFields(Fields):
    """Compression factors of the newest step, see ``Factors``; ``None`` is dense."""

    cf: Factor | None
    cfs: dict[str, Factor | None]


class PendingFields(Fields):
    """A rank's measurement of a step, which has not yet been summed over the ranks.

    Attributes:
        numbers: numbers by the names that ``slots(shadow)`` returns; nan if not known.
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
    """Bytes of all steps of a run on a rank, see ``RunTotals``."""

    wire_bytes: Count
    dense_wire_bytes: Count
    norm_bytes: Count


class NativeFields(Fields):
    """State of successive native steps (a stretch), see ``NativeState``."""

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
    """State of a fragment (part of the model) in outer steps, as ``Fragment.state_dict`` returns it."""

    anchors: dict[str, FiniteTensor]
    own: dict[str, FiniteTensor]
    due: Count | None
    left: dict[str, FiniteTensor]
    keeps: Fraction
    applied: bool


class BuffersState(Fields):
    """State of a model's buffers, as ``Buffers.state_dict`` returns it: of any dtype; elements may be infinite."""

    anchors: dict[str, Tensor]
    own: dict[str, Tensor]
    keeps: Fraction


class RefusalsState(Fields):
    """A rank's record of exchanges whose mean was not finite, as ``Refusals.state_dict`` returns it.

    Attributes:
        verdicts: number of each round that has not ended, and for each fragment that arrived, whether its mean was
            applied.
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
    """Check the types of a state's fields; return the fields as an object, with tuples in place of lists.

    Args:
        kind: class with the fields that the state must have.
        state: state, or an entry of a state.
        path: path of that entry, for messages; empty for a whole state.

    Raises:
        SettingsError: a field is missing, unknown, of another type, or out of range; the message has its path.
    """
    try:
        return kind.model_validate(as_tuples(state))
    except ValidationError as error:
        raise SettingsError(_explain(error, path)) from None


def validate_rank_state(state: Mapping[str, Any]) -> RankState:
    """Check the types of a rank's state, and that its fields fit each other; return the fields as an object.

    Raises:
        SettingsError: a field is wrong, or two fields contradict each other.
    """
    fields = validate(RankState, state)
    if (fields.world is None) != (fields.rank is None) or (fields.world and (fields.rank or 0) >= fields.world):
        raise _misfit(
            "rank", f"is {fields.rank} of {fields.world} ranks", "be 0 or more, and below the number of ranks"
        )
    names = [name for group in fields.layout for name in group]
    if len(names) > len(set(names)):
        repeated_name = next(name for name in names if names.count(name) > 1)
        raise _misfit("layout", f"has {repeated_name!r} in two groups", "have each name in one group")
    for index, pending in enumerate(fields.pending):
        check_names(f"pending/{index}/numbers", pending.numbers, slots(pending.shadow))
    steps = [pending.step for pending in fields.pending]
    if steps != sorted(set(steps)) or (steps and steps[-1] >= fields.step):
        raise _misfit("pending", f"is of steps {steps}", f"be of ascending steps before step {fields.step}")
    if fields.controller_state is not None:
        check_plain(fields.controller_state, "controller_state")
    return fields


def check_fits(fields: Mapping[str, Mapping[str, Any]], forms: FormByName, base: Compressor) -> None:
    """Check that the tensors of a state fit the parameters of the model.

    Args:
        fields: the fields ``residual``, ``releasing``, ``sums``, ``aside`` or ``memory`` of a state, each with entries
            by parameter name.
        forms: see ``FormByName``.
        base: compressor that the memories belong to.

    Raises:
        SettingsError: a tensor belongs to a parameter that the model does not have, or has another number of elements
            or another dtype than the model needs.
    """
    if not forms:
        return
    for field, entries in fields.items():
        foreign_names = sorted(name for name in entries if name not in forms)
        if foreign_names:
            raise SettingsError(
                f"{field}: the model has no parameter {foreign_names[0]!r} ({len(foreign_names)} such names in the "
                "state); load a state of this model"
            )
        for name, entry in entries.items():
            shape, dtype = forms[name]
            elements = math.prod(shape)
            if field == "memory":
                for key, memory in entry.items():
                    if expected := base.misfit(key, memory, elements):
                        raise _misfit(f"{field}/{name}/{key}", f"is {describe(memory)}", f"have {expected}")
                continue
            if entry.numel() != elements:
                raise _misfit(f"{field}/{name}", f"has {entry.numel()} elements", f"have {elements}")
            is_wide = working(dtype) == torch.float64
            if field != "aside" and is_wide != (entry.dtype == torch.float64):
                expected = "float64" if is_wide else "float32"
                raise _misfit(f"{field}/{name}", f"is {_dtype_name(entry.dtype)}", f"be {expected}")


def check_tensors(
    path: str, tensors: Mapping[str, torch.Tensor], current: Mapping[str, torch.Tensor], subset: bool = False
) -> None:
    """Check that a state's tensors have the current tensors' names and shapes, and are finite where these are.

    Args:
        path: path of the tensors in the state.
        tensors: the state's tensors by name.
        current: tensors by name, which ``tensors`` are to replace.
        subset: whether names of ``current`` may be missing in ``tensors``.

    Raises:
        SettingsError: a name, a shape or a number format differs, or an element is not finite although it currently is.
    """
    check_names(path, tensors, current, subset)
    for name, tensor in tensors.items():
        current_tensor = current[name]
        if tensor.shape != current_tensor.shape:
            raise _misfit(f"{path}/{name}", f"has shape {_shape(tensor)}", f"have {_shape(current_tensor)}")
        if (
            tensor.is_floating_point() != current_tensor.is_floating_point()
            or tensor.is_complex() != current_tensor.is_complex()
        ):
            raise _misfit(
                f"{path}/{name}", f"is {_dtype_name(tensor.dtype)}", f"be {_dtype_name(current_tensor.dtype)}"
            )
        if (
            tensor.is_floating_point()
            and (~tensor.isfinite().to(current_tensor.device) & current_tensor.isfinite()).any()
        ):
            raise _misfit(f"{path}/{name}", "has elements that are not finite", "be finite, as it is in this run")


def check_names(path: str, names: Iterable[str], expected: Iterable[str], subset: bool = False) -> None:
    """Check that a state has exactly the expected names.

    Args:
        path: path of the names in the state.
        names: names that the state has.
        expected: names that the state should have.
        subset: whether expected names may be missing.

    Raises:
        SettingsError: a name is missing, or is not expected.
    """
    present_names = set(names)
    for name in expected:
        if name not in present_names and not subset:
            raise SettingsError(f"{path}/{name}: it is missing; {STATE_REMEDY}")
    unknown_names = sorted(present_names.difference(expected))
    if unknown_names:
        raise SettingsError(f"{path}/{unknown_names[0]}: this run expects no such entry; {STATE_REMEDY}")


PARAMETER_SHAPED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf")
"""Names of a torch optimizer's state entries that are tensors of the parameter's shape."""

REQUIRED_ENTRIES: tuple[tuple[type[torch.optim.Optimizer], tuple[str, ...]], ...] = (
    (torch.optim.Adam, ("step", "exp_avg", "exp_avg_sq")),
    (torch.optim.AdamW, ("step", "exp_avg", "exp_avg_sq")),
)
"""Names of entries that an optimizer's state must have for a parameter, if it has any entry for the parameter."""


def check_optimizer(path: str, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that a state fits an optimizer: parameter groups, parameters' numbers, settings and shapes.

    Args:
        path: path of the optimizer's state in the rank's state.
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
            f"{path}/param_groups: is {describe(groups)}; it should have {len(own_groups)} groups, beside their state; "
            "load the state of the same optimizer"
        )
    parameters: dict[Any, tuple[torch.Tensor, int]] = {}
    for index, (group, own_group) in enumerate(zip(groups, own_groups, strict=True)):
        group_path = f"{path}/param_groups/{index}"
        if not isinstance(group, dict):
            raise _misfit(group_path, f"is {describe(group)}", "be a dict")
        numbers = group.get("params")
        if not isinstance(numbers, (list, tuple)) or len(numbers) != len(own_group["params"]):
            raise SettingsError(
                f"{group_path}/params: is {describe(numbers)}; it should have {len(own_group['params'])} numbers; "
                "load the state of the same optimizer"
            )
        distinct = [number for number in numbers if type(number) is int and number not in parameters]
        if len({*distinct}) < len(numbers):
            raise _misfit(
                f"{group_path}/params", f"is {describe(numbers)}", "have a different integer for each parameter"
            )
        parameters |= dict(zip(numbers, ((parameter, index) for parameter in own_group["params"]), strict=True))
        for name in optimizer.defaults:
            if name not in group:
                raise SettingsError(f"{group_path}/{name}: it is missing; {STATE_REMEDY}")
        for name, setting in group.items():
            if name in own_group and name != "params":
                _check_setting(f"{group_path}/{name}", setting, own_group[name])
            if name == "capturable" and setting and any(parameter.is_cpu for parameter in own_group["params"]):
                raise _misfit(f"{group_path}/{name}", f"is {describe(setting)}", "be False for CPU parameters")
            if name == "betas" and not all(0 <= beta < 1 for beta in setting):
                raise _misfit(f"{group_path}/{name}", f"is {describe(setting)}", "have numbers from 0 and below 1")
    names_by_group: dict[int, set[str]] = {}
    optimizer_classes = [kind for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer]
    is_of_torch = any(kind.__module__.startswith("torch.optim.") for kind in optimizer_classes)
    for number, entry in entries.items():
        entry_path = f"{path}/state/{number}"
        if number not in parameters or type(number) is not int or not isinstance(entry, dict):
            raise SettingsError(
                f"{entry_path}: is {describe(entry)}; it should be a dict, for the number of one of {len(parameters)} "
                f"parameters; {STATE_REMEDY}"
            )
        parameter, group_number = parameters[number]
        for name, memory in entry.items():
            _check_memory(f"{entry_path}/{name}", name, memory, parameter if is_of_torch else None)
        required_names = next((names for kind, names in REQUIRED_ENTRIES if isinstance(optimizer, kind)), ())
        if groups[group_number].get("amsgrad") and required_names:
            required_names = (*required_names, "max_exp_avg_sq")
        if entry and required_names:
            check_names(
                entry_path,
                entry.keys() & {*names_by_group.setdefault(group_number, {*entry}), *required_names},
                {*names_by_group[group_number], *required_names},
            )
            check_names(entry_path, entry, names_by_group[group_number])


def _check_memory(path: str, name: str, memory: Any, parameter: torch.Tensor | None) -> None:
    """Check one entry of the state that an optimizer keeps for a parameter.

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
            raise _misfit(path, f"is {describe(memory)}", "be a number of steps")
        if name in PARAMETER_SHAPED and memory is not None:
            raise _misfit(path, f"is {describe(memory)}", "be a tensor")
        if isinstance(memory, float) and math.isnan(memory):
            raise _misfit(path, "is nan", "be a number")
        return
    try:
        _dense(memory)
        if name in PARAMETER_SHAPED or name == "step" or memory.is_floating_point():
            _finite(memory)
    except ValueError as error:
        raise SettingsError(f"{path}: is {describe(memory)}; {error}; {STATE_REMEDY}") from None
    if parameter is not None and name in PARAMETER_SHAPED and memory.shape != parameter.shape:
        raise _misfit(path, f"has shape {_shape(memory)}", f"have {_shape(parameter)}")
    if name == "step" and (memory.numel() != 1 or float(memory) < 0):
        raise _misfit(path, f"is {describe(memory)}", "be a number of steps")


def _check_setting(path: str, setting: Any, own_setting: Any) -> None:
    """Check that a saved setting of an optimizer has the type of the optimizer's present setting.

    A number must be finite, and must not be negative unless the optimizer's present number is.

    Raises:
        SettingsError: the setting does not fit.
    """
    is_fit = True
    if _is_number(own_setting) and not isinstance(setting, torch.Tensor):
        is_fit = (
            _is_number(setting)
            and (setting >= 0 or own_setting < 0)
            and (isinstance(setting, float) or abs(setting) <= LARGEST_COUNT)
        )
    elif isinstance(own_setting, (bool, str)):
        is_fit = type(setting) is type(own_setting) or setting is None
    elif isinstance(own_setting, (tuple, list)):
        is_fit = isinstance(setting, (tuple, list)) and len(setting) == len(own_setting)
        for index, (element, own_element) in enumerate(zip(setting if is_fit else (), own_setting, strict=False)):
            _check_setting(f"{path}/{index}", element, own_element)
    if isinstance(setting, torch.Tensor):
        is_fit = (
            (_is_number(own_setting) or isinstance(own_setting, torch.Tensor))
            and setting.numel() == 1
            and bool(setting.isfinite().all())
        )
    if not is_fit:
        raise _misfit(
            path, f"is {describe(setting)}", f"be a setting like the optimizer's own, {describe(own_setting)}"
        )


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
                raise _misfit(f"{path}/{key}", f"has the key {describe(key)}", "have a text as key")
            check_plain(entry, f"{path}/{key}")
    elif isinstance(state, (list, tuple)):
        for index, entry in enumerate(state):
            check_plain(entry, f"{path}/{index}")
    elif not (state is None or isinstance(state, (str, bool)) or _is_number(state)):
        raise _misfit(path, f"is {describe(state)}", "be a dict, list, text, bool, None or finite number")


def as_tuples(state: Any) -> Any:
    """Return a state with a tuple in place of each list."""
    if isinstance(state, dict):
        return {key: as_tuples(entry) for key, entry in state.items()}
    return tuple(map(as_tuples, state)) if isinstance(state, (list, tuple)) else state


def copy_state(state: Any) -> Any:
    """Return a copy of a state; its tensors no longer refer to the file that the state was read from."""
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
    fault, *further_faults = error.errors(include_url=False)
    location = "/".join(str(key) for key in ([path] if path else []) + [*fault["loc"]]) or "state"
    more_faults_text = f" (and {len(further_faults)} more faults)" if further_faults else ""
    if fault["type"] == "missing":
        return f"{location}: it is missing{more_faults_text}; {STATE_REMEDY}"
    if fault["type"] == "extra_forbidden":
        return f"{location}: this run expects no such entry{more_faults_text}; {STATE_REMEDY}"
    expected = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return f"{location}: is {describe(fault['input'])}; {expected}{more_faults_text}"


def _misfit(path: str, actual: str, expected: str) -> SettingsError:
    """Return an error that says what a state's entry is, what it should be, and which state to load.

    Args:
        path: path of the entry.
        actual: what the entry is, such as ``"has 4 elements"``.
        expected: what the entry should be, after "it should": ``"have 2048"``.
    """
    return SettingsError(f"{path}: {actual}; it should {expected}; {STATE_REMEDY}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor) -> Sequence[int]:
    return tuple(tensor.shape)
