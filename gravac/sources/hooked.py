# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What sources share that exchange gradients by hooks on parameters, and not by DistributedDataParallel."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import Mark, Number
from gravac.measurement import LocalMeasurement
from gravac.sources.ddp import NO_BACKWARD, learning_rate


class HookedSource(ABC):
    """Base class of sources that exchange gradients by hooks on parameters.

    Args:
        engine: averages the gradients.

    Attributes:
        quiet: whether nothing is exchanged. Changed on all ranks between two steps.
        loss_scale: returns the factor that gradients were multiplied by; ``None`` without a scaler.
        optimizer: optimizer that applies the gradients.
        decided: future of the candidate of the last step that began; ``None`` before the first.
        send_residuals: whether the next step sends all residuals, dense, whatever the controller decided.
    """

    def __init__(self, engine: Engine) -> None:
        self.quiet = self.send_residuals = False
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.decided: Future[Candidate] | None = None
        self._engine = engine
        self._watched: list[torch.utils.hooks.RemovableHandle] = []
        self._inputs: Mark | None = None
        self._optimized: Mark | None = None

    @property
    @abstractmethod
    def accumulating(self) -> bool:
        """True if a backward that begins now exchanges nothing, since its gradients are only accumulated."""

    @abstractmethod
    def _backward_starts(self, gradient: torch.Tensor) -> None:
        """Record that a backward has reached an output of the module."""

    def rest(self) -> None:
        """Exchange nothing from the next backward on."""
        self.quiet = True

    def _forward_ended(self, module: object, inputs: object, outputs: object) -> None:
        if torch.is_grad_enabled() and not self.quiet:
            tensors: Iterator[Any] = tensors_in(outputs)
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_starts)

    def _step_ended(self, *_: object) -> None:
        self._optimized = self._engine.mark()

    def _begin_engines_step(self) -> None:
        """Begin the engine's step; the engine is open."""
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided = self._engine.begin(inputs)

    def _take_moments(self) -> Callable[[LocalMeasurement], None]:
        """Return a function that writes the moments of the present step into a measurement; backward ends now."""
        inputs, optimized, backward = self._inputs, self._optimized, self._engine.mark()
        self._inputs = None

        def fill(measurement: LocalMeasurement) -> None:
            measurement.inputs, measurement.optimized, measurement.backward = inputs, optimized, backward

        return fill

    def _raise_failure_of_begin(self) -> None:
        """Raise the exception with which the engine's step failed to begin, if it did."""
        if self.decided is not None and self.decided.done() and (failure := self.decided.exception()) is not None:
            raise failure

    def _refuse_to_detach(self, backward_runs: bool) -> None:
        """Raise if hooks cannot be removed now.

        Args:
            backward_runs: whether a backward is under way.

        Raises:
            RuntimeError: no module is being watched, or a backward is running.
        """
        if not self._watched:
            raise RuntimeError("detach: this compressor is not attached to a module")
        if backward_runs or torch._C._current_graph_task_id() != NO_BACKWARD:
            raise RuntimeError("detach: a backward is running; detach after it, between two steps")


class AtEnd:
    """Callback that autograd calls when a backward has ended; it is freed when the backward fails.

    Args:
        function: called without arguments.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __call__(self) -> None:
        """Call the function."""
        self._function()


def tensors_in(outputs: object) -> Iterator[torch.Tensor]:
    """Yield the tensors, of any shapes, in a forward's outputs.

    The outputs are a tensor, or lists, tuples, dicts and dataclasses of tensors.

    Example:
        >>> [tensor.numel() for tensor in tensors_in({"loss": torch.zeros(()), "parts": [torch.zeros(2)]})]
        [1, 2]
    """
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from (tensor for entry in outputs.values() for tensor in tensors_in(entry))
    elif isinstance(outputs, list | tuple):
        yield from (tensor for entry in outputs for tensor in tensors_in(entry))
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        yield from (tensor for entry in fields(outputs) for tensor in tensors_in(getattr(outputs, entry.name)))


def refuse_other_hooks(parameters: Mapping[str, torch.Tensor]) -> None:
    """Refuse parameters whose gradients another hook would use before they hold the mean.

    Args:
        parameters: parameters to average, of any shapes, by name.

    Raises:
        RuntimeError: a parameter has a hook after accumulation, such as that of an optimizer that steps within
            backward.
    """
    for name, parameter in parameters.items():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise RuntimeError(
                f"module: parameter {name} has a hook after accumulation already, which would see a gradient that "
                "is not the mean yet: that of an optimizer that makes its steps within backward, or of another "
                "compressor; remove it first"
            )
