# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The specification of a session of workers: its legs, each the training of a fresh model with one method."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gravac.lab.training.shuffled import Play

ALONE = "alone"
"""Method of a leg in which rank 0 trains alone, without DDP, while the others wait: the speed of a single worker."""

WARM_UP = 3
"""Number of first steps of a leg that medians leave out: in these steps connections, buckets and caches are made."""


@dataclass(frozen=True)
class Leg:
    """The training of a fresh model with one method.

    Attributes:
        method: text of the method, see ``gravac.lab.training.methods``, or ``ALONE``.
        label: name of the leg's log folder, also shown with its progress.
        seconds: limit in seconds of training; ``None``: no limit.
        steps: limit in steps; ``None``: no limit.
        target: metric at which the leg stops; ``None``: no target.
        every_steps: number of steps from one evaluation to the next; ``None``: not evaluated by steps.
        every_seconds: seconds of training from one evaluation to the next; ``None``: not evaluated by seconds.
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
        """True if the worker evaluates the metric while it trains this leg."""
        return self.every_steps is not None or self.every_seconds is not None


@dataclass(frozen=True)
class Spec:
    """The specification of a session, in JSON types, for a worker's command line.

    Attributes:
        task: name of the task.
        scale: scale of the task.
        seed: seed of the task.
        data: folder of the task's data; empty if the task needs no folder.
        workers: number of ranks.
        folder: folder in which ranks meet and rank 0 writes ``events.jsonl``.
        log_dir: folder of TensorBoard logs, with a subfolder for each leg's label; ``None``: no logs.
        interface: network interface whose bytes count; ``None`` if the session has no interface of its own.
        control: network interface of rank 0's commands; ``None``: the default interface.
        pace: bits per second to which gravac's exchange limits itself; ``None`` on real links.
        link: the link as text, for the logs.
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
        fields = json.loads(text)
        return cls(**{**fields, "legs": tuple(_leg(**leg) for leg in fields["legs"])})


def _leg(played: list[list[Any]], **fields: Any) -> Leg:
    return Leg(played=tuple(Play._make(play_fields) for play_fields in played), **fields)


def log_folder(spec: Spec, leg: Leg) -> Path | None:
    """Return the folder of a leg's logs; ``None`` if the session writes no logs."""
    return Path(spec.log_dir, leg.label) if spec.log_dir is not None else None
