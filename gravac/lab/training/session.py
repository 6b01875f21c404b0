# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The specification of a session, in which the same worker processes train one or more legs, one after another.

A *leg* is the training of a fresh model with one method of exchanging gradients.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gravac.candidate import Candidate
from gravac.lab.training.shuffled import RunChoice

WARM_UP_STEPS = 3
"""Number of first steps of a leg, which medians leave out because they set up connections, buckets and caches."""


@dataclass(frozen=True)
class Leg:
    """The training of a fresh model with one method, until one of its limits or its target is reached.

    Attributes:
        method: text of the method of exchanging gradients, see ``gravac.lab.training.methods``.
        label: name of the leg's log folder, also printed in error messages.
        seconds: maximum seconds of training; ``None``: no limit.
        steps: maximum number of steps; ``None``: no limit.
        target: validation metric, in the task's unit, at which the leg stops; ``None``: no target.
        every_steps: number of steps from one evaluation to the next; ``None``: steps do not start an evaluation.
        every_seconds: seconds of training from one evaluation to the next; ``None``: time does not start an evaluation.
        choices: candidates (ways to run steps) of another run, which a ``matched:`` method repeats in random order;
            empty for other methods.
    """

    method: str
    label: str
    seconds: float | None = None
    steps: int | None = None
    target: float | None = None
    every_steps: int | None = None
    every_seconds: float | None = None
    choices: tuple[RunChoice, ...] = ()

    @property
    def evaluates(self) -> bool:
        """True if the workers evaluate the validation metric during the leg."""
        return self.every_steps is not None or self.every_seconds is not None


@dataclass(frozen=True)
class SessionSpec:
    """The specification of a session, which each worker process gets as JSON on its command line.

    In a session, the same workers train one or more legs (a fresh model with one method each), one after another.

    Attributes:
        task: name of the task (model, data, optimizer and metric) to train.
        scale: scale of the task's model, about proportional to its number of parameters; 1 suits two cores.
        seed: seed of initial weights and batches.
        data: folder of the task's data; empty if the task needs no folder.
        workers: number of ranks.
        session_folder: folder for the file through which the ranks connect, and for rank 0's events, ``events.jsonl``.
        log_dir: folder of TensorBoard logs, with a subfolder for each leg, named by the leg's label; ``None``: no logs.
        counted_interface: name of the network interface whose sent bytes each rank counts; ``None`` without emulated
            links.
        command_interface: name of the network interface for rank 0's commands; ``None``: the gradients' interface.
        paced_bps: rate of the link that pauses in gravac's exchanges imitate, bits per second; ``None``: no pauses.
        link: the link as text, for the logs.
        legs: legs to train, in order.
        mesh: mesh of a model in shards as text, such as ``2x2``; ``None``: DDP, without shards.
    """

    task: str
    scale: float
    seed: int
    data: str
    workers: int
    session_folder: str
    log_dir: str | None
    counted_interface: str | None
    command_interface: str | None
    paced_bps: float | None
    link: str
    legs: tuple[Leg, ...]
    mesh: str | None = None

    def to_json(self) -> str:
        """Return the specification as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SessionSpec:
        """Return the specification that ``to_json`` wrote as ``text``."""
        fields = json.loads(text)
        return cls(**{**fields, "legs": tuple(_leg_from_json(**leg) for leg in fields["legs"])})


def _leg_from_json(choices: list[tuple[dict[str, Any], int]], **fields: Any) -> Leg:
    """Return the leg that JSON describes.

    Args:
        choices: fields of the candidate, and number of rounds, of each ``RunChoice``.
        fields: all other fields of ``Leg``.
    """
    return Leg(choices=tuple(RunChoice(Candidate(**candidate), rounds) for candidate, rounds in choices), **fields)


def log_folder(spec: SessionSpec, leg: Leg) -> Path | None:
    """Return the folder of a leg's TensorBoard logs, ``log_dir`` / label of the leg; ``None`` if there are no logs."""
    return Path(spec.log_dir, leg.label) if spec.log_dir is not None else None
