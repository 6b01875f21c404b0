# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a session of workers is told: its legs, each a fresh model trained with one method."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ALONE = "alone"
"""The method of a leg in which rank 0 trains by itself, without DDP, and the others wait: what one worker can do."""

WARM_UP = 3
"""First steps of a leg that no median counts: connections, the copy of the buckets, caches."""


@dataclass(frozen=True)
class Leg:
    """One method's training.

    Attributes:
        method: see ``gravac.lab.training.methods``, or ``ALONE``.
        label: names its log folder and its progress.
        seconds: training time at most.
        steps: at most.
        target: value of the task's metric at which it stops; ``None`` goes on.
        every_steps: steps between two evaluations; ``None`` does not count steps.
        every_seconds: training time between two evaluations. With neither, nothing is evaluated.
    """

    method: str
    label: str
    seconds: float | None = None
    steps: int | None = None
    target: float | None = None
    every_steps: int | None = None
    every_seconds: float | None = None

    @property
    def evaluates(self) -> bool:
        """Whether the metric is taken at all."""
        return self.every_steps is not None or self.every_seconds is not None


@dataclass(frozen=True)
class Spec:
    """A session, as plain values: what a worker is told.

    Attributes:
        task: its name; ``scale``, ``seed``, ``data``: of ``gravac.lab.tasks.make``.
        workers: ranks.
        folder: where ranks meet and where rank 0 writes ``events.jsonl``.
        log_dir: TensorBoard logs, a folder for each leg's label; ``None`` writes none.
        interface: network interface whose bytes count; ``None`` when there is none of our own.
        pace: bits per second at which our exchange holds itself back; ``None`` on real links.
        link: in words, for the logs.
        legs: what is trained, in order.
    """

    task: str
    scale: float
    seed: int
    data: str
    workers: int
    folder: str
    log_dir: str | None
    interface: str | None
    pace: float | None
    link: str
    legs: tuple[Leg, ...]

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The inverse of ``to_json``."""
        plain = json.loads(text)
        return cls(**{**plain, "legs": tuple(Leg(**leg) for leg in plain["legs"])})


def log_folder(spec: Spec, leg: Leg) -> Path | None:
    """Where a leg's logs go."""
    return Path(spec.log_dir, leg.label) if spec.log_dir is not None else None
