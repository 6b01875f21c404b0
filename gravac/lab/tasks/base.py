# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of a reference task: model, data, optimizer, learning rates, and the metric that compares runs."""

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
    """A sum over validation data, and the number of its terms, so that scores of several ranks can be added.

    Attributes:
        total: sum of losses, squared errors or correct predictions.
        count: number of characters, pixels or pictures in the sum.
    """

    total: float
    count: int


@dataclass(frozen=True)
class Metric:
    """The validation metric by which runs of a task are compared.

    Attributes:
        name: name of the metric, for tables and axes.
        unit: unit of the metric, such as ``"nats a character"``, ``"dB"`` or ``"%"``.
        higher_is_better: whether a higher metric is better; false for a loss.
        decibels: whether the metric is ``-10 log10(total / count)`` of a score, instead of ``total / count``.

    Example:
        >>> loss = Metric("loss", "nats", higher_is_better=False)
        >>> loss.compute(Score(total=6.0, count=4)), loss.is_reached(1.5, target=2.0)
        (1.5, True)
    """

    name: str
    unit: str
    higher_is_better: bool = False
    decibels: bool = False

    def compute(self, score: Score) -> float:
        """Return the metric for a score, in ``unit``; nan for the decibels of a mean that is not above 0."""
        mean = score.total / max(score.count, 1)
        if not self.decibels:
            return mean
        return -10 * math.log10(mean) if mean > 0 else math.nan

    def is_reached(self, reading: float, target: float) -> bool:
        """True if ``reading``, the metric of a model in ``unit``, is at the target or better."""
        return reading >= target if self.higher_is_better else reading <= target


@dataclass(frozen=True)
class Task(ABC):
    """A reference task: model, data, optimizer and validation metric.

    With the same settings and seed, a method with a fixed compressor trains in the same way on every link.

    Attributes:
        scale: scale of the model; 1 suits two cores, 10 and more a GPU. The number of parameters and the compute grow
            about linearly with the scale.
        seed: seed of the initial weights and of the batches.
        learning_rate: learning rate after the warm-up, for every method. The default is the best rate for training
            without compression; ``train_dense`` compares rates.
    """

    scale: float = 1.0
    seed: int = 0
    learning_rate: float = 0.0

    name: ClassVar[str]
    metric: ClassVar[Metric]
    budget: ClassVar[int]
    """Number of steps of the reference run, which trains dense; its metric after 80 % of these steps is the target."""
    steps_per_evaluation: ClassVar[int]
    """Number of steps from one evaluation to the next, the same for every method and link."""
    warmup: ClassVar[int] = 20
    """Number of steps over which the learning rate rises linearly."""
    blocks: ClassVar[str] = ""
    """Dotted name of the model's list of blocks, by which FSDP2 cuts the model into shards; empty: never in shards."""

    @classmethod
    def tuned_learning_rate(cls, scale: float) -> float:
        """Return the learning rate that is best for training without compression, at a scale of the model."""
        return cls.learning_rate

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Number of samples that a rank trains on in a step."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model with the same weights on every rank; leave torch's global random state as it is."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return a new optimizer of the model's parameters, with ``learning_rate``."""

    @abstractmethod
    def batch(self, step: int, rank: int) -> Any:
        """Return the training batch of a step on a rank; it depends on seed, step and rank alone.

        Args:
            step: number of the step, from 0.
            rank: rank that trains on the batch.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean training loss of a batch from ``batch``, a scalar tensor."""

    @abstractmethod
    def validate(self, model: nn.Module, shard: int = 0, shards: int = 1) -> Score:
        """Return the score of a model on a shard of the validation data; no gradients are computed.

        Args:
            model: model to evaluate.
            shard: number of the shard, from 0.
            shards: number of shards into which the validation data is split.
        """

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0.

        The rate is constant after the warm-up, since the task does not know how many steps a run will have.
        """
        return self.learning_rate * min(1.0, (step + 1) / self.warmup)


def train_dense(task: Task, workers: int, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Train in one process as several ranks would without compression; yield ``(steps, metric)`` at given steps.

    Use the metrics to find the best learning rate: compression looks too good against a baseline that is not tuned.

    Args:
        task: task to train, with the learning rate to try.
        workers: number of ranks whose gradients are averaged.
        steps: numbers of steps after which to compute the validation metric; training ends at the highest.
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
