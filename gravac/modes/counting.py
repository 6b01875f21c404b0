# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Counts the training steps of a rank that exchanges nothing in them (outer steps).

A step is a backward that accumulated a gradient into a parameter, after a forward in which ranks would exchange, and
then an optimizer's step, or its skip. ``torch.autograd.grad``, as in adversarial training, accumulates nothing, so it
makes no step. Neither does the first of the two backwards of sharpness-aware minimization (SAM), after which the
program itself moves the weights.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch


class TrainedParameters:
    """Finds which parameters of the model an optimizer trains.

    Args:
        parameters: function that returns the model's present parameters that ranks keep equal.
    """

    def __init__(self, parameters: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._parameters = parameters
        self._cache: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, frozenset[int]]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, optimizer: torch.optim.Optimizer) -> frozenset[int]:
        """Return the ids of the model's parameters that an optimizer trains; looked up again if groups have grown."""
        parameter_count = sum(len(group["params"]) for group in optimizer.param_groups)
        known_count, ids = self._cache.get(optimizer, (-1, frozenset()))
        if known_count != parameter_count:
            model_ids = {id(parameter) for parameter in self._parameters()}
            ids = frozenset(
                id(parameter)
                for group in optimizer.param_groups
                for parameter in group["params"]
                if id(parameter) in model_ids
            )
            self._cache[optimizer] = parameter_count, ids
        return ids


class StepCounter:
    """Sees when a training step of this rank has ended, told of forwards, backwards and optimizers' steps.

    Args:
        optimizers: optimizers that were given to ``attach``.
        trained: finds the parameters that an optimizer trains.

    Attributes:
        gradient_accumulated: function that is to be called with each parameter into which a backward has accumulated a
            gradient; a C function, since it is called often.
        is_within_step: whether a forward in which ranks would exchange has begun since the last step ended.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], trained: TrainedParameters) -> None:
        self._optimizers, self._trained = optimizers, trained
        self._accumulated: deque[torch.Tensor] = deque(maxlen=1)  # holds a parameter if a backward reached one
        self.gradient_accumulated: Callable[[torch.Tensor], None] = self._accumulated.append
        self._optimizer_was_seen = False
        self.reset()

    def reset(self) -> None:
        """Forget the step under way."""
        self.is_within_step = False
        self._backward_accumulated = self._forward_is_pending = False
        self._stepped_ids: frozenset[int] = frozenset()
        self._accumulated.clear()

    @property
    def backward_is_pending(self) -> bool:
        """True from a forward with gradients to its backward: the backward needs the weights as they are."""
        return self._forward_is_pending and not self._accumulated

    def step_was_skipped(self, program_moved_weights: Callable[[], bool]) -> bool:
        """Return whether a step has ended of which not all optimizers have made a step. Called when a forward begins.

        Args:
            program_moved_weights: function that returns whether weights have changed since the last forward; called
                only if no optimizer has made a step since.
        """
        if not (self.is_within_step and (self._backward_accumulated or self._accumulated)):
            return False
        if self._optimizer_was_seen and not self._stepped_ids and program_moved_weights():
            return False
        self.reset()
        return True

    def forward_starts(self, is_synced: bool) -> None:
        """Record that a forward with gradients begins.

        Args:
            is_synced: whether ranks would exchange the gradients of this forward's backward.
        """
        self._backward_accumulated |= self.is_within_step and bool(self._accumulated)
        self._accumulated.clear()
        self._forward_is_pending = True
        self.is_within_step |= is_synced

    def optimizer_stepped(self, optimizer: torch.optim.Optimizer, is_within_other: bool) -> bool:
        """Record that an optimizer has made a step; return whether a training step has ended by it.

        A training step has ended when all parameters that the optimizers given to ``attach`` train have been updated,
        by these optimizers or by others.

        Args:
            optimizer: an optimizer that trains parameters of the model.
            is_within_other: whether the step of another optimizer, which has called this one, is still under way.
        """
        self._stepped_ids |= self._trained.of(optimizer)
        self._optimizer_was_seen = True
        if is_within_other or not self.is_within_step:
            return False
        if any(self._trained.of(each) - self._stepped_ids for each in self._optimizers):
            return False
        self.reset()
        return True
