# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks at the start of outer steps: parameters to train, and settings that must be the same on all ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from gravac.averaging.tensors import refuse_complex
from gravac.exchange.comparing import described
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import OuterSettings
from gravac.sources.ddp import canonical
from gravac.sources.ddp_private import averaged_parameters, left_out_buffers
from gravac.texts import text_of


def trained(module: torch.nn.Module, fragments: int) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to train, by name, without those that DDP ignores.

    Raises:
        TypeError: a parameter is complex.
        ValueError: there are no parameters to train, or fewer parameters than fragments.
    """
    parameters = {
        canonical(name): parameter for name, parameter in averaged_parameters(module).items() if parameter.requires_grad
    }
    refuse_complex(parameters)
    if len(parameters) < fragments:
        raise ValueError(
            f"module: it has {len(parameters)} parameters to train, too few for {fragments} fragments; use fewer"
        )
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
        self._module, self._inner = module, inner
        averaged = {id(parameter) for parameter in averaged_parameters(module).values()}
        self._ignored = {id(parameter) for parameter in module.parameters()} - averaged
        self._exchanged = {id(parameter): (parameter, _layout(parameter)) for parameter in parameters.values()}

    def check(self) -> None:
        """Refuse parameters that were added or changed since ranks began to exchange.

        Raises:
            ValueError: a parameter to train is not exchanged, or an exchanged parameter was moved to another device,
                number format, shape or memory format.
        """
        for name, parameter in self._module.named_parameters():
            if id(parameter) in self._exchanged:
                layout, expected = _layout(parameter), self._exchanged[id(parameter)][1]
                if layout != expected:
                    raise ValueError(
                        f"module: parameter {canonical(name)} is {_description(layout)}, but was "
                        f"{_description(expected)} when this compressor was attached; move the module before attach"
                    )
            elif parameter.requires_grad and id(parameter) not in self._ignored:
                raise ValueError(
                    f"module: parameter {canonical(name)} requires a gradient, and did not, or was another tensor, "
                    "when this compressor was attached, so that ranks would not exchange it; make a new compressor, "
                    "or let all parameters to train require gradients before attach, and freeze some later"
                )
        for group in [group for optimizer in self._inner for group in optimizer.param_groups]:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in (*self._exchanged, *self._ignored):
                    raise ValueError(
                        f"optimizer: it trains a tensor of shape {tuple(parameter.shape)} that is no parameter of the "
                        "module, so that ranks would not exchange it; give a module with all "
                        "parameters that the optimizer trains, such as torch.nn.ModuleList([...])"
                    )


class _Layout(NamedTuple):
    """Number format, device, shape and strides of a tensor."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    strides: tuple[int, ...]


def _layout(tensor: torch.Tensor) -> _Layout:
    return _Layout(tensor.dtype, tensor.device, tensor.shape, tensor.stride())


def _description(layout: _Layout) -> str:
    return f"{layout.dtype} of shape {tuple(layout.shape)}, strides {layout.strides}, on {layout.device}"


def same_on_all_ranks(module: torch.nn.Module, settings: OuterSettings) -> dict[str, str]:
    """Return further texts, by name, that must be the same on all ranks, besides ``AdaptiveCompressor``'s settings.

    They tell whether ``samples`` is set, which buffers are local, how the outer optimizer is created, and the shapes
    and number formats of all parameters and buffers.
    """
    of_settings = {
        "outer.samples": "not set" if settings.samples is None else "set",
        "outer.local_buffers": text_of(tuple(sorted(settings.local_buffers))),
        "outer": described_optimizer(outer_optimizer(settings, [torch.nn.Parameter(torch.zeros(1))])),
    }
    parameters = {canonical(name): parameter for name, parameter in averaged_parameters(module).items()}
    suffixes = (", trained" if parameter.requires_grad else ", frozen" for parameter in parameters.values())
    of_parameters = {
        field: text + suffix for (field, text), suffix in zip(described(parameters).items(), suffixes, strict=True)
    }
    left_out = left_out_buffers(module)
    buffers = {name: buffer for name, buffer in module.named_buffers() if name not in left_out}
    return {**of_settings, **of_parameters, **described(buffers, "buffer")}


def outer_optimizer(settings: OuterSettings, anchors: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new outer optimizer of anchors, of any shapes."""
    make = OuterSGD if settings.optimizer is None else settings.optimizer
    optimizer: torch.optim.Optimizer = make(anchors)
    return optimizer


def described_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return a text with an optimizer's class and the settings of its parameter groups."""
    groups = [
        {name: setting for name, setting in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__qualname__} {', '.join(map(text_of, groups))}"


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of a module's parameters; the CPU if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
