# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Base class of sources that get gradients by hooks on parameters, without DistributedDataParallel.

A source hands the gradients of a module to the engine, which averages them over the ranks.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import Mark
from gravac.exchange.reading import Number
from gravac.sources.ddp import NO_BACKWARD, learning_rate
from gravac.sources.ddp_private import UncompiledHook


class HookedSource(ABC):
    """Base class of sources that get gradients by hooks on parameters, and hand them to the engine.

    Args:
        engine: object that averages the gradients.

    Attributes:
        is_stopped: whether this source exchanges nothing. Changed on all ranks between the same two steps.
        loss_scale: function that returns the present loss scale, a float or a 0-d tensor; ``None`` without a
            ``GradScaler``.
        optimizer: optimizer that applies the gradients; ``None`` if not known.
        decided_candidate: future of the candidate that the controller had chosen when the last step began; ``None``
            before the first step.
        send_residuals: whether the next step sends all residuals (unsent parts of earlier gradients), without
            compression, whatever the controller decided.
        gradient_accumulated: function that is called with each parameter into which a backward accumulates a gradient;
            ``None``: none.
    """

    def __init__(self, engine: Engine) -> None:
        self.is_stopped = self.send_residuals = False
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.decided_candidate: Future[Candidate] | None = None
        self.gradient_accumulated: Callable[[torch.Tensor], None] | None = None
        self._engine = engine
        self._hook_handles: list[torch.utils.hooks.RemovableHandle] = []
        self._forward_began_mark: Mark | None = None
        self._optimizer_ended_mark: Mark | None = None

    @property
    @abstractmethod
    def is_accumulating(self) -> bool:
        """True if a backward that begins now only accumulates gradients, and exchanges nothing."""

    @abstractmethod
    def _backward_starts(self, gradient: torch.Tensor) -> None:
        """Record that a backward has begun. Called by a hook on an output of the module, with the output's gradient."""

    def stop_exchange(self) -> None:
        """Stop the exchange: from the next backward on, this source exchanges no gradients."""
        self.is_stopped = True

    def _forward_ended(self, module: object, inputs: object, outputs: object) -> None:
        """Register hooks on the outputs of a forward, which are called when its backward begins."""
        if torch.is_grad_enabled() and not self.is_stopped:
            output_tensors: Iterator[Any] = tensors_in(outputs)
            for tensor in output_tensors:
                if tensor.requires_grad:
                    tensor.register_hook(UncompiledHook(self._backward_starts))

    def _step_ended(self, *_: object) -> None:
        """Record the time at which the optimizer's step ended."""
        self._optimizer_ended_mark = self._engine.mark()

    def _begin_engines_step(self) -> None:
        """Begin the engine's step, with the present loss scale and learning rate. Called after ``Engine.open``."""
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided_candidate = self._engine.begin(inputs)

    def _times_writer(self) -> Callable[[StepRecording], None]:
        """Return a function that gets the step's measurement, and writes the step's times into the measurement.

        Called when backward ends.
        """
        forward_began_mark, optimizer_ended_mark, backward_ended_mark = (
            self._forward_began_mark,
            self._optimizer_ended_mark,
            self._engine.mark(),
        )
        self._forward_began_mark = None

        def add_times(measurement: StepRecording) -> None:
            measurement.forward_began = forward_began_mark
            measurement.optimizer_ended = optimizer_ended_mark
            measurement.backward_ended = backward_ended_mark

        return add_times

    def _raise_failure_of_begin(self) -> None:
        """Raise the exception of ``Engine.begin`` if the engine's present step could not begin."""
        if (
            self.decided_candidate is not None
            and self.decided_candidate.done()
            and (failure := self.decided_candidate.exception()) is not None
        ):
            raise failure

    def _refuse_to_detach(self, backward_runs: bool) -> None:
        """Raise if hooks cannot be removed now.

        Args:
            backward_runs: whether a backward has begun and has not ended, as far as the hooks of this source saw.

        Raises:
            RuntimeError: no module is being watched, or a backward is running.
        """
        if not self._hook_handles:
            raise RuntimeError("detach: this compressor is not attached to a module; call detach() after attach() only")
        if backward_runs or torch._C._current_graph_task_id() != NO_BACKWARD:
            raise RuntimeError("detach: a backward is running; call detach() after the backward, between two steps")


class EndCallback(UncompiledHook):
    """Callback that autograd calls when a backward has ended, and frees without a call if the backward fails.

    A weak reference to the callback therefore tells whether the backward is still under way.

    Args:
        function: function without arguments that the callback calls.
    """


def tensors_in(outputs: object) -> Iterator[torch.Tensor]:
    """Yield the tensors, of any shapes, in a forward's outputs.

    Outputs may be a tensor, or lists, tuples, dicts and dataclasses of tensors, nested or not.

    Example:
        >>> [tensor.numel() for tensor in tensors_in({"loss": torch.zeros(()), "parts": [torch.zeros(2)]})]
        [1, 2]
    """
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from (tensor for inner_output in outputs.values() for tensor in tensors_in(inner_output))
    elif isinstance(outputs, list | tuple):
        yield from (tensor for inner_output in outputs for tensor in tensors_in(inner_output))
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        yield from (
            tensor for output_field in fields(outputs) for tensor in tensors_in(getattr(outputs, output_field.name))
        )


def refuse_other_hooks(parameters: Mapping[str, torch.Tensor]) -> None:
    """Raise if another hook would use a parameter's gradient before the gradient is the mean over the ranks.

    Args:
        parameters: parameters to average, of any shapes, by name.

    Raises:
        RuntimeError: a parameter has a hook after accumulation, such as that of an optimizer that steps within
            backward.
    """
    for name, parameter in parameters.items():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise RuntimeError(
                f"module: parameter {name} already has a post-accumulate-grad hook (of an optimizer step within "
                "backward, or of another compressor), which would see the gradient before gravac averages it; remove "
                "that hook first"
            )
