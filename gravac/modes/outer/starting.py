# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks before outer steps: whether they are possible, parameters to train, and what must be the same on all ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.averaging.tensors import refuse_complex
from gravac.exchange.comparing import texts_of_tensors
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import OuterSettings
from gravac.sources.gradient_hooks import no_outer_steps, refuse_optimizer_in_backward
from gravac.sources.hooks import takes_hooks
from gravac.sources.local_model import LocalModel
from gravac.sources.parameters import (
    averaged_parameters,
    canonical_name,
    ignored_buffers,
    shards_of_tensor_parallelism,
)
from gravac.texts import text_of


def check_outer_steps_possible(module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise if outer steps are impossible with a module or with an optimizer.

    Args:
        module: module that is trained, with or without DistributedDataParallel.
        optimizers: torch's optimizers that train the module, without a framework's wrapper.

    Raises:
        SettingsError: the module or an optimizer exchanges in each step, or has state that ranks cannot average; the
            message names it.
    """
    for optimizer in optimizers:
        optimizer_name = type(optimizer).__name__
        ancestor_names = {
            ancestor.__name__ for ancestor in type(optimizer).__mro__
        }  # importing a class to compare takes long
        if isinstance(optimizer, torch.optim.LBFGS):
            raise no_outer_steps(
                f"{optimizer_name} keeps its state in lists, which ranks cannot average", "another optimizer"
            )
        if "ZeroRedundancyOptimizer" in ancestor_names:
            raise no_outer_steps(
                f"{optimizer_name} exchanges parameters in each step, but in outer steps ranks train several steps "
                "without an exchange",
                "the optimizer that it wraps",
            )
    for path, child in module.named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm):
            raise no_outer_steps(
                f"{path or 'the module'} is a SyncBatchNorm, which exchanges statistics in each forward, but in outer "
                "steps ranks train several steps without an exchange",
                "BatchNorm",
            )
    if shards := shards_of_tensor_parallelism(module):
        raise no_outer_steps(
            f"the first forward of DistributedDataParallel replaces {next(iter(shards))}, a shard of tensor "
            "parallelism, by a DTensor that is not a parameter, so the module lacks weights that ranks would average",
            "fully_shard on a mesh with a replicate dimension",
        )
    if not takes_hooks(module):
        raise no_outer_steps(
            "the module is compiled by torch.jit.script, so it takes no hooks, by which gravac sees that it is "
            "evaluated or saved",
            "the module without torch.jit.script",
        )
    for path, parameter in module.named_parameters():
        refuse_optimizer_in_backward(path, parameter)
    if isinstance(module, DistributedDataParallel) and getattr(module, "mixed_precision", None) is not None:
        raise no_outer_steps(
            "DistributedDataParallel(mixed_precision=...) replaces the weights by copies of lower precision in each "
            "forward, and restores the weights only when it exchanges gradients, which outer steps do not",
            "torch.autocast",
        )


def parameters_to_train(model: LocalModel) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that ranks exchange, by name, in the model's order.

    Args:
        model: model trained on this rank.

    Raises:
        TypeError: a parameter is complex.
        ValueError: there are no parameters to train.
    """
    named_parameters = ((canonical_name(name), each) for name, each in averaged_parameters(model.module).items())
    parameters = {name: parameter for name, parameter in named_parameters if name in model.trained_names}
    refuse_complex(parameters)
    if not parameters:
        raise ValueError("module: it has no parameters to train; give a module of which some require a gradient")
    return parameters


class ParameterCheck:
    """Refuses parameters that this rank would train without exchanging them.

    Args:
        module: module trained on this rank.
        inner: optimizers that train the module.
        parameters: parameters that ranks exchange, by name.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inner: Sequence[torch.optim.Optimizer],
        parameters: Mapping[str, torch.nn.Parameter],
    ) -> None:
        self._module, self._inner_optimizers = module, inner
        averaged_ids = {id(parameter) for parameter in averaged_parameters(module).values()}
        self._ignored_ids = {id(parameter) for parameter in module.parameters()} - averaged_ids
        self._exchanged_by_id = {id(parameter): (parameter, _layout_of(parameter)) for parameter in parameters.values()}
        self._known_ids = {*self._exchanged_by_id, *self._ignored_ids}

    def check(self) -> None:
        """Check that outer steps exchange each parameter that trains, and that no parameter was moved or converted.

        Raises:
            ValueError: a parameter to train is not exchanged, or an exchanged parameter was moved to another device,
                number format, shape or memory format.
        """
        for name, parameter in self._module.named_parameters():
            if id(parameter) in self._exchanged_by_id:
                layout, layout_before = _layout_of(parameter), self._exchanged_by_id[id(parameter)][1]
                if layout != layout_before:
                    raise ValueError(
                        f"module: parameter {canonical_name(name)} is {_layout_text(layout)}, but was "
                        f"{_layout_text(layout_before)} when this compressor was attached; convert or move the module "
                        "before attach"
                    )
            elif parameter.requires_grad and id(parameter) not in self._ignored_ids:
                raise ValueError(
                    f"module: parameter {canonical_name(name)} requires a gradient, but did not when "
                    "DistributedDataParallel was created, or was another tensor, so ranks would not exchange the "
                    "parameter; let all parameters to train require gradients first, and freeze some afterwards"
                )
        for group in [group for optimizer in self._inner_optimizers for group in optimizer.param_groups]:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._known_ids:
                    raise ValueError(
                        f"optimizer: it trains a tensor of shape {tuple(parameter.shape)} that is not a parameter of "
                        "the module, so ranks would not exchange the tensor; give a module with all parameters that "
                        "the optimizer trains, such as torch.nn.ModuleList([...])"
                    )


class _Layout(NamedTuple):
    """Number format, device, shape and strides of a tensor."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    strides: tuple[int, ...]


def _layout_of(tensor: torch.Tensor) -> _Layout:
    """Return the number format, device, shape and strides of a tensor."""
    return _Layout(tensor.dtype, tensor.device, tensor.shape, tensor.stride())


def _layout_text(layout: _Layout) -> str:
    """Return a text that describes a layout, for errors."""
    return f"{layout.dtype} of shape {tuple(layout.shape)}, strides {layout.strides}, on {layout.device}"


def same_on_all_ranks(module: torch.nn.Module, settings: OuterSettings) -> dict[str, str]:
    """Return texts, by name, that must be the same on all ranks, besides ``AdaptiveCompressor``'s settings.

    The texts describe which buffers are local, how the outer optimizer is created, and the shapes and number formats of
    all parameters and buffers.
    """
    any_parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float32, device="cpu"))
    setting_texts = {
        "outer.local_buffers": text_of(tuple(sorted(settings.local_buffers))),
        "outer": describe_optimizer(make_outer_optimizer(settings, [any_parameter])),
    }
    parameters = {canonical_name(name): parameter for name, parameter in averaged_parameters(module).items()}
    suffixes = (", trained" if parameter.requires_grad else ", frozen" for parameter in parameters.values())
    parameter_texts = {
        field: text + suffix
        for (field, text), suffix in zip(texts_of_tensors(parameters).items(), suffixes, strict=True)
    }
    ignored_names = ignored_buffers(module)
    buffers = {name: buffer for name, buffer in module.named_buffers() if name not in ignored_names}
    return {**setting_texts, **parameter_texts, **texts_of_tensors(buffers, "buffer")}


def make_outer_optimizer(settings: OuterSettings, weights: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new optimizer of the anchor's weights, of any shapes: the one in ``settings``, or ``OuterSGD``."""
    optimizer_class = OuterSGD if settings.optimizer is None else settings.optimizer
    optimizer: torch.optim.Optimizer = optimizer_class(weights)
    return optimizer


def describe_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return a text with an optimizer's class and the settings of its parameter groups."""
    group_settings = [
        {name: setting for name, setting in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__qualname__} {', '.join(map(text_of, group_settings))}"


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of a module's first parameter; the CPU if the module has no parameter."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
