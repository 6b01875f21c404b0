# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that a saved state of an optimizer fits the optimizer that is to load it."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from gravac.checkpoint.fitting import (
    LARGEST_COUNT,
    check_names,
    describe,
    is_number,
    misfit,
    require_dense,
    require_finite,
    shape_of,
)
from gravac.settings import STATE_REMEDY, SettingsError
from gravac.sources.local_model import optimizer_of_user

PARAMETER_SHAPED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf")
"""Names of entries that torch's optimizers keep for each parameter, as tensors of the parameter's shape."""

REQUIRED_ENTRIES: tuple[tuple[type[torch.optim.Optimizer], tuple[str, ...]], ...] = (
    (torch.optim.Adam, ("step", "exp_avg", "exp_avg_sq")),
    (torch.optim.AdamW, ("step", "exp_avg", "exp_avg_sq")),
)
"""Entries, for each optimizer class, that a parameter's state must have, unless the state has no entries at all."""


def check_optimizer(path: str, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that a saved state fits an optimizer: parameter groups, numbers of parameters, settings, shapes of tensors.

    Args:
        path: path of the optimizer's state within the rank's state, such as ``"outer/optimizer"``, for messages.
        state: what an optimizer's ``state_dict()`` returned.
        optimizer: optimizer that will load the state.

    Raises:
        SettingsError: an entry is missing, has a wrong type or shape, or is not finite; the message has the entry's
            path.
    """
    check_names(path, state, ("state", "param_groups"), may_lack_names=True)
    check_names(path, state, ("state", "param_groups"))
    parameter_states, saved_groups, own_groups = state["state"], state["param_groups"], optimizer.param_groups
    if not isinstance(parameter_states, dict):
        raise misfit(f"{path}/state", f"is {describe(parameter_states)}", "be a dict")
    if not isinstance(saved_groups, (list, tuple)) or len(saved_groups) != len(own_groups):
        raise SettingsError(
            f"{path}/param_groups: is {describe(saved_groups)}; it should be a list of {len(own_groups)} parameter "
            "groups; load the state of the same optimizer"
        )
    parameter_and_group: dict[Any, tuple[torch.Tensor, int]] = {}
    for group_index, (group, own_group) in enumerate(zip(saved_groups, own_groups, strict=True)):
        group_path = f"{path}/param_groups/{group_index}"
        if not isinstance(group, dict):
            raise misfit(group_path, f"is {describe(group)}", "be a dict")
        parameter_numbers = group.get("params")
        if not isinstance(parameter_numbers, (list, tuple)) or len(parameter_numbers) != len(own_group["params"]):
            raise SettingsError(
                f"{group_path}/params: is {describe(parameter_numbers)}; it should have the numbers of "
                f"{len(own_group['params'])} parameters; load the state of the same optimizer"
            )
        unused_numbers = [
            number for number in parameter_numbers if type(number) is int and number not in parameter_and_group
        ]
        if len({*unused_numbers}) < len(parameter_numbers):
            raise misfit(
                f"{group_path}/params", f"is {describe(parameter_numbers)}", "have integers that no other parameter has"
            )
        parameter_and_group |= dict(
            zip(parameter_numbers, ((parameter, group_index) for parameter in own_group["params"]), strict=True)
        )
        for name in optimizer.defaults:
            if name not in group:
                raise SettingsError(f"{group_path}/{name}: the entry is missing; {STATE_REMEDY}")
        for name, setting in group.items():
            if name in own_group and name != "params":
                _check_setting(f"{group_path}/{name}", setting, own_group[name])
            if name == "capturable" and setting and any(parameter.is_cpu for parameter in own_group["params"]):
                raise misfit(f"{group_path}/{name}", f"is {describe(setting)}", "be False for CPU parameters")
            if name == "betas" and not all(0 <= beta < 1 for beta in setting):
                raise misfit(f"{group_path}/{name}", f"is {describe(setting)}", "have numbers of 0 or more and below 1")
    first_names_by_group: dict[int, set[str]] = {}  # names of entries that the first saved parameter of each group has
    users_optimizer = optimizer_of_user(optimizer)
    optimizer_classes = [kind for kind in type(users_optimizer).__mro__ if kind is not torch.optim.Optimizer]
    is_of_torch = any(kind.__module__.startswith("torch.optim.") for kind in optimizer_classes)
    for number, parameter_state in parameter_states.items():
        entry_path = f"{path}/state/{number}"
        if number not in parameter_and_group or type(number) is not int or not isinstance(parameter_state, dict):
            raise SettingsError(
                f"{entry_path}: is {describe(parameter_state)}; it should be a dict whose key is the number of one of "
                f"the {len(parameter_and_group)} parameters; {STATE_REMEDY}"
            )
        parameter, group_number = parameter_and_group[number]
        for name, entry in parameter_state.items():
            _check_entry(f"{entry_path}/{name}", name, entry, parameter if is_of_torch else None)
        required_names = next((names for kind, names in REQUIRED_ENTRIES if isinstance(users_optimizer, kind)), ())
        if saved_groups[group_number].get("amsgrad") and required_names:
            required_names = (*required_names, "max_exp_avg_sq")
        if parameter_state and required_names:
            check_names(
                entry_path,
                parameter_state.keys()
                & {*first_names_by_group.setdefault(group_number, {*parameter_state}), *required_names},
                {*first_names_by_group[group_number], *required_names},
            )
            check_names(entry_path, parameter_state, first_names_by_group[group_number])


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
        if name == "step" and not (is_number(entry) and entry >= 0):
            raise misfit(path, f"is {describe(entry)}", "be a number of steps, 0 or more")
        # torch's SGD stores None before its first step with momentum; other optimizers may store None anywhere
        may_be_none = name == "momentum_buffer" or parameter is None
        if name in PARAMETER_SHAPED and not (entry is None and may_be_none):
            raise misfit(path, f"is {describe(entry)}", "be a tensor")
        if isinstance(entry, float) and math.isnan(entry):
            raise misfit(path, "is nan", "be a number")
        return
    try:
        require_dense(entry)
        if name in PARAMETER_SHAPED or name == "step" or entry.is_floating_point():
            require_finite(entry)
    except ValueError as error:
        raise SettingsError(f"{path}: is {describe(entry)}; {error}; {STATE_REMEDY}") from None
    if parameter is not None and name in PARAMETER_SHAPED and entry.shape != parameter.shape:
        raise misfit(path, f"has shape {shape_of(entry)}", f"have {shape_of(parameter)}")
    if name == "step" and (entry.numel() != 1 or float(entry) < 0):
        steps_text = f"{float(entry):g}" if entry.numel() == 1 else describe(entry)
        raise misfit(path, f"is {steps_text}", "be one number of steps, 0 or more")


def _check_setting(path: str, setting: Any, own_setting: Any) -> None:
    """Check that a saved setting of an optimizer, such as a learning rate, has the type of the present setting.

    A number must be finite. It must not be negative unless the present number is negative.

    Args:
        path: path of the setting within the rank's state, for messages.
        setting: the saved setting.
        own_setting: the present setting of the optimizer that will load the state.

    Raises:
        SettingsError: the setting does not fit.
    """
    is_fit = True
    if is_number(own_setting) and not isinstance(setting, torch.Tensor):
        is_fit = (
            is_number(setting)
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
            (is_number(own_setting) or isinstance(own_setting, torch.Tensor))
            and setting.numel() == 1
            and bool(setting.isfinite().all())
        )
    if not is_fit:
        expected = f"have the type and sign of the optimizer's own setting, {describe(own_setting)}"
        raise misfit(path, f"is {describe(setting)}", expected)
