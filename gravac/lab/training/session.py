# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The specification of a session of workers: its legs, each a fresh model trained with one method."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gravac.lab.training.shuffled import Play

ALONE = "alone"
"""Method of a leg in which rank 0 trains by itself, without DDP, and the others wait: what one worker can do."""

WARM_UP = 3
"""Number of first steps of a leg that no median counts: connections, the copy of the buckets, caches."""


@dataclass(frozen=True)
class Leg:
    """The training of a fresh model with one method.

    Attributes:
        method: method in words, see ``gravac.lab.training.methods``, or ``ALONE``.
        label: name of its log folder, also shown with its progress.
        seconds: seconds of training after which it stops; ``None`` goes on.
        steps: number of steps after which it stops; ``None`` goes on.
        target: value of the task's metric at which it stops; ``None`` goes on.
        every_steps: number of steps between two evaluations; ``None`` does not count steps.
        every_seconds: seconds of training between two evaluations. With neither, nothing is evaluated.
        played: choices that a matched random method plays.
    """

    method: str
    label: str
    seconds: float | None = None
    steps: int | None = None
    target: float | None = None
    every_steps: int | None = None
    every_seconds: float | None = None
    played: tuple[Play, ...] = ()

    @property
    def evaluates(self) -> bool:
        """Tell whether the metric is taken at all."""
        return self.every_steps is not None or self.every_seconds is not None


@dataclass(frozen=True)
class Spec:
    """A session as plain values, for a worker's command line.

    Attributes:
        task: name of the task; ``scale``, ``seed`` and ``data`` are arguments of ``gravac.lab.tasks.make`` too.
        workers: number of ranks.
        folder: folder in which ranks meet and rank 0 writes ``events.jsonl``.
        log_dir: folder of TensorBoard logs, with one for each leg's label; ``None`` writes none.
        interface: network interface whose bytes count; ``None`` when the session has none of its own.
        control: network interface of what ranks tell each other about training; ``None``: that of everything.
        pace: bits per second at which our exchange holds itself back; ``None`` on real links.
        link: link in words, for the logs.
        legs: legs to train, in order.
    """

    task: str
    scale: float
    seed: int
    data: str
    workers: int
    folder: str
    log_dir: str | None
    interface: str | None
    control: str | None
    pace: float | None
    link: str
    legs: tuple[Leg, ...]

    def to_json(self) -> str:
        """Return the session as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Return the session that ``to_json`` wrote."""
        plain = json.loads(text)
        return cls(**{**plain, "legs": tuple(_leg(**leg) for leg in plain["legs"])})


def _leg(played: list[list[Any]], **plain: Any) -> Leg:
    return Leg(played=tuple(Play(*one) for one in played), **plain)


def log_folder(spec: Spec, leg: Leg) -> Path | None:
    """Where a leg's logs go."""
    return Path(spec.log_dir, leg.label) if spec.log_dir is not None else None
