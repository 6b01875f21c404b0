# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Made-up training for controllers: gain and step time as functions of CF and step, played with training's latency."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast
from gravac.controllers import Controller, Decision, Measurement
from tests.controllers.laws import Step, drive

Curve = Callable[[float, int], float]
"""A value at (CF, step)."""

DENSE_CANDIDATE = Candidate("hook", DENSE, 1.0)


def topk(cf: float) -> Candidate:
    """A candidate that is not dense."""
    return Candidate("hook", "topk", cf)


PAPER = (DENSE_CANDIDATE, *(topk(cf) for cf in (10.0, 20.0, 40.0, 160.0, 1000.0)))
"""Dense, and the paper's exponential candidates."""


def forecasts(candidates: Iterable[Candidate], dense_exchange_s: float | None = None) -> tuple[Forecast, ...]:
    """Made-up forecasts of candidates: those that are not dense send indices besides.

    Args:
        candidates: the candidates.
        dense_exchange_s: predicted seconds of a dense exchange; ``None``: not known.
    """
    return tuple(
        Forecast(candidate, wire_ratio=candidate.cf, exchange_s=dense_exchange_s)
        if candidate.dense
        else Forecast(candidate, wire_ratio=candidate.cf / 2)
        for candidate in candidates
    )


def by_cf(values: Mapping[float, float]) -> Curve:
    """The same at every step."""
    return lambda cf, step: values[cf]


@dataclass(frozen=True)
class Script:
    """What training would measure.

    Attributes:
        gain: at (cf, step); dense has 1 without being asked.
        seconds: step time at (cf, step).
        optimism: shadow gain is this many times the gain, at most 1.
        samples: of a step.
        shadow_seconds: added to a step that evaluates shadows.
        learning_rate: by step.
        waited: seconds of each step in which training waited for the exchange; nan: not known.
    """

    gain: Curve
    seconds: Curve = lambda cf, step: 0.1
    optimism: float = 1.0
    samples: float = 10.0
    shadow_seconds: float = 0.0
    learning_rate: Callable[[int], float] = lambda step: math.nan
    waited: float = math.nan

    def measure(self, step: int, holds: Decision) -> Measurement:
        """What the decision that holds in a step comes to."""
        ran = holds.candidate
        gain = 1.0 if ran.dense else self.gain(ran.cf, step)
        return Measurement(
            step=step,
            candidate=ran,
            seconds=self.seconds(ran.cf, step) + (self.shadow_seconds if holds.shadow else 0.0),
            samples=self.samples,
            error=4 * (1 - gain),
            energy=4.0,
            shadow=tuple((cf, 4 * (1 - min(1.0, self.optimism * self.gain(cf, step)))) for cf in holds.shadow),
            waited=self.waited,
            coded=0.0 * self.waited,
            exchanged=self.waited,
            learning_rate=self.learning_rate(step),
        )


@dataclass(frozen=True)
class Played:
    """A played script."""

    steps: list[Step]

    @property
    def cfs(self) -> list[float]:
        """What ran, step by step."""
        return [step.applied.candidate.cf for step in self.steps]

    @property
    def runs(self) -> list[tuple[float, int]]:
        """What ran, and for how many steps on end."""
        return [(cf, len(list(same))) for cf, same in itertools.groupby(self.cfs)]

    @property
    def path(self) -> list[float]:
        """What ran, one after another."""
        return [cf for cf, _ in self.runs]

    @property
    def told(self) -> list[Decision]:
        """The decisions that ended a window."""
        return [step.decision for step in self.steps if step.decision.summary is not None]

    @property
    def reasons(self) -> list[str]:
        """Theirs."""
        return [decision.reason for decision in self.told]

    @property
    def end(self) -> Any:
        """The controller's last state."""
        return self.steps[-1].state


def play(
    controller: Controller[Any],
    script: Script,
    steps: int = 400,
    candidates: Sequence[Candidate] = PAPER,
    dense_exchange_s: float | None = None,
) -> Played:
    """Drive a controller through a script; ``dense_exchange_s``: predicted seconds of a dense exchange."""
    return Played(list(drive(controller, forecasts(candidates, dense_exchange_s), script.measure, steps)))
