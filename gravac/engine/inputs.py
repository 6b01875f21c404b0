# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Facts of a step that the engine is given when the step begins, and a count of the ranks that still have inputs.

Inputs are batches to train on. The facts come from a source of gradients, such as DDP's communication hook.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gravac.averaging.plan import Form
from gravac.candidate import Mode
from gravac.collectives import AllReduce
from gravac.engine.agreement import named_failure
from gravac.engine.run_state import RunState
from gravac.exchange.executor import Executor, Number

INPUTS_LEFT_TEXT = "the number of ranks with inputs left"
"""Text for error messages: what the ranks exchanged when the count of ranks failed."""


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


class RanksWithInputs:
    """Counts the ranks that still have batches to train on in a step, as in DDP's ``join()``.

    Args:
        state: state of the run, for the step number in error messages.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._in_flight: Any = None
        self._rank_count: Number | None = None

    @property
    def counted(self) -> bool:
        """True if this step counts the ranks that still have batches, since some rank may have run out of them."""
        return self._in_flight is not None

    def start(self, executor: Executor, takes_part: bool | None, device: torch.device) -> None:
        """Start to count the ranks that still have batches to train on; called when a step begins.

        Args:
            executor: object that sums over the ranks.
            takes_part: whether this rank still has batches; ``None``, on every rank: do not count.
            device: device of the tensor that the ranks sum.
        """
        self._in_flight = self._rank_count = None
        if takes_part is not None:
            takes_part_flag = torch.full((1,), float(takes_part), dtype=torch.float32, device=device)
            with named_failure(self._state, lambda: INPUTS_LEFT_TEXT):
                self._in_flight = executor.launch([AllReduce(takes_part_flag)])

    def number(self, executor: Executor) -> Number:
        """Return the number of ranks that still have batches to train on; waits until all ranks have answered.

        The result is a 0-d tensor if the host must not read tensors.
        """
        if self._rank_count is None:
            with named_failure(self._state, lambda: INPUTS_LEFT_TEXT):
                (flag_sum,) = executor.finish(self._in_flight)
                (self._rank_count,) = executor.numbers([flag_sum[0]])
        return self._rank_count
