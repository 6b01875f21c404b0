# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a source of gradients gives the engine at the start of a step, and how many ranks still have inputs."""

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

INPUTS_LEFT = "the number of ranks with inputs left"


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a source of gradients tells the engine when a step begins.

    Attributes:
        loss_scale: factor that the gradients were multiplied with, a scalar (0-d tensor) if only their device knows it;
            ``None`` without a scaler.
        learning_rate: learning rate that the gradients will be applied with; nan if not known.
        takes_part: whether this rank has inputs: sums are divided by the number of ranks that have. ``None``, on every
            rank: by all.
        forms: shapes and dtypes of the gradients, if ``know`` was given no parameters.
        mode: who exchanges in this step. If that is not what was decided, the step runs the candidate of the step
            before, or dense if that was of another mode, too.
        steps: number of training steps that this step stands for.
        dense: whether the step runs dense whatever was decided, so that it leaves no residual.
    """

    loss_scale: Number | None = None
    learning_rate: float = math.nan
    takes_part: bool | None = None
    forms: Sequence[Form] = ()
    mode: Mode = "hook"
    steps: int = 1
    dense: bool = False


NO_INPUTS = StepInputs()
"""Inputs of a source that knows nothing more than that a step begins."""


class RanksWithInputs:
    """Counts the ranks that have inputs in a step, where ranks may run out of them (DDP's ``join()``).

    Args:
        state: state of the run, which errors name the step by.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._in_flight: Any = None
        self._number: Number | None = None

    @property
    def counted(self) -> bool:
        """True if some ranks may have run out of inputs, so that this step counts those that have not."""
        return self._in_flight is not None

    def start(self, executor: Executor, takes_part: bool | None, device: torch.device) -> None:
        """Start to count, at the beginning of a step.

        Args:
            executor: sums over the ranks.
            takes_part: whether this rank has inputs; ``None``, on every rank: count none.
            device: device of what is summed.
        """
        self._in_flight = self._number = None
        if takes_part is not None:
            flag = torch.full((1,), float(takes_part), device=device)
            with named_failure(self._state, lambda: INPUTS_LEFT):
                self._in_flight = executor.launch([AllReduce(flag)])

    def number(self, executor: Executor) -> Number:
        """Return how many ranks have inputs, once all have told."""
        if self._number is None:
            with named_failure(self._state, lambda: INPUTS_LEFT):
                (total,) = executor.finish(self._in_flight)
                (self._number,) = executor.numbers([total[0]])
        return self._number
