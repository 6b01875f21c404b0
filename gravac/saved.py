# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Saved states: dataclasses of tensors and plain values, which are dumped to a dict for a checkpoint, and loaded.

The dataclass is the schema: the types of its fields say what a state may have, and ``gravac.ranges`` has types with
ranges. A state that is loaded must be what the loaded object would be dumped to; so nothing is missing, unknown, or
converted from another type. An error names the path of the first entry that does not fit, such as
``residual/layer.3.weight``.
"""

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import torch
from pydantic import AfterValidator, TypeAdapter, ValidationError

from gravac.settings import STATE_REMEDY, SettingsError

StateT = TypeVar("StateT")


def dump_fields(state: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as tensors (not copies) and plain values, by name."""
    kind: Any = type(state)
    dumped: dict[str, Any] = _adapter(kind).dump_python(state, warnings=False)
    return dumped


def load_fields(kind: type[StateT], dumped: object, path: str = "") -> StateT:
    """Return the object that ``dump_fields`` converted to ``dumped``.

    Args:
        kind: class of the object, a dataclass.
        dumped: what a checkpoint has; lists may be in place of tuples.
        path: path of ``dumped`` within the state, for messages; empty for a whole state.

    Raises:
        SettingsError: an entry is missing, unknown, of another type, or out of range; the message has its path.
    """
    try:
        adapter: TypeAdapter[StateT] = _adapter(kind)  # type: ignore[arg-type]
        state = adapter.validate_python(dumped)
        _check_same(dumped, dump_fields(state), path)
    except ValidationError as error:
        raise SettingsError(explain(error, path)) from None
    except SettingsError:
        raise
    except (RecursionError, ValueError):  # ValueError: pydantic cannot dump a part that contains itself
        raise SettingsError(f"{path or 'state'}: is nested too deeply; {STATE_REMEDY}") from None
    return state


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _check_same(given: Any, loaded: Any, path: str) -> None:
    """Raise ``SettingsError`` unless a part of a state is what it was loaded as, but for lists in place of tuples."""
    if isinstance(loaded, Mapping) and isinstance(given, Mapping):
        for key in loaded:
            if key not in given:
                raise SettingsError(f"{joined(path, key)}: the entry is missing; {STATE_REMEDY}")
        for key in given:
            if key not in loaded:
                raise SettingsError(f"{joined(path, key)}: this run expects no such entry; {STATE_REMEDY}")
            _check_same(given[key], loaded[key], joined(path, key))
    elif isinstance(loaded, (list, tuple)) and isinstance(given, (list, tuple)):
        for index, (given_entry, loaded_entry) in enumerate(zip(given, loaded, strict=True)):
            _check_same(given_entry, loaded_entry, joined(path, index))
    elif given is not loaded and not _equal(given, loaded):
        raise misfit(path, f"is {describe(given)}", f"be {describe(loaded)}")


def _equal(given: Any, loaded: Any) -> bool:
    """True if two plain values are equal: also nan and nan, or an int and a float, but not a bool and a number."""
    if isinstance(given, bool) != isinstance(loaded, bool):
        return False
    if isinstance(given, (int, float)) and isinstance(loaded, (int, float)):
        return given == loaded or (math.isnan(given) and math.isnan(loaded))
    return bool(given == loaded)


def joined(path: str, key: object) -> str:
    """Return the path of an entry of a part of a state."""
    return f"{path}/{key}" if path else str(key)


# tensors


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


def _require_flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor unchanged; raise ``ValueError`` unless it is flat, finite, and of float32 or float64."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise ValueError("it should be float32 or float64")
    if require_dense(tensor).dim() != 1:
        raise ValueError("it should have one dimension")
    return require_finite(tensor)


DenseTensor = Annotated[torch.Tensor, AfterValidator(require_dense)]
FiniteTensor = Annotated[torch.Tensor, AfterValidator(require_finite)]
FlatTensor = Annotated[torch.Tensor, AfterValidator(_require_flat)]

# messages


def describe(entry: Any) -> str:
    """Return an entry of a state as a short text: dtype and shape of a tensor, else the ``repr``.

    Example:
        >>> describe(torch.zeros(2, 3))
        'float32 of shape (2, 3)'
    """
    if isinstance(entry, torch.Tensor):
        return f"{dtype_name(entry.dtype)} of shape {shape_of(entry)}"
    if isinstance(entry, (dict, list, tuple)) and len(entry) > 4:
        return f"a {type(entry).__name__} of {len(entry)} entries"
    try:
        text = repr(entry)
    except ValueError:  # an int with more digits than Python converts to text
        text = f"a {type(entry).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape as a tuple."""
    return tuple(tensor.shape)


def misfit(path: str, actual: str, expected: str) -> SettingsError:
    """Return an error that says what a state's entry is, what it should be, and which state to load.

    Args:
        path: path of the entry.
        actual: what the entry is, such as ``"has 4 elements"``.
        expected: what the entry should be, after "it should": ``"have 2048"``.
    """
    return SettingsError(f"{path}: {actual}; it should {expected}; {STATE_REMEDY}")


def explain(error: ValidationError, path: str) -> str:
    """Return an error message for a state: path of the first wrong field, what is there, and what should be there.

    Args:
        error: pydantic's error.
        path: path of the checked part within the state; empty for a whole state.
    """
    fault, *further_faults = error.errors(include_url=False)
    if isinstance(cause := fault.get("ctx", {}).get("error"), SettingsError):  # of a part that was loaded by itself
        return str(cause)
    location = "/".join(str(key) for key in ([path] if path else []) + [*fault["loc"]]) or "state"
    more_faults_text = f" (and {len(further_faults)} more faults)" if further_faults else ""
    if fault["type"] == "missing":
        return f"{location}: the entry is missing{more_faults_text}; {STATE_REMEDY}"
    if fault["type"] == "extra_forbidden":
        return f"{location}: this run expects no such entry{more_faults_text}; {STATE_REMEDY}"
    expected = fault["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    return f"{location}: is {describe(fault['input'])}; {expected}{more_faults_text}; {STATE_REMEDY}"
