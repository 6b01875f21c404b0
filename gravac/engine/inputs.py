# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of a step that the engine is given when the step begins, by a source of gradients, such as DDP's hook."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.plan import Form
from gravac.candidate import Mode
from gravac.exchange.reading import Number


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Facts of a step (mode, learning rate, ...), which a source of gradients gives the engine when the step begins.

    Attributes:
        loss_scale: factor that the gradients were multiplied with; a 0-d tensor if only their device knows it; ``None``
            without a scaler.
        learning_rate: learning rate that the gradients will be applied with; nan if not known.
        takes_part: whether this rank still has batches to train on; sums are divided by the number of such ranks.
            ``None``, on every rank: sums are divided by the number of all ranks.
        forms: shapes and dtypes of the gradients, if ``Engine.know`` was given no parameters.
        mode: how gradients are exchanged in this step. If the decided candidate has another mode, the step runs the
            candidate of the previous step. If that has another mode, too, the step runs dense.
        steps: number of training steps that this step of the engine covers.
        dense: whether the step runs dense regardless of the decision, so that it leaves no residual.
    """

    loss_scale: Number | None = None
    learning_rate: float = math.nan
    takes_part: bool | None = None
    forms: Sequence[Form] = ()
    mode: Mode = "hook"
    steps: int = 1
    dense: bool = False


NO_INPUTS = StepInputs()
"""Default ``StepInputs``, if no facts of the step are known."""


def learning_rate(*optimizers: torch.optim.Optimizer) -> float:
    """Return the highest learning rate of the optimizers' parameter groups.

    An optimizer counts as without a learning rate if one of its learning rates is a tensor on a GPU: reading it would
    make the host wait. Return nan if no optimizer has a learning rate.
    """
    highest_rates = []
    for optimizer in optimizers:
        rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
        if rates and not any(isinstance(rate, torch.Tensor) and rate.device.type != "cpu" for rate in rates):
            highest_rates.append(max(map(float, rates)))
    return max((rate for rate in highest_rates if not math.isnan(rate)), default=math.nan)


def scale_of(scaler: torch.amp.GradScaler, as_tensor: bool) -> Callable[[], Number]:
    """Return a function that returns a gradient scaler's present scale.

    Args:
        scaler: scaler of the loss.
        as_tensor: True: the function returns a 0-d tensor, without a wait for the GPU (a float if the scaler has no
            tensor yet). False: the function returns a float.
    """

    def scale() -> Number:
        scale_tensor = scaler._get_scale_async()
        return scaler.get_scale() if scale_tensor is None else scale_tensor

    return scale if as_tensor else scaler.get_scale
