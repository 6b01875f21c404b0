# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that the tensors of a saved state fit the model.

A state is loaded only if it fits. All fields are checked before the run changes. An error message has the path of the
wrong field: ``residual/layer.3.weight: has 4 elements; it should have 4096``. ``gravac.saved`` checks the types of a
state's other fields. Controllers check their own states (``Controller.check``).
"""

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gravac.averaging.plan import Form
from gravac.compressors import Compressor
from gravac.compressors.dtypes import working
from gravac.ranges import LARGEST_SUM_OF_SQUARES
from gravac.saved import describe, dtype_name, misfit, shape_of
from gravac.settings import STATE_REMEDY, SettingsError

FormByName = Mapping[str, Form]
"""Shape, in memory order, and dtype of each parameter of a model, by name; empty if the model is not known yet."""


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
