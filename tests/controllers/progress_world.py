# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A made-up run whose loss falls by what its steps are really worth, whatever was believed of them."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gravac import Goodput
from gravac.candidate import Candidate, Forecast
from gravac.controllers import Decision, Measurement
from gravac.controllers.goodput_state import GoodputState

LEADING, FADING = 100, 50
"""Number of outer steps whose averaging lowers the loss for a while; number of steps in which that falls to 1/e."""

LATENCY = 2
"""Number of steps by the hook from a measurement to the decision that it leads to."""


@dataclass(frozen=True)
class World:
    """A run's forecasts, and what is true.

    Attributes:
        forecasts: what is believed, dense first.
        seconds: time of a step of each candidate.
        worth: real efficiency of each candidate's steps, by the progress made.
        total: number of steps.
        noise: standard deviation of a reading of the loss.
        leaving: seconds that leaving outer steps takes.
        probe: whether there is one.
        jitter: largest relative difference of a step's time from ``seconds``.
        gains: gain of each candidate's steps; 1 of those that are not in it.
        lead: progress by which averaged weights lower the loss for a while, over the progress of the last 100 outer
            steps. At the default a trial reads about 1.3 times the efficiency, as trials of real programs do.
    """

    forecasts: tuple[Forecast, ...]
    seconds: dict[Candidate, float]
    worth: dict[Candidate, float]
    total: int = 5000
    noise: float = 0.002
    leaving: float = 0.0
    probe: bool = True
    jitter: float = 0.02
    gains: Mapping[Candidate, float] = field(default_factory=dict)
    lead: float = 0.35

    def loss(self, progress: float) -> float:
        """Loss after so much progress, in dense steps: it falls ever more slowly."""
        return 2.0 + 2.0 / math.sqrt(1 + progress / 150)

    def goodput(self, candidate: Candidate) -> float:
        """Real progress of a candidate in a second."""
        return self.worth[candidate] / self.seconds[candidate]

    @property
    def best(self) -> Candidate:
        """The candidate of highest real goodput."""
        return max(self.seconds, key=self.goodput)


@dataclass
class Played:
    """What a run came to.

    Attributes:
        state: the controller's, at the end.
        decisions: those that changed anything or had a reason, each with the number of steps made before.
        steps_at: number of steps of each candidate.
        progress: made in all, in dense steps.
        seconds: taken in all.
        readings: number of readings of the loss.
    """

    state: GoodputState
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    steps_at: dict[Candidate, int] = field(default_factory=dict)
    progress: float = 0.0
    seconds: float = 0.0
    readings: int = 0

    def lost(self, world: World, candidate: Candidate) -> float:
        """Progress lost against a candidate that runs from the first step on, over the progress made in that time."""
        could = world.goodput(candidate) * self.seconds
        return 1 - self.progress / could


def play(
    world: World,
    controller: Goodput | None = None,
    seed: int = 0,
    until: Callable[[Played], bool] = lambda played: False,
) -> Played:
    """Run a controller in a made-up world, with the latencies of real modes."""
    chance = random.Random(seed)
    goodput = (controller or Goodput()).with_probe(world.total) if world.probe else controller or Goodput()
    state, decision = goodput.start(world.forecasts)
    played = Played(state)
    coming = [decision] * LATENCY
    made = number = 0
    lead, probe = 0.0, False
    mode = decision.candidate.mode
    while made < world.total and not until(played):
        holds = coming[0] if mode == "hook" else coming[-1]
        runs = holds.candidate
        if runs.mode != mode:
            if mode == "outer":
                played.seconds += world.leaving
            coming, mode = [holds] * LATENCY, runs.mode
        steps = holds.watch if mode == "native" else runs.every
        steps = min(steps, world.total - made)
        reading = math.nan
        if probe and mode != "outer" and world.probe:
            reading, probe = world.loss(played.progress + lead) + chance.gauss(0, world.noise), False
            played.readings += 1
        seconds = world.seconds[runs] * (1 + world.jitter * chance.uniform(-1, 1))
        waited = 0.5 * seconds if mode == "hook" else math.nan
        measured = Measurement(
            step=number, candidate=runs, seconds=seconds, samples=2.0,
            error=1 - world.gains.get(runs, 1.0), energy=1.0, waited=waited,
            coded=0.0 if mode == "hook" else math.nan, exchanged=waited, first=made, steps=steps, probe=reading,
        )  # fmt: skip
        progress = steps * world.worth[runs]
        if runs.mode == "outer":
            lead = min(lead + world.lead * progress, world.lead * LEADING * world.worth[runs])
        else:
            lead *= math.exp(-steps / FADING)
        played.progress += progress
        played.seconds += steps * seconds
        played.steps_at[runs] = played.steps_at.get(runs, 0) + steps
        made, number = made + steps, number + 1
        state, decision = goodput.observe(state, measured)
        probe |= decision.probe
        coming = [*coming[1:], decision]
        if decision.reason:
            played.decisions.append((made, decision))
        played.state = state
    return played
