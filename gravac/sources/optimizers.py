# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac finds out about the optimizers that a user gives."""

from collections.abc import Sequence

import torch

from gravac.compressors.base import Compressor
from gravac.settings import SettingsError, short_repr

OPTIMIZER_WRAPPERS = ("AcceleratedOptimizer", "_FabricOptimizer", "LightningOptimizer")
"""Classes of Accelerate and Lightning whose attribute ``optimizer`` is torch's optimizer, which holds all state."""


def optimizers_of(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None, every: tuple[int, int]
) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers as a tuple of torch's own, without the wrappers of frameworks such as Accelerate.

    Args:
        optimizer: an optimizer, a sequence of optimizers, or ``None``.
        every: lowest and highest number of steps from one exchange to the next.

    Raises:
        SettingsError: ``optimizer`` is ``None`` although ``every`` allows outer steps, or an object is no optimizer.
    """
    if optimizer is None and every != (1, 1):
        raise SettingsError(
            f"optimizer: attach got no optimizer, but with every={every} ranks must average the optimizer's state; "
            "call attach(module, optimizer), or attach(module, ()) if your code changes weights without an optimizer"
        )
    if optimizer is None:
        return ()
    possibly_wrapped = optimizer if isinstance(optimizer, Sequence) else (optimizer,)
    return tuple(map(torch_optimizer, possibly_wrapped))


def torch_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """Return an optimizer without a framework's wrapper; an optimizer that steps another one, as Lookahead, as it is.

    Raises:
        SettingsError: the object is no optimizer, or its class never called the constructor of torch's class.
    """
    is_framework_wrapper = any(ancestor.__name__ in OPTIMIZER_WRAPPERS for ancestor in type(optimizer).__mro__)
    if hasattr(optimizer, "optimizer") and (is_framework_wrapper or not isinstance(optimizer, torch.optim.Optimizer)):
        return torch_optimizer(optimizer.optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingsError(
            f"optimizer: {short_repr(optimizer)} is not a torch.optim.Optimizer; give an optimizer, or a sequence of "
            "optimizers"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise SettingsError(
            f"optimizer: {type(optimizer).__name__} has no step hooks, by which gravac sees its steps, since its "
            "__init__ does not call that of torch.optim.Optimizer; call super().__init__(params, defaults) there"
        )
    return optimizer


def refuse_foreign(optimizers: Sequence[torch.optim.Optimizer], module: torch.nn.Module) -> None:
    """Raise if an optimizer trains no parameter of the module.

    Raises:
        ValueError: an optimizer and the module have no parameter in common.
    """
    module_ids = {id(parameter) for parameter in module.parameters()}
    for optimizer in optimizers:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if parameters and module_ids.isdisjoint(map(id, parameters)):
            raise ValueError(
                f"optimizer: {type(optimizer).__name__} trains {len(parameters)} tensors, none of which is a parameter "
                f"of the attached {type(module).__name__}; give the optimizer of this model, made after the model was "
                "wrapped or converted"
            )


def refuse_momentum(base: Compressor, optimizer: torch.optim.Optimizer) -> None:
    """Raise if compressor and optimizer would both apply momentum.

    Args:
        base: compressor that the run uses.
        optimizer: the model's optimizer.

    Raises:
        ValueError: compressor and optimizer both apply momentum (SGD's momentum, or Adam's first moment).
    """
    for group in optimizer.param_groups if base.owns_momentum else ():
        for setting_name, momentum in (
            ("momentum", group.get("momentum", 0)),
            ("betas[0]", group.get("betas", (0,))[0]),
        ):
            if momentum:
                raise ValueError(
                    f"optimizer: {type(optimizer).__name__} has {setting_name}={momentum:g}, but {base.name} applies "
                    "momentum itself; set the optimizer's momentum to 0, as in torch.optim.SGD(..., momentum=0), or "
                    "use another compressor"
                )
