# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What outer steps begin with: parameters to train, weights that all ranks share, settings that must be alike."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.exchange.alike import described
from gravac.integrations.ddp import canonical
from gravac.outer.settings import OuterSettings
from gravac.stepping.door import refuse_complex
from gravac.texts import text_of, texts_of


def refuse_wrapped(module: torch.nn.Module) -> None:
    """Refuse a module whose gradients are averaged already.

    Raises:
        TypeError: the module is wrapped in DistributedDataParallel.
    """
    if isinstance(module, DistributedDataParallel):
        raise TypeError(
            "module: it is wrapped in DistributedDataParallel, which averages gradients in every step; give the module "
            "itself, ddp.module, and train that, or use AdaptiveCompressor with the wrapped one"
        )


def trained(module: torch.nn.Module, fragments: int) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to train, by name.

    Raises:
        TypeError: a parameter is complex.
        ValueError: there are none, or fewer than fragments.
    """
    parameters = {canonical(name): p for name, p in module.named_parameters() if p.requires_grad}
    refuse_complex(parameters)
    if len(parameters) < fragments:
        raise ValueError(
            f"module: it has {len(parameters)} parameters to train, which do not make {fragments} fragments"
        )
    return parameters


def share(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give all ranks the weights and buffers of their first.

    Raises:
        RuntimeError: there is no process group.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), first, group=group)


def same_on_all_ranks(module: torch.nn.Module, settings: OuterSettings) -> dict[str, str]:
    """Return what must be the same on all ranks besides ``AdaptiveCompressor``'s settings, as text, by field.

    That is all settings but the number of samples, of which only whether it is set; and all parameters and buffers,
    which the ranks are given by their first.
    """
    samples = "not set" if settings.samples is None else "set"
    own = {**texts_of(settings), "samples": samples, "local_buffers": text_of(sorted(settings.local_buffers))}
    parameters = {canonical(name): parameter for name, parameter in module.named_parameters()}
    trains = (", trained" if parameter.requires_grad else ", frozen" for parameter in parameters.values())
    known = {field: text + how for (field, text), how in zip(described(parameters).items(), trains, strict=True)}
    return {**own, **known, **described(dict(module.named_buffers()), "buffer")}


def described_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return an optimizer's class, and its parameter groups' settings, as text."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return f"{type(optimizer).__qualname__} {', '.join(map(text_of, groups))}"


def device_of(module: torch.nn.Module) -> torch.device:
    """Return where a module's parameters lie: the CPU, if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
