# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a state must be to be loaded: its fields, in one place, and how they must fit the model.

A state that loads is a state that fits. All is checked before anything changes, and refused with the path of what is
wrong: ``residual/layer.3.weight: 4 elements, 4096 expected``.

To add a field, add a line to a class below. Controllers' states are checked by controllers (``Controller.check``), by
the classes of these states.
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
from gravac.settings import SettingsError
from gravac.telemetry.records import DecisionRecord

LARGEST = 2**53
"""Largest count: up to there a float has every integer."""

LARGEST_SQUARE = 1e300
"""Largest sum of squares that is finite: sums of a few of these are finite, too."""

FormByName = Mapping[str, Form]
"""Shapes, in memory order, and number formats of a model's parameters, by name; empty: the model is not known yet."""


class Fields(BaseModel):
    """Fields of a state: each of exactly its type; unknown ones are refused."""

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
            raise ValueError(f"{' or '.join(_dtype(dtype) for dtype in dtypes)} expected")
        if _dense(tensor).dim() != 1:
            raise ValueError("one dimension expected")
        return _finite(tensor)

    return check


def _factor(number: Any) -> Any:
    """Check a finite number above 0, and leave it the int or float that it is: slots are named by shadow CFs."""
    if not (_number(number) and number > 0):
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
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Factor = Annotated[Any, AfterValidator(_factor)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
LossScale = Annotated[float, Field(ge=2**-100, le=2**100)]
Square = Annotated[float, AfterValidator(_square)]


def like(kind: Any, **narrower: Any) -> type[Fields]:
    """Return the fields of a dataclass, all of them required, as a class of its own.

    Args:
        kind: dataclass.
        narrower: types of fields, in place of those that the dataclass has.
    """
    hints: dict[str, Any] = {**typing.get_type_hints(kind), **narrower}
    made: dict[str, Any] = {field.name: (hints[field.name], ...) for field in dataclasses.fields(kind)}
    return create_model(kind.__name__, __base__=Fields, **made)


FACTORS: dict[str, Any] = {"cf": Factor, "every": Positive, "delay": Count}
CandidateFields: Any = like(Candidate, **FACTORS)
DecisionFields: Any = like(DecisionRecord, **FACTORS, step=Count)


class FactorsFields(Fields):
    """Compression factors of the last step; ``None`` is dense."""

    cf: Factor | None
    cfs: dict[str, Factor | None]


class PendingFields(Fields):
    """A rank's numbers of a step that the ranks have not agreed on yet.

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
    """What all steps of a run add up to on a rank, bytes."""

    wire_bytes: Count
    dense_wire_bytes: Count
    norm_bytes: Count


class NativeFields(Fields):
    """Where a stretch of native steps is."""

    made: Count
    travels: bool
    uncounted: bool


class RankState(Fields):
    """One rank's state, as ``AdaptiveCompressor.state_dict`` gives it.

    Attributes:
        outer: state of outer steps, see ``OuterState``; ``None`` unless ranks train apart.
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
    """What is known of all ranks' steps: lists by rank, and this rank's own seconds and samples."""

    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    samples: tuple[Seconds, ...]
    own: tuple[Seconds, ...]


class FragmentState(Fields):
    """A fragment between two steps, as ``Fragment.state_dict`` gives it."""

    anchors: dict[str, FiniteTensor]
    own: dict[str, FiniteTensor]
    due: Count | None
    left: dict[str, FiniteTensor]
    keeps: Share
    applied: bool


class BuffersState(Fields):
    """Buffers, as ``Buffers.state_dict`` gives them: of any number format, and with infinities where they have any."""

    anchors: dict[str, Tensor]
    own: dict[str, Tensor]
    keeps: Share


class RefusalsState(Fields):
    """What a rank knows of exchanges whose mean was not finite, as ``Refusals.state_dict`` gives it.

    Attributes:
        verdicts: numbers of the rounds that are not over, and whether each fragment that arrived was applied.
    """

    skipped: Count
    counted_from: Count
    on_end: tuple[Count, ...]
    refused: tuple[Count, ...]
    verdicts: tuple[tuple[Count, tuple[bool, ...]], ...]


class OuterState(Fields):
    """The state of outer steps, as ``RoundState.dump`` gives it."""

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
    """All ranks' states, as ``gather`` gives them."""

    version: int
    world: Positive
    step: Count
    states: tuple[dict[str, Any], ...]


class Manifest(Fields):
    """What a directory's manifest says."""

    version: int
    world: Positive
    step: Count
    folder: Annotated[str, Field(pattern=r"^gravac-step[0-9]+-[0-9a-f]{8}\z")]


def fitted(kind: type[FieldsT], plain: object, path: str = "") -> FieldsT:
    """Return a state's fields, each of its type, lists as tuples.

    Args:
        kind: fields that it must have.
        plain: state, or a part of it.
        path: path of that part.

    Raises:
        SettingsError: a field is missing, unknown, of another type, or out of range; the message has its path.
    """
    try:
        return kind.model_validate(as_tuples(plain))
    except ValidationError as error:
        raise SettingsError(_explained(error, path)) from None


def rank_state(state: Mapping[str, Any]) -> RankState:
    """Return one rank's fields, if they fit each other.

    Raises:
        SettingsError: they do not.
    """
    fields = fitted(RankState, state)
    if (fields.world is None) != (fields.rank is None) or (fields.world and (fields.rank or 0) >= fields.world):
        raise SettingsError(
            f"rank: {fields.rank} of {fields.world} ranks; a number from 0, below that of ranks expected"
        )
    names = [name for group in fields.layout for name in group]
    if len(names) > len(set(names)):
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"layout: {twice!r} is in two groups, one expected")
    for at, pending in enumerate(fields.pending):
        check_names(f"pending/{at}/numbers", pending.numbers, slots(pending.shadow))
    steps = [pending.step for pending in fields.pending]
    if steps != sorted(set(steps)) or (steps and steps[-1] >= fields.step):
        raise SettingsError(f"pending: of steps {steps}, ascending ones before step {fields.step} expected")
    if fields.controller_state is not None:
        check_plain(fields.controller_state, "controller_state")
    return fields


def check_fits(parts: Mapping[str, Mapping[str, Any]], forms: FormByName, base: Compressor) -> None:
    """Check that what is kept of parameters is of this model.

    Args:
        parts: residuals, what is released, sums and compressors' memories, by the names of ``RankState``.
        forms: see ``FormByName``.
        base: compressor whose memories they are.

    Raises:
        SettingsError: a tensor is of a parameter that the model has not, or has with another shape or number format.
    """
    if not forms:
        return
    for part, kept in parts.items():
        foreign = sorted(name for name in kept if name not in forms)
        if foreign:
            raise SettingsError(
                f"{part}: the model has no parameter {foreign[0]!r} ({len(foreign)} such in the state); load the state "
                "of this model, or a new one"
            )
        for name, its in kept.items():
            shape, dtype = forms[name]
            elements = math.prod(shape)
            if part == "memory":
                for key, memory in its.items():
                    if expected := base.misfit(key, memory, elements):
                        raise SettingsError(f"{part}/{name}/{key}: {described(memory)}, {expected} expected")
                continue
            if its.numel() != elements:
                raise SettingsError(f"{part}/{name}: {its.numel()} elements, {elements} expected")
            wide = working(dtype) == torch.float64
            if part != "aside" and wide != (its.dtype == torch.float64):
                expected = "float64" if wide else "float32"
                raise SettingsError(f"{part}/{name}: {_dtype(its.dtype)}, {expected} expected")


def check_tensors(
    path: str, given: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor], some: bool = False
) -> None:
    """Check that tensors have the names and shapes of others, and are finite where these are.

    Args:
        path: path of what is given.
        given: tensors by name.
        like: tensors that they are to take the place of.
        some: whether some of these are enough.

    Raises:
        SettingsError: they do not, or are not.
    """
    check_names(path, given, like, some)
    for name, tensor in given.items():
        mine = like[name]
        if tensor.shape != mine.shape:
            raise SettingsError(f"{path}/{name}: shape {_shape(tensor)}, {_shape(mine)} expected")
        if tensor.is_floating_point() != mine.is_floating_point() or tensor.is_complex() != mine.is_complex():
            raise SettingsError(f"{path}/{name}: {_dtype(tensor.dtype)}, {_dtype(mine.dtype)} expected")
        if tensor.is_floating_point() and (~tensor.isfinite().to(mine.device) & mine.isfinite()).any():
            raise SettingsError(f"{path}/{name}: not finite, as it is now")


def check_names(path: str, given: Iterable[str], expected: Iterable[str], some: bool = False) -> None:
    """Check that names are those that are expected; with ``some``, a part of them is enough.

    Raises:
        SettingsError: one is missing, or unknown.
    """
    names = set(given)
    for name in expected:
        if name not in names and not some:
            raise SettingsError(f"{path}/{name}: it is missing")
    unknown = sorted(names.difference(expected))
    if unknown:
        raise SettingsError(f"{path}/{unknown[0]}: it is unknown here")


LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf")
"""Names of what torch's optimizers keep for each element of a parameter."""

ALWAYS: tuple[tuple[type[torch.optim.Optimizer], tuple[str, ...]], ...] = (
    (torch.optim.Adam, ("step", "exp_avg", "exp_avg_sq")),
    (torch.optim.AdamW, ("step", "exp_avg", "exp_avg_sq")),
)
"""What an optimizer keeps of every parameter that it keeps anything of."""


def check_optimizer(path: str, plain: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that a state is one of an optimizer: its groups, numbers of parameters, numbers and shapes.

    Args:
        path: path of the state.
        plain: what ``optimizer.state_dict()`` gave.
        optimizer: the one that is to load it.

    Raises:
        SettingsError: it is not.
    """
    check_names(path, plain, ("state", "param_groups"), some=True)
    check_names(path, plain, ("state", "param_groups"))
    kept, groups, mine = plain["state"], plain["param_groups"], optimizer.param_groups
    if not isinstance(kept, dict) or not isinstance(groups, (list, tuple)) or len(groups) != len(mine):
        raise SettingsError(f"{path}/param_groups: {described(groups)}, {len(mine)} groups and their state expected")
    parameters: dict[Any, tuple[torch.Tensor, int]] = {}
    for at, (group, own) in enumerate(zip(groups, mine, strict=True)):
        where = f"{path}/param_groups/{at}"
        if not isinstance(group, dict):
            raise SettingsError(f"{where}: {described(group)}, a dict expected")
        numbers = group.get("params")
        if not isinstance(numbers, (list, tuple)) or len(numbers) != len(own["params"]):
            raise SettingsError(f"{where}/params: {described(numbers)}, {len(own['params'])} numbers expected")
        if any(type(number) is not int or number in parameters for number in numbers):
            raise SettingsError(f"{where}/params: {described(numbers)}, numbers of parameters expected, each once")
        parameters |= dict(zip(numbers, ((parameter, at) for parameter in own["params"]), strict=True))
        for name in optimizer.defaults:
            if name not in group:
                raise SettingsError(f"{where}/{name}: it is missing")
        for name, setting in group.items():
            if name in own and name != "params":
                _check_alike(f"{where}/{name}", setting, own[name])
            if name == "capturable" and setting and any(parameter.is_cpu for parameter in own["params"]):
                raise SettingsError(f"{where}/{name}: {described(setting)}, which torch refuses for CPU parameters")
            if name == "betas" and not all(0 <= beta < 1 for beta in setting):
                raise SettingsError(f"{where}/{name}: {described(setting)}, numbers from 0 and below 1 expected")
    keys: dict[int, set[str]] = {}
    kinds = [kind for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer]
    of_torch = any(kind.__module__.startswith("torch.optim.") for kind in kinds)
    for number, its in kept.items():
        where = f"{path}/state/{number}"
        if number not in parameters or type(number) is not int or not isinstance(its, dict):
            raise SettingsError(f"{where}: {described(its)}, a dict for one of {len(parameters)} parameters expected")
        parameter, group_number = parameters[number]
        for name, remembered in its.items():
            _check_remembered(f"{where}/{name}", name, remembered, parameter if of_torch else None)
        always = next((names for kind, names in ALWAYS if isinstance(optimizer, kind)), ())
        if groups[group_number].get("amsgrad") and always:
            always = (*always, "max_exp_avg_sq")
        if its and always:
            check_names(
                where, its.keys() & {*keys.setdefault(group_number, {*its}), *always}, {*keys[group_number], *always}
            )
            check_names(where, its, keys[group_number])


def _check_remembered(path: str, name: str, remembered: Any, parameter: torch.Tensor | None) -> None:
    """Check what an optimizer keeps of a parameter under a name; ``None``: what shape it has only others know."""
    if not isinstance(remembered, torch.Tensor):
        if name == "step" and not (_number(remembered) and remembered >= 0):
            raise SettingsError(f"{path}: {described(remembered)}, a number of steps expected")
        if name in LIKE_PARAMETER and remembered is not None:
            raise SettingsError(f"{path}: {described(remembered)}, a tensor expected")
        if isinstance(remembered, float) and math.isnan(remembered):
            raise SettingsError(f"{path}: nan, a number expected")
        return
    try:
        _dense(remembered)
        if name in LIKE_PARAMETER or name == "step" or remembered.is_floating_point():
            _finite(remembered)
    except ValueError as error:
        raise SettingsError(f"{path}: {described(remembered)}, {error}") from None
    if parameter is not None and name in LIKE_PARAMETER and remembered.shape != parameter.shape:
        raise SettingsError(f"{path}: shape {_shape(remembered)}, {_shape(parameter)} expected")
    if name == "step" and (remembered.numel() != 1 or float(remembered) < 0):
        raise SettingsError(f"{path}: {described(remembered)}, a number of steps expected")


def _check_alike(path: str, given: Any, own: Any) -> None:
    """Check that an optimizer's setting is of its own's type, finite, and not negative where its own is not."""
    fits = True
    if _number(own) and not isinstance(given, torch.Tensor):
        fits = _number(given) and (given >= 0 or own < 0) and (isinstance(given, float) or abs(given) <= LARGEST)
    elif isinstance(own, (bool, str)):
        fits = type(given) is type(own) or given is None
    elif isinstance(own, (tuple, list)):
        fits = isinstance(given, (tuple, list)) and len(given) == len(own)
        for at, (one, mine) in enumerate(zip(given if fits else (), own, strict=False)):
            _check_alike(f"{path}/{at}", one, mine)
    if isinstance(given, torch.Tensor):
        fits = (_number(own) or isinstance(own, torch.Tensor)) and given.numel() == 1 and bool(given.isfinite().all())
    if not fits:
        raise SettingsError(f"{path}: {described(given)}, one like {described(own)} expected")


def check_plain(value: Any, path: str) -> None:
    """Check that a state holds plain values alone (dict with words as keys, list, str, bool, None, finite numbers).

    Raises:
        SettingsError: it holds something else.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise SettingsError(f"{path}/{key}: {described(key)} is a key, a word expected")
            check_plain(part, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            check_plain(part, f"{path}/{at}")
    elif not (value is None or isinstance(value, (str, bool)) or _number(value)):
        raise SettingsError(f"{path}: {described(value)}, a plain and finite value expected")


def as_tuples(value: Any) -> Any:
    """Return a state with a tuple in place of each list."""
    if isinstance(value, dict):
        return {key: as_tuples(part) for key, part in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


def copied(plain: Any) -> Any:
    """Return a state with copies of its tensors, which need its file no longer."""
    if isinstance(plain, torch.Tensor):
        return plain.detach().clone()
    if isinstance(plain, Mapping):
        return {key: copied(part) for key, part in plain.items()}
    if isinstance(plain, (list, tuple)):
        return type(plain)(copied(part) for part in plain)
    return copy.copy(plain)


def described(value: Any) -> str:
    """Return a value in a few words: of a tensor number format and shape.

    Example:
        >>> described(torch.zeros(2, 3))
        'float32 of shape (2, 3)'
    """
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value.dtype)} of shape {_shape(value)}"
    if isinstance(value, (dict, list, tuple)) and len(value) > 4:
        return f"a {type(value).__name__} of {len(value)}"
    try:
        words = repr(value)
    except ValueError:  # an int of more digits than are written
        words = f"a {type(value).__name__}"
    return words if len(words) <= 80 else f"{words[:77]}..."


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST_SQUARE


def _explained(error: ValidationError, path: str) -> str:
    fault, *others = error.errors(include_url=False)
    where = "/".join(str(part) for part in ([path] if path else []) + [*fault["loc"]]) or "state"
    more = f" (and {len(others)} more)" if others else ""
    if fault["type"] == "missing":
        return f"{where}: it is missing{more}"
    if fault["type"] == "extra_forbidden":
        return f"{where}: it is unknown here{more}"
    expected = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return f"{where}: {described(fault['input'])}, {expected}{more}"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor) -> Sequence[int]:
    return tuple(tensor.shape)
