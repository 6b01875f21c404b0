# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that a saved state of an optimizer fits the parameters of the optimizer that is to load it.

torch's ``load_state_dict`` checks only the sizes of parameter groups. A tensor that does not fit would make ``step``
raise an error, on one rank alone. What settings such as a learning rate mean is left to torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gravac.checkpoint.fitting import check_names, is_number
from gravac.saved import describe, load_fields, misfit, require_dense, require_finite, shape_of
from gravac.settings import STATE_REMEDY, SettingsError
from gravac.sources.local_model import optimizer_of_user

PARAMETER_SHAPED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf")
"""Names of entries that torch's optimizers keep for each parameter, as tensors of the parameter's shape."""

ENTRIES_OF_ADAM = ("step", "exp_avg", "exp_avg_sq")
"""Entries that Adam and AdamW need for each parameter, unless a parameter has no entries at all."""


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """What ``state_dict`` of an optimizer returns.

    Attributes:
        state: entries that the optimizer keeps for each parameter, by the parameter's number.
        param_groups: settings of each parameter group; ``"params"`` has the numbers of its parameters.
    """

    state: dict[int, dict[str, Any]]
    param_groups: tuple[dict[str, Any], ...]


def check_optimizer(path: str, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that the tensors of a saved state are finite, and fit an optimizer's parameters by name and shape.

    Args:
        path: path of the optimizer's state within the rank's state, such as ``"outer/optimizer"``, for messages.
        state: what an optimizer's ``state_dict()`` returned.
        optimizer: optimizer that will load the state.

    Raises:
        SettingsError: an entry is missing, has a wrong type or shape, or is not finite; the message has the entry's
            path.
    """
    fields = load_fields(OptimizerState, state, path)
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    numbers_by_group = [group.get("params") for group in fields.param_groups]
    if [len(numbers) if isinstance(numbers, (tuple, list)) else None for numbers in numbers_by_group] != sizes:
        raise misfit(f"{path}/param_groups", "differ from this run's", f"have groups of {sizes} parameters")
    users_optimizer = optimizer_of_user(optimizer)
    is_of_torch = any(
        kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer
        for kind in type(users_optimizer).__mro__
    )
    for saved_group, numbers, group in zip(fields.param_groups, numbers_by_group, optimizer.param_groups, strict=True):
        required_names: tuple[str, ...] = ()
        if isinstance(users_optimizer, (torch.optim.Adam, torch.optim.AdamW)):
            required_names = (*ENTRIES_OF_ADAM, *(["max_exp_avg_sq"] if saved_group.get("amsgrad") else []))
        first_names: set[str] = set()
        for number, parameter in zip(numbers or (), group["params"], strict=True):
            entry_path = f"{path}/state/{number}"
            entries = fields.state.get(number, {}) if type(number) is int else {}
            for name, entry in entries.items():
                _check_entry(f"{entry_path}/{name}", name, entry, parameter if is_of_torch else None)
            if entries and required_names:
                first_names = first_names or {*entries, *required_names}
                check_names(entry_path, entries, first_names)


def _check_entry(path: str, name: str, entry: Any, parameter: torch.Tensor | None) -> None:
    """Check one entry of the saved state that an optimizer keeps for a parameter.

    Args:
        path: path of the entry within the rank's state, for messages.
        name: the entry's name, such as ``"exp_avg"``.
        entry: the entry: a tensor or a plain value.
        parameter: the parameter; ``None``: the shape is not checked, since the optimizer is not one of torch's.

    Raises:
        SettingsError: the entry is not finite, or has another type or shape than an entry of this name should have.
    """
    if not isinstance(entry, torch.Tensor):
        # torch's SGD stores None before its first step with momentum; other optimizers may store None anywhere
        may_be_none = entry is None and (name == "momentum_buffer" or parameter is None)
        if name in PARAMETER_SHAPED and not may_be_none:
            raise misfit(path, f"is {describe(entry)}", "be a tensor")
        if name == "step" and not (is_number(entry) and entry >= 0):
            raise misfit(path, f"is {describe(entry)}", "be a number of steps, 0 or more")
        return
    try:
        require_dense(entry)
        if name in PARAMETER_SHAPED or entry.is_floating_point():
            require_finite(entry)
    except ValueError as error:
        raise SettingsError(f"{path}: is {describe(entry)}; {error}; {STATE_REMEDY}") from None
    if parameter is not None and name in PARAMETER_SHAPED and entry.shape != parameter.shape:
        raise misfit(path, f"has shape {shape_of(entry)}", f"have {shape_of(parameter)}")
    if name == "step" and (entry.numel() != 1 or entry.dtype == torch.bool or float(entry) < 0):
        raise misfit(path, f"is {describe(entry)}", "be one number of steps, 0 or more")
