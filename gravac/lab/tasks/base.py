# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of a task: model, data, optimizer, schedule, and the metric by which runs are compared."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class Score:
    """A sum over validation data and the number of its terms; the scores of several ranks add up.

    Attributes:
        total: sum of losses, squared errors or hits.
        count: number of characters, pixels or pictures that the sum is over.
    """

    total: float
    count: int


@dataclass(frozen=True)
class Metric:
    """The metric by which runs of a task are compared, on data that is never trained on.

    Attributes:
        name: name of the metric, for tables and axes.
        unit: unit of the metric, such as ``"nats a character"``, ``"dB"`` or ``"%"``.
        higher_is_better: whether a higher metric is better; false for a loss.
        decibels: whether the metric is ``-10 log10`` of the score's mean, instead of the mean.

    Example:
        >>> loss = Metric("loss", "nats", higher_is_better=False)
        >>> loss.compute(Score(total=6.0, count=4)), loss.reached(1.5, target=2.0)
        (1.5, True)
    """

    name: str
    unit: str
    higher_is_better: bool = False
    decibels: bool = False

    def compute(self, score: Score) -> float:
        """Return the metric of a score, in ``unit``."""
        mean = score.total / max(score.count, 1)
        if not self.decibels:
            return mean
        return -10 * math.log10(mean) if mean > 0 else math.nan

    def reached(self, reading: float, target: float) -> bool:
        """True if a reading of the metric is at the target, or better."""
        return reading >= target if self.higher_is_better else reading <= target


@dataclass(frozen=True)
class Task(ABC):
    """A reference task with frozen settings: with the same seed, a method's run is the same on every link.

    Attributes:
        scale: scale of the model; 1 suits two cores, 10 and more a GPU. The number of parameters and the compute grow
            about linearly with the scale.
        seed: seed of the initial weights and of the batches.
        learning_rate: learning rate after the warm-up; the default is the best for *dense* training, which
            ``train_dense`` finds, and every method trains with it.
    """

    scale: float = 1.0
    seed: int = 0
    learning_rate: float = 0.0

    name: ClassVar[str]
    metric: ClassVar[Metric]
    budget: ClassVar[int]
    """Number of steps of dense training; the default target is dense training's metric at 80 % of these steps."""
    every: ClassVar[int]
    """Number of steps from one evaluation to the next, the same for every method and link."""
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
        """Make a model with the same weights on every rank, without changing torch's global random state."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer over the model's parameters, at ``learning_rate``."""

    @abstractmethod
    def batch(self, step: int, rank: int) -> Any:
        """Return the training batch of a step on a rank; it depends on (seed, step, rank) alone."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean training loss of a batch, a scalar."""

    @abstractmethod
    def validate(self, model: nn.Module, shard: int = 0, shards: int = 1) -> Score:
        """Return the score of a shard of the validation data, without gradients.

        Args:
            model: model to evaluate.
            shard: number of the shard, from 0 on.
            shards: number of shards into which the validation data is split.
        """

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0.

        Constant after the warm-up: the task does not know how many steps a run will make.
        """
        return self.learning_rate * min(1.0, (step + 1) / self.warmup)


def train_dense(task: Task, workers: int, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Train in one process as all ranks without compression would; yield step and metric after each number of steps.

    An untuned baseline flatters compression, so learning rates are tuned for dense training.

    Args:
        task: what is trained; its ``learning_rate`` is the rate to try.
        workers: number of ranks, whose gradients are averaged.
        steps: numbers of steps after which the metric is computed, ascending.
    """
    model = task.model()
    optimizer = task.optimizer(model)
    for step in range(max(steps)):
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate_at(step)
        optimizer.zero_grad()
        for rank in range(workers):
            loss = task.loss(model, task.batch(step, rank)) / workers
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step + 1 in steps:
            yield step + 1, task.metric.compute(task.validate(model))
