# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of a task: model, data, optimizer, schedule and the metric its runs are judged by."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Score:
    """A sum and the count it is over; scores of several ranks add up.

    Attributes:
        total: sum of losses, squared errors or hits.
        count: number of characters, pixels or pictures that the sum is over.
    """

    total: float
    count: int


@dataclass(frozen=True)
class Metric:
    """The metric that runs of a task are judged by, on data that is never trained on.

    Attributes:
        name: name in words, for tables and axes.
        unit: unit of its values, such as ``"nats a character"``, ``"dB"`` or ``"%"``.
        higher_is_better: whether more is better; false for a loss.
        decibels: whether the value is ``-10 log10`` of the mean, and not the mean.

    Example:
        >>> loss = Metric("loss", "nats", higher_is_better=False)
        >>> loss.value(Score(total=6.0, count=4)), loss.reached(1.5, target=2.0)
        (1.5, True)
    """

    name: str
    unit: str
    higher_is_better: bool = False
    decibels: bool = False

    def value(self, score: Score) -> float:
        """Return the metric of summed scores."""
        mean = score.total / max(score.count, 1)
        if not self.decibels:
            return mean
        return -10 * math.log10(mean) if mean > 0 else math.nan

    def reached(self, value: float, target: float) -> bool:
        """Tell whether a value is at the target or past it."""
        return value >= target if self.higher_is_better else value <= target


@dataclass(frozen=True)
class Task(ABC):
    """A reference task. Frozen settings: the same seed gives the same run of the same method on every link.

    Attributes:
        scale: scale of the model; 1 suits two cores, a GPU takes 10 and more. Parameters and compute grow about
            linearly.
        seed: seed of the initial weights and of the batches.
        learning_rate: learning rate after the warm-up; the default is the best for *dense* training
            (``python -m gravac.lab.sweep``), and every method trains with it.
    """

    scale: float = 1.0
    seed: int = 0
    learning_rate: float = 0.0

    name: ClassVar[str]
    metric: ClassVar[Metric]
    budget: ClassVar[int]
    """Number of steps of dense training; the default target is what dense reaches at 80 % of them."""
    every: ClassVar[int]
    """Number of steps between two evaluations, the same for every method and link."""
    warmup: ClassVar[int] = 20
    """Number of steps over which the learning rate rises linearly."""

    @classmethod
    def tuned(cls, scale: float) -> float:
        """Return the learning rate that is best for dense training at a scale."""
        return cls.learning_rate

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Samples per rank and step."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Make a model: the same weights on every rank. The global random generator is left as it was."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer over the model's parameters, at ``learning_rate``."""

    @abstractmethod
    def batch(self, step: int, rank: int) -> Any:
        """Return the training batch of one step on one rank, a function of (seed, step, rank) alone."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean training loss of a batch, a scalar."""

    @abstractmethod
    def validate(self, model: nn.Module, part: int = 0, parts: int = 1) -> Score:
        """Return the metric's sums over the ``part``-th of ``parts`` shares of validation data, without gradients."""

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, from 0 on; constant after the warm-up, as no run's length is known."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup)
