# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that the progress of steps is measured on.

The lab's three tasks, nanoGPT's model, and two that only measurements have. ``gravac/beliefs/shipped.json`` is fitted
to all six; other constants of gravac were tuned on the lab's three alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gravac.lab import tasks
from gravac.lab.tasks.base import Task
from tests.measure.programs.glyphs import Glyphs
from tests.measure.programs.nanogpt_model import NanoGPT
from tests.measure.programs.tokens import Tokens


@dataclass(frozen=True)
class Program:
    """A program, and how it is trained.

    Attributes:
        make: function that takes seed, learning rate, and folder of nanoGPT's clone, and returns the task.
        rates: learning rates that dense training is tried at, ascending, each about three times the one before.
        steps: number of training steps.
        clip: largest norm of a step's gradient; ``None``: it is not clipped.
        tuned_on: whether gravac's constants have seen it.
    """

    make: Callable[[int, float, Path | None], Task]
    rates: tuple[float, ...]
    steps: int
    clip: float | None = None
    tuned_on: bool = False


def _of_lab(name: str, scale: float) -> Callable[[int, float, Path | None], Task]:
    def make(seed: int, rate: float, clone: Path | None) -> Task:
        return tasks.make(name, scale=scale, seed=seed, learning_rate=rate)

    return make


def _nanogpt(seed: int, rate: float, clone: Path | None) -> Task:
    if clone is None:
        raise ValueError(
            "nanogpt: the model needs a clone of github.com/karpathy/nanoGPT; name the folder of a clone by --nanogpt"
        )
    return NanoGPT(seed=seed, learning_rate=rate, clone=clone)


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "charlm": Program(_of_lab("charlm", 0.4), (4.4e-4, 1.3e-3, 4e-3, 1.2e-2, 3.6e-2), 400, tuned_on=True),
        "lstm": Program(_of_lab("lstm", 1.0), (1.8e-3, 5.3e-3, 1.6e-2, 4.8e-2, 0.14), 300, tuned_on=True),
        "denoise": Program(_of_lab("denoise", 1.0), (0.022, 0.067, 0.2, 0.6, 1.8), 400, tuned_on=True),
        "nanogpt": Program(_nanogpt, (3.3e-4, 1e-3, 3e-3, 9e-3, 2.7e-2), 600, clip=1.0),
        "glyphs": Program(
            lambda seed, rate, _: Glyphs(seed=seed, learning_rate=rate), (0.011, 0.033, 0.1, 0.3, 0.9), 400
        ),
        "tokens": Program(
            lambda seed, rate, _: Tokens(seed=seed, learning_rate=rate),
            (3.3e-4, 1e-3, 3e-3, 9e-3, 2.7e-2),
            500,
            clip=1.0,
        ),
    }
)
"""Every program by its name."""


def shortened(program: Program, steps: int) -> Program:
    """Return a program of fewer training steps, to try a measurement.

    Example:
        >>> shortened(PROGRAMS["charlm"], 20).steps
        20
    """
    return replace(program, steps=min(steps, program.steps))
