# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of a step that the engine is given when the step begins, by a source of gradients, such as DDP's hook."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
