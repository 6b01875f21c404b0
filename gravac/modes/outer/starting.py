# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What outer steps begin with: parameters to train, settings that must be alike."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from gravac.averaging.tensors import refuse_complex
from gravac.exchange.alike import described
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import OuterSettings
from gravac.sources.ddp import canonical
from gravac.sources.ddp_private import averaged_parameters, left_out_buffers
from gravac.texts import text_of


def trained(module: torch.nn.Module, fragments: int) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to train, by name; without those that DDP was told to ignore.

    Raises:
        TypeError: a parameter is complex.
        ValueError: there are none, or fewer than fragments.
    """
    parameters = {canonical(name): p for name, p in averaged_parameters(module).items() if p.requires_grad}
    refuse_complex(parameters)
    if len(parameters) < fragments:
        raise ValueError(
            f"module: it has {len(parameters)} parameters to train, which do not make {fragments} fragments"
        )
    return parameters


class Watch:
    """Notices parameters that ranks would train apart in silence.

    Args:
        module: trained on this rank.
        inner: optimizers that train it.
        parameters: what is exchanged, by name.
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
        self._exchanged = {id(parameter): (parameter, _form(parameter)) for parameter in parameters.values()}

    def check(self) -> None:
        """Refuse what has become of the parameters since, where it does not fit what is exchanged.

        Raises:
            ValueError: a parameter that is to be trained is not exchanged, or one that is exchanged was moved to
                another device, number format, shape or memory format.
        """
        for name, parameter in self._module.named_parameters():
            if id(parameter) in self._exchanged:
                form, then = _form(parameter), self._exchanged[id(parameter)][1]
                if form != then:
                    raise ValueError(
                        f"module: parameter {canonical(name)} is {_words(form)}, and was {_words(then)} when this "
                        "compressor was attached; move the module before"
                    )
            elif parameter.requires_grad and id(parameter) not in self._ignored:
                raise ValueError(
                    f"module: parameter {canonical(name)} requires a gradient, and did not, or was another tensor, "
                    "when this compressor was attached, so that ranks would train it apart; close() this one and make "
                    "a new one, or have all that will ever be trained require gradients at the start: a parameter may "
                    "be frozen later"
                )
        for group in [group for optimizer in self._inner for group in optimizer.param_groups]:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in (*self._exchanged, *self._ignored):
                    raise ValueError(
                        f"optimizer: it trains a tensor of shape {tuple(parameter.shape)} that is no parameter of the "
                        "module, so that ranks would train it apart; give a module that has all that the optimizer "
                        "trains, such as torch.nn.ModuleList([...])"
                    )


Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]
"""Number format, device, shape and strides of a tensor."""


def _form(tensor: torch.Tensor) -> Form:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _words(form: Form) -> str:
    dtype, device, shape, strides = form
    return f"{dtype} of shape {tuple(shape)}, strides {strides}, on {device}"


def same_on_all_ranks(module: torch.nn.Module, settings: OuterSettings) -> dict[str, str]:
    """Return what must be the same on all ranks besides ``AdaptiveCompressor``'s settings, as text, by field.

    That is whether the number of samples is set; names of buffers, in any order; what the anchors' optimizer is made
    with; and all parameters and buffers, which the ranks are given by their first.
    """
    own = {
        "outer.samples": "not set" if settings.samples is None else "set",
        "outer.local_buffers": text_of(tuple(sorted(settings.local_buffers))),
        "outer": described_optimizer(made_optimizer(settings, [torch.nn.Parameter(torch.zeros(1))])),
    }
    parameters = {canonical(name): parameter for name, parameter in averaged_parameters(module).items()}
    trains = (", trained" if parameter.requires_grad else ", frozen" for parameter in parameters.values())
    known = {field: text + how for (field, text), how in zip(described(parameters).items(), trains, strict=True)}
    left_out = left_out_buffers(module)
    buffers = {name: buffer for name, buffer in module.named_buffers() if name not in left_out}
    return {**own, **known, **described(buffers, "buffer")}


def made_optimizer(settings: OuterSettings, anchors: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer of anchors, of any shapes."""
    make = OuterSGD if settings.optimizer is None else settings.optimizer
    optimizer: torch.optim.Optimizer = make(anchors)
    return optimizer


def described_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return an optimizer's class, and its parameter groups' settings, as text."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return f"{type(optimizer).__qualname__} {', '.join(map(text_of, groups))}"


def device_of(module: torch.nn.Module) -> torch.device:
    """Return where a module's parameters lie: the CPU, if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
