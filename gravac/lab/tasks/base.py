# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The interface of a reference task: a model, data, an optimizer, learning rates, and a metric to compare runs by."""

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
    """A sum over validation data, and the number of its terms; ``Metric.compute`` makes a metric of both.

    The scores of several ranks are added before a metric is computed.

    Attributes:
        total: sum of losses in nats, of squared errors, or of 100 for each correct prediction.
        count: number of characters, digits, pixels or pictures that the sum is over.
    """

    total: float
    count: int


@dataclass(frozen=True)
class Metric:
    """The validation metric by which runs of a task are compared.

    Attributes:
        name: name of the metric, for tables and axes of plots.
        unit: unit of the metric, such as ``"nats a character"``, ``"dB"`` or ``"%"``.
        higher_is_better: whether a higher metric is better; False for a loss.
        decibels: whether the metric of a score is ``-10 log10(total / count)``; otherwise it is ``total / count``.

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
        """Return the metric for a score, in ``unit``; nan if ``decibels`` is set and ``score.total`` is 0 or nan."""
        mean = score.total / max(score.count, 1)
        if not self.decibels:
            return mean
        return -10 * math.log10(mean) if mean > 0 else math.nan

    def is_reached(self, metric: float, target: float) -> bool:
        """True if a metric is equal to the target or better.

        Args:
            metric: metric of a model, in ``unit``.
            target: metric to reach, in ``unit``.
        """
        return metric >= target if self.higher_is_better else metric <= target


@dataclass(frozen=True)
class Task(ABC):
    """A reference task, on which the lab compares methods of exchanging gradients: model, data, optimizer and metric.

    Weights and batches depend on settings and seed alone. So a method with a fixed compressor trains in the same way on
    every link.

    Attributes:
        scale: scale of the model; 1 suits two cores, 10 and more a GPU. The number of parameters and the compute grow
            about linearly with the scale.
        seed: seed of the initial weights and of the batches.
        learning_rate: learning rate after the warm-up, the same for every method. The default of most tasks is the best
            rate for training without compression, as ``train_dense`` finds it.
    """

    scale: float = 1.0
    seed: int = 0
    learning_rate: float = 0.0

    name: ClassVar[str]
    metric: ClassVar[Metric]
    budget: ClassVar[int]
    """Number of steps of the reference run, which trains without compression and sets the target for other runs."""
    steps_per_evaluation: ClassVar[int]
    """Number of steps from one evaluation to the next."""
    warmup: ClassVar[int] = 20
    """Number of first steps over which the learning rate rises linearly to ``learning_rate``."""
    blocks: ClassVar[str] = ""
    """Dotted name of the submodule that lists the model's blocks (layers), each of which FSDP2 cuts into shards.

    Empty if the task does not train in shards.
    """

    @classmethod
    def tuned_learning_rate(cls, scale: float) -> float:
        """Return the best learning rate for training without compression, for a model of the given scale."""
        return cls.learning_rate

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Number of samples that a rank trains on in a step."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new model, with the same weights on every rank.

        The weights depend on ``seed`` and the settings alone. torch's global random state does not change.
        """

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return a new optimizer for the model's parameters, with the learning rate ``learning_rate``."""

    @abstractmethod
    def batch(self, step: int, rank: int) -> Any:
        """Return the training batch of a step on a rank, which depends only on ``seed``, ``step`` and ``rank``.

        Args:
            step: number of the step, from 0.
            rank: rank that trains on the batch.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean training loss of the model on a batch, as a scalar tensor to call ``backward`` on.

        Args:
            model: model to train, or DDP around the model.
            batch: what the function ``batch`` returned.
        """

    @abstractmethod
    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Return the score of a model on a portion of the validation data; no gradients are computed.

        Args:
            model: model to evaluate.
            portion_index: number of the portion, from 0.
            portion_count: number of portions into which the validation data is split.
        """

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step: it rises linearly during the warm-up, and is then constant.

        Args:
            step: number of the step, from 0.
        """
        return self.learning_rate * min(1.0, (step + 1) / self.warmup)


def train_dense(task: Task, workers: int, steps: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Train in one process as several ranks would without compression; yield ``(steps, metric)`` pairs.

    ``metric`` is the validation metric after ``steps`` steps, in the task's unit, to compare learning rates by.
    Compression looks too good if the learning rate of the dense baseline is not tuned.

    Args:
        task: task to train, with the learning rate to try.
        workers: number of ranks to emulate, whose gradients are averaged.
        steps: numbers of steps after which to evaluate; training ends after the highest.
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
