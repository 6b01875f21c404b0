# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a source of gradients tells the engine when a step begins, and a count of the ranks that still have inputs."""

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
"""What a failed count of ranks exchanged, for error messages."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Mode, learning rate and other facts of a step, which a source of gradients gives the engine when the step begins.

    Attributes:
        loss_scale: factor that the gradients were multiplied with, a scalar (0-d tensor) if only their device knows it;
            ``None`` without a scaler.
        learning_rate: learning rate that the gradients will be applied with; nan if not known.
        takes_part: whether this rank still has inputs; sums are divided by the number of ranks that have inputs.
            ``None``, on every rank: sums are divided by the number of all ranks.
        forms: shapes and dtypes of the gradients, if ``Engine.know`` was given no parameters.
        mode: who exchanges in this step. If the decided candidate is of another mode, the step runs the previous step's
            candidate; if the previous candidate also is of another mode, the step runs dense.
        steps: number of training steps that this step covers.
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
"""Default ``StepInputs``: the source knows nothing but that a step begins."""


class RanksWithInputs:
    """Counts the ranks that have inputs in a step, if ranks may run out of inputs (DDP's ``join()``).

    Args:
        state: state of the run, for the step number in error messages.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._in_flight: Any = None
        self._number: Number | None = None

    @property
    def counted(self) -> bool:
        """True if the ranks that have inputs are counted in this step, since a rank may have run out of inputs."""
        return self._in_flight is not None

    def start(self, executor: Executor, takes_part: bool | None, device: torch.device) -> None:
        """Start to count the ranks that have inputs; called when a step begins.

        Args:
            executor: object that sums over the ranks.
            takes_part: whether this rank has inputs; ``None``, on every rank: do not count.
            device: device of the tensor that the ranks sum.
        """
        self._in_flight = self._number = None
        if takes_part is not None:
            flag = torch.full((1,), float(takes_part), device=device)
            with named_failure(self._state, lambda: INPUTS_LEFT_TEXT):
                self._in_flight = executor.launch([AllReduce(flag)])

    def number(self, executor: Executor) -> Number:
        """Wait for all ranks' answers, and return the number of ranks that have inputs."""
        if self._number is None:
            with named_failure(self._state, lambda: INPUTS_LEFT_TEXT):
                (total,) = executor.finish(self._in_flight)
                (self._number,) = executor.numbers([total[0]])
        return self._number
