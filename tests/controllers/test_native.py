# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers choose among native, hook and outer steps: what they try, what that costs, and when they come back."""

import bisect
import functools
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac import Goodput, GraVAC
from gravac.candidate import Candidate, Forecast
from gravac.controllers import Decision, Measurement
from gravac.controllers.base import DEFAULT_STRETCH_STEPS
from gravac.controllers.goodput_prices import LEAST_WAITING_FRACTION
from gravac.controllers.goodput_reasons import Finding
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.native import LARGEST_FLOAT16_NORM, LONGEST_STRETCH_SECONDS, LONGEST_STRETCH_STEPS, fits_float16
from gravac.controllers.step_times import SteadyLink, StepTiming, exchange_fraction
from gravac.controllers.window import Window
from gravac.engine.admission import Admission, with_native
from gravac.modes.outer.candidates import with_outer_candidates
from tests.controllers.laws import Step, drive
from tests.controllers.test_goodput import LADDER

NATIVE, NATIVE16 = Candidate("native", "dense", 1.0), Candidate("native", "dense", 2.0)

CODING = {"float32": 0.0, "bfloat16": 0.02, "quantize": 0.1, "topkc": 0.08, "native": 0.0, "native float16": 0.005}
"""Share of compute that coding takes, by family."""

EVERY = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Site:
    """Made-up ranks: what a step of each mode takes.

    Attributes:
        seconds: seconds of a native step in float32.
        exposed: share of that in which it waits for bytes.
        hook: seconds that the hook costs besides coding.
        hides: share of compute that an exchange hides behind.
        noise: relative standard deviation of a step.
        slower: how many times longer exchanges take, by training step.
        machine: how many times longer compute takes, by training step.
        every: numbers of steps from one exchange to the next that are candidates.
        leaving_s: seconds that leaving outer steps takes.
        energy: energy of each step.
        forward: whether hook and native steps tell how long their forward takes, a third of compute.
    """

    seconds: float
    exposed: float
    hook: float = 0.0025
    hides: float = 0.3
    noise: float = 0.0
    slower: Callable[[int], float] = lambda step: 1.0
    machine: Callable[[int], float] = lambda step: 1.0
    every: tuple[int, ...] = (1,)
    leaving_s: float | None = 0.0
    energy: float = 2.0
    forward: bool = False

    @property
    def compute(self) -> float:
        return self.seconds * (1 - self.exposed)

    @property
    def dense(self) -> float:
        """Seconds of a dense exchange; of a step that waits for nothing, half of what would hide."""
        hidden = self.hides * self.compute
        return hidden + self.exposed * self.seconds if self.exposed else hidden / 2

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        return admitted(self.compute, self.dense, self.every, self.leaving_s)

    @functools.cached_property
    def known(self) -> dict[Candidate, Forecast]:
        return {forecast.candidate: forecast for forecast in self.forecasts}

    def of(self, candidate: Candidate) -> Forecast:
        known = self.known
        return known.get(candidate) or known[replace(candidate, mode="native")]

    def times(self, candidate: Candidate, step: int) -> tuple[float, float, float, float]:
        """Seconds of a training step, and of what it waits, codes and exchanges."""
        forecast, compute = self.of(candidate), self.compute * self.machine(step)
        family = forecast.family.split(" every")[0].removesuffix(" behind steps")
        coded = CODING[family] * compute / candidate.every
        exchange = self.slower(step) * self.dense / forecast.wire_ratio
        hidden = self.hides * compute if candidate.mode != "outer" else candidate.delay * compute / candidate.every
        waited = max(0.0, exchange - hidden)
        hook = {"native": 0.0, "hook": self.hook, "outer": 0.1 * self.hook}[candidate.mode]
        return compute + hook + coded + waited, waited, coded, max(exchange, waited)

    def goodput(self, candidate: Candidate, step: int = 0) -> float:
        return self.of(candidate).least_efficiency / self.times(candidate, step)[0]

    def best(self, step: int = 0) -> float:
        return max(self.goodput(forecast.candidate, step) for forecast in self.forecasts)

    def measure(self, seed: int) -> Callable[[int, Decision], Measurement]:
        draw = random.Random(seed)

        def measured(step: int, holds: Decision) -> Measurement:
            seconds, waited, coded, exchanged = self.times(holds.candidate, step)
            steps = 1 if holds.candidate.mode == "hook" else DEFAULT_STRETCH_STEPS
            chance = math.exp(draw.gauss(0, self.noise / math.sqrt(steps))) if self.noise else 1.0
            error = 0.0 if holds.candidate.dense else 1.0
            made = Measurement(0, holds.candidate, chance * seconds, 16.0, error, self.energy)
            if self.forward and holds.candidate.delay < holds.candidate.every:
                made = replace(made, forward_seconds=chance * self.compute * self.machine(step) / 3)
            return replace(made, waited=chance * waited, coded=coded, exchanged=exchanged)

        return measured

    def run(self, steps: int, seed: int = 0) -> list[Step]:
        made = []
        for step in drive(Goodput(), self.forecasts, self.measure(seed), steps):
            made.append(step)
            if step.measured.first + step.measured.steps >= steps:
                break
        return made

    def lost(self, steps: list[Step]) -> float:
        """Share of the time that the best candidate at each moment would have spared."""
        taken = spared = 0.0
        for made in steps:
            measured = made.measured
            seconds = self.times(measured.candidate, measured.first)[0]
            worth = self.of(measured.candidate).least_efficiency / self.best(measured.first)
            taken, spared = taken + measured.steps * seconds, spared + measured.steps * (seconds - worth)
        return spared / taken


@functools.cache
def admitted(compute: float, dense: float, every: tuple[int, ...], leaving_s: float | None) -> tuple[Forecast, ...]:
    """The forecasts of a site: many sites differ only in what was not forecast, and the search of rounds takes long."""
    known = tuple(
        replace(rung, coding_s=0.6 * CODING[rung.family] * compute, exchange_s=dense / rung.wire_ratio)
        for rung in LADDER
    )
    sixteen_bit = replace(known[1], candidate=Candidate("hook", "dense", 2.0))
    admission = Admission((known[0], sixteen_bit, *known[2:]))
    if every != (1,):
        admission = with_outer_candidates(admission, every, compute, "auto", False, leaving_s=leaving_s)
    return with_native(admission, (1.0, 2.0)).forecasts


def modes(steps: list[Step]) -> set[str]:
    return {step.measured.candidate.mode for step in steps}


@given(seconds=st.floats(0.005, 1.0), waited=st.floats(0.1, 0.4), coded=st.floats(0.05, 0.4))
def test_where_dense_in_the_hook_is_best_native_is_tried_before_what_compresses(
    seconds: float, waited: float, coded: float
) -> None:
    """Also where it promises less: it costs least to try."""
    forecasts = Site(seconds, 0.2, hides=0.1).forecasts
    at = next(at for at, forecast in enumerate(forecasts) if forecast.candidate == Candidate("hook", "dense", 2.0))
    entry = StepTiming(at, seconds, 1, 1.0, (waited * seconds, coded * seconds, waited * seconds))
    state = GoodputState(
        forecasts, "hold", at, at, Window(forecasts[at].candidate), (entry,), steps=12, elapsed=12 * seconds
    )
    after, _ = Goodput()._try_or_hold(state, Finding(""))
    assert after.running.mode == "native"


@pytest.mark.parametrize("seconds", [0.015, 0.07, 0.1], ids="{:g}s".format)
@pytest.mark.parametrize("exposed", [0.0, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("every", [(1,), EVERY], ids=["in each step", "or apart"])
def test_on_a_fast_link_it_ends_native_and_trials_cost_at_most_two_percent(
    seconds: float, exposed: float, every: tuple[int, ...]
) -> None:
    site = Site(seconds, exposed, noise=0.03, every=every)
    steps = site.run(1000)
    assert steps[-1].measured.candidate.mode == "native"  # after which a look may be due
    later = [step for step in steps if step.measured.first >= 100]
    share = sum(step.measured.steps for step in later if step.measured.candidate.mode != "native") / 900
    assert share <= 0.1
    assert site.lost(steps) <= 0.02 + Goodput().hysteresis * (exposed > 0)


@given(seconds=st.floats(0.01, 0.3), exposed=st.floats(0.0, 0.028), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_no_trial_where_the_exposed_exchange_is_small(seconds: float, exposed: float, seed: int) -> None:
    """The exchange is forecast to take that part of a step at most, so nothing can save more."""
    site = Site(seconds, exposed, hook=0.1 * seconds, hides=0.0, noise=0.02, every=EVERY)
    steps = site.run(1500, seed)
    assert {step.measured.candidate for step in steps if step.measured.first >= 60} == {NATIVE}


@pytest.mark.parametrize("exposed", [0.0, 0.02, 0.1])
def test_native_is_settled_on_where_the_hook_gains_nothing(exposed: float) -> None:
    """The link's probe promised the hook more than it gains: native steps are tried, and stay."""
    site = Site(0.05, exposed, hook=0.006, hides=0.6)
    steps = site.run(300)
    assert steps[0].measured.candidate.mode == "hook"
    assert steps[-1].measured.candidate.mode == "native"


@pytest.mark.parametrize("exposed", [0.6, 0.9])
def test_a_slow_link_sees_native_steps_hardly_ever(exposed: float) -> None:
    steps = Site(0.5, exposed).run(600)
    native = sum(step.measured.steps for step in steps if step.measured.candidate.mode == "native")
    assert native <= 2 * DEFAULT_STRETCH_STEPS
    assert steps[-1].measured.candidate.mode == "hook"


@given(
    native=st.sampled_from([0.01, 0.07, 0.3, 1.0]),
    others=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    steps=st.integers(100, 5000),
)
def test_native_is_never_left_for_what_cannot_be_better(native: float, others: list[float], steps: int) -> None:
    forecasts = Site(native, 0.1, every=EVERY).forecasts
    measured = [StepTiming(0, native, 5, 1.0)]
    measured += [StepTiming(at + 2, s, 5, forecasts[at + 2].efficiency, (0.0, 0.0, 0.0)) for at, s in enumerate(others)]
    state = GoodputState(
        forecasts, "hold", 0, 0, Window(NATIVE), tuple(measured), windows=6, steps=steps, elapsed=steps * native
    )
    goodput = Goodput()
    after, _ = goodput._try_or_hold(state, Finding(""))
    chosen = after.position
    if chosen != 0:
        bound = after.least_efficiency(chosen) / after.step_time_bounds.shortest_step_seconds(chosen, goodput.expire)
        assert bound > state.goodput(measured[0])


@given(
    exposed=st.floats(0.0, 0.95) | st.floats(0.95, 0.995),
    seconds=st.sampled_from([0.015, 1.0, 7.0]),
    leaving=st.sampled_from([0.0, 1.0, 30.0]),
)
@settings(max_examples=40)
def test_outer_steps_run_only_where_they_win_by_the_progress_that_is_sure(
    exposed: float, seconds: float, leaving: float
) -> None:
    site = Site(seconds, exposed, every=EVERY, leaving_s=leaving)
    best_in_each_step = max(site.goodput(f.candidate) for f in site.forecasts if f.candidate.mode != "outer")
    for made in site.run(800):
        if made.decision.candidate.mode == "outer" and made.decision.summary is not None:
            assert site.of(made.decision.candidate).deviation > 0
            assert "more steps than dense" in made.decision.reason
            if made.state.phase == "hold":
                assert site.goodput(made.decision.candidate) > best_in_each_step


def test_outer_steps_are_chosen_on_a_link_that_is_slow_enough_for_them() -> None:
    site = Site(7.0, 0.99, every=EVERY, leaving_s=20.0)
    steps = site.run(1500)
    assert steps[-1].measured.candidate.mode == "outer"
    assert site.lost(steps) < 0.15


def test_the_way_out_of_outer_steps_is_a_price() -> None:
    """They would win by a quarter; but becoming one again takes as long as a third of the steps so far."""
    cheap, dear = (Site(3.0, 0.985, every=EVERY, leaving_s=leaving).run(300) for leaving in (0.0, 1e4))
    assert "outer" in modes(cheap)
    assert "outer" not in modes(dear)


def test_stretches_grow_while_nothing_changes_and_start_again_after_a_surprise() -> None:
    site = Site(0.01, 0.0, hides=0.0, machine=lambda step: 1.0 if step < 1000 else 1.6)
    steps = site.run(2000)
    lengths = [step.measured.steps for step in steps if step.measured.candidate == NATIVE]
    assert lengths[:5] == [8, 8, 16, 32, 64] or lengths[:4] == [8, 16, 32, 64]
    assert max(lengths) <= min(LONGEST_STRETCH_STEPS, LONGEST_STRETCH_SECONDS / 0.01 + 1)
    (surprised,) = [
        at for at, step in enumerate(steps) if " instead of " in step.decision.reason and step.decision.watch == 8
    ][:1]
    assert steps[surprised + 1].measured.steps in (1, DEFAULT_STRETCH_STEPS)
    assert steps[-1].measured.candidate == NATIVE


@pytest.mark.parametrize("seconds", [0.015, 0.07])
@pytest.mark.parametrize("slower", [10.0, 50.0])
@pytest.mark.parametrize("forward", [False, True], ids=["", "forward is timed"])
def test_a_link_that_breaks_down_under_native_steps_is_noticed_and_so_is_one_that_comes_back(
    seconds: float, slower: float, forward: bool
) -> None:
    def link(step: int) -> float:
        return slower if 1000 <= step < 2000 else 1.0

    site = Site(seconds, 0.1, slower=link, noise=0.02, forward=forward)
    steps = site.run(3000)
    ran = {range(s.measured.first, s.measured.first + s.measured.steps): s.measured.candidate.mode for s in steps}
    at = {step: mode for covered, mode in ran.items() for step in covered}
    assert at[900] == "native"
    assert at[1000 + 2 * LONGEST_STRETCH_STEPS] == "hook"  # here no slow step ends a stretch early
    assert at[2600] == "native"


def shared_machine(seed: int) -> Callable[[int], float]:
    """How many times longer compute takes on a machine with other work, by training step: up to twice, for a while."""
    draw = random.Random(seed)
    ends, speeds = [0], [1.0]
    while ends[-1] < 3000:
        ends.append(ends[-1] + draw.randint(20, 200))
        speeds.append(draw.choice([1.0, 1.0, 1.2, 1.5, 2.0]))
    return lambda step: speeds[bisect.bisect_right(ends, step)]


@pytest.mark.parametrize("exposed", [0.0, 0.05], ids="{:g} of a step waits".format)
def test_with_the_time_of_forward_a_slower_machine_is_not_taken_for_a_slower_link(exposed: float) -> None:
    lost = {False: 0.0, True: 0.0}
    for seed, forward in itertools.product(range(6), lost):
        site = Site(0.1, exposed, hook=0.005, noise=0.05, machine=shared_machine(seed), every=EVERY, forward=forward)
        steps = site.run(1200, seed)
        lost[forward] += site.lost(steps) / 6
        if forward and not exposed:
            assert not any("the link" in step.decision.reason for step in steps)
    assert lost[True] <= min(0.01, lost[False])


def test_outer_steps_are_seldom_left_to_time_hook_steps_again_while_the_link_is_seen_to_stay() -> None:
    left = {False: 0, True: 0}
    for seed, forward in itertools.product(range(3), left):
        site = Site(0.8, 0.97, hook=0.003, noise=0.05, every=EVERY, leaving_s=0.8, forward=forward)
        steps = site.run(5000, seed)
        assert steps[-1].measured.candidate.mode == "outer"
        ran = [step.measured.candidate.mode for step in steps]
        left[forward] += sum(before == "outer" != after for before, after in itertools.pairwise(ran))
    assert 0 < 2 * left[True] <= left[False]


@pytest.mark.parametrize(
    ("since", "until", "limit"), [(20, 100, 160), (20, 61, 160), (20, 60, 40), (21, 100, 40)], ids=str
)
def test_a_measured_time_is_old_later_if_the_link_was_seen_to_stay(since: int, until: int, limit: int) -> None:
    timing = StepTiming(0, 1.0, 20, 1.0)
    state = GoodputState(Site(1.0, 0.5).forecasts, "hold", 0, 0, Window(NATIVE), (timing,), windows=100)
    assert state.step_time_bounds.windows_until_old(timing, 40) == 40 and state.is_old(timing, 40)
    seen = replace(state, steady_link=SteadyLink(1, 0.1, since, until))
    assert seen.step_time_bounds.windows_until_old(timing, 40) == limit
    assert seen.step_time_bounds.shortest_step_seconds(0, 40) == (1.0 if limit > 80 else 0.25)


@pytest.mark.parametrize("mode", ["hook", "native"])
def test_the_link_is_steady_while_an_exchange_or_a_native_step_takes_as_long_as_at_first(mode: str) -> None:
    forecasts = Site(1.0, 0.5).forecasts
    at = next(at for at, one in enumerate(forecasts) if one.candidate.mode == mode)
    window = Window(forecasts[at].candidate)
    state = GoodputState(forecasts, "hold", at, at, window, (StepTiming(at, 1.0, 0, 1.0),))

    def after(windows: int, ratio: float, forward_s: float = 0.5) -> SteadyLink | None:
        """The period after a window in which the exchange, or a native step, took ``ratio`` times as long as at first.

        The speed of the machine is another one: a native step, and its forward, take another time.
        """
        nonlocal state
        seconds = ratio * 2 * forward_s if mode == "native" else 1.0
        saved = () if mode == "native" else ((0.0, 0.0, ratio),)
        forwards = (forward_s,) if forward_s else ()
        state = replace(state, windows=windows, window=replace(window, saved=saved, forwards=forwards))
        state = state.watch_link(seconds, 0.25, 40)
        return state.steady_link

    first = 2.0 if mode == "native" else 1.0
    assert after(1, 1.0, forward_s=0.0) is None, "the machine's speed is not known"
    assert after(12, 1.0) == SteadyLink(at, first, 2, 12), "with the trials of the ten windows before"
    assert after(13, 1.1, forward_s=0.7) == SteadyLink(at, first, 2, 13)
    assert after(14, 1.2) == SteadyLink(at, first, 2, 13 if mode == "native" else 14)
    assert after(15, 0.5) == SteadyLink(at, first, 2, 13 if mode == "native" else 14)
    assert after(60, 0.5) == SteadyLink(at, first / 2, 50, 60), "measurements have become old meanwhile"
    state = state.after_link_change(3.0)
    assert state.steady_link is None


@given(
    seconds=st.floats(0.01, 10.0),
    waited=st.floats(0.0, 0.9),
    forwards=st.lists(st.floats(1e-3, 10.0), min_size=2, max_size=2),
)
def test_a_measured_time_follows_the_speed_of_the_machine_but_for_the_wait(
    seconds: float, waited: float, forwards: list[float]
) -> None:
    timing = StepTiming(0, seconds, 1, 1.0, saved=(waited * seconds, 0.0, seconds))
    measured = timing.at_speed(forwards[0])
    assert measured == replace(timing, forward_s=forwards[0])  # not known: as fast as now
    later = measured.at_speed(forwards[1])
    assert later.forward_s == pytest.approx(forwards[1])
    work = (1 - waited) * seconds
    assert later.seconds == pytest.approx(waited * seconds + work * forwards[1] / forwards[0])
    assert later.at_speed(forwards[0]).seconds == pytest.approx(seconds)


@given(
    latency=st.floats(0.0, 0.5),
    dense=st.floats(0.0, 5.0),
    compute=st.floats(0.01, 0.5),
    hidden=st.floats(0.0, 0.5),
    measured=st.lists(st.integers(0, 200), min_size=1, max_size=5),
)
def test_the_bound_of_an_exchange_by_other_steps_is_never_above_what_it_takes(
    latency: float, dense: float, compute: float, hidden: float, measured: list[int]
) -> None:
    forecasts = Site(0.1, 0.1, every=EVERY).forecasts

    def exchange(forecast: Forecast) -> float:
        return latency / forecast.candidate.every + dense / forecast.wire_ratio

    entries = []
    for at in {at % len(forecasts) for at in measured}:
        waited = max(0.0, exchange(forecasts[at]) - hidden)
        native = forecasts[at].candidate.mode == "native"
        coded = 0.0 if native else 0.1 * compute
        saved = None if native else (waited, coded, exchange(forecasts[at]))
        entries.append(StepTiming(at, compute + coded + waited, 1, 1.0, saved))
    state = GoodputState(forecasts, "hold", entries[0].position, 0, Window(NATIVE), tuple(entries), moved=True)
    for forecast in forecasts:
        assert state.step_time_bounds._shortest_exchange_seconds(forecast) <= exchange(forecast) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("at", range(130, 160))
@pytest.mark.parametrize("hook", [-0.012, 0.0025])
def test_when_the_link_breaks_down_under_the_hook_no_native_step_is_tried(at: int, hook: float) -> None:
    """Not even when it breaks down during a trial of another candidate, whose slow steps look like that one's fault."""
    site = Site(0.085, 0.1, hook=hook, slower=lambda step: 70.0 if step >= at else 1.0, noise=0.05)
    steps = [made.measured for made in site.run(300, seed=at)]
    before = next(measured for measured in reversed(steps) if measured.first <= at - 3)
    if before.candidate.mode == "hook":
        assert {measured.candidate.mode for measured in steps if measured.first >= at} == {"hook"}


def test_when_the_link_broke_down_no_round_is_tried_that_sends_too_much_for_it() -> None:
    """A native step sends as many bytes as a dense round, so its time says that such a round would be too slow."""
    site = Site(0.085, 0.1, slower=lambda step: 100.0 if step >= 150 else 1.0, noise=0.05, every=EVERY, leaving_s=0.1)
    steps = [made.measured for made in site.run(400) if made.measured.first >= 150]
    shortest = min(site.times(measured.candidate, 400)[0] for measured in steps)
    rounds = {measured.candidate for measured in steps if measured.candidate.mode == "outer"}
    assert rounds and max(site.times(candidate, 400)[0] for candidate in rounds) < 2 * shortest


@given(factor=st.floats(0.3, 5.0), held=st.integers(0, 200), seconds=st.floats(0.01, 2.0))
def test_on_a_slower_link_larger_exchanges_are_risky_until_two_sizes_were_timed(
    factor: float, held: int, seconds: float
) -> None:
    forecasts = Site(0.1, 0.1, every=EVERY).forecasts
    held %= len(forecasts)
    native = forecasts[held].candidate.mode == "native"
    entry = StepTiming(held, seconds, 1, 1.0, None if native else (0.0, 0.0, 0.0))
    before = GoodputState(forecasts, "hold", held, held, Window(forecasts[held].candidate), (entry,))
    after = before.after_link_change(factor * seconds)

    risky = [at for at in range(len(forecasts)) if after.step_time_bounds.has_unbounded_time(at)]
    assert not any(before.step_time_bounds.has_unbounded_time(at) for at in range(len(forecasts)))
    larger = [at for at, f in enumerate(forecasts) if exchange_fraction(f) > exchange_fraction(forecasts[held])]
    assert risky == (larger if factor > 1 else [])
    others = [at for at, f in enumerate(forecasts) if f.candidate.every == 1 and f.candidate.mode == "hook"][:2]
    two = (*(StepTiming(at, 0.1, 1, 1.0, (0.0, 0.0, 0.0)) for at in others if at != held), entry)
    if len({forecasts[one.position].wire_ratio for one in two if forecasts[one.position].candidate.every == 1}) > 1:
        assert not any(
            replace(after, entries=two).step_time_bounds.has_unbounded_time(at) for at in range(len(forecasts))
        )


def test_the_price_of_leaving_outer_steps_grows_with_what_dense_exchanges_take() -> None:
    site = Site(0.1, 0.1, hides=0.0, every=EVERY, leaving_s=2.0)
    apart = next(forecast for forecast in site.forecasts if forecast.candidate.mode == "outer")
    native, hook = StepTiming(0, 1.1, 1, 1.0), StepTiming(2, 0.1, 1, 1.0, (0.0, 0.0, 0.0))
    state = GoodputState(site.forecasts, "hold", 0, 0, Window(NATIVE), (native, hook))
    assert state.step_time_bounds.leaving_seconds(apart) == 2.0
    assert replace(state, moved=True).step_time_bounds.leaving_seconds(apart) == pytest.approx(2.0 * 1.0 / site.dense)
    assert state.step_time_bounds.leaving_seconds(site.forecasts[0]) == 0.0
    assert (
        replace(state, moved=True, entries=(native,)).step_time_bounds.leaving_seconds(apart) == 2.0
    )  # no sign of the link yet
    assert (
        replace(state, moved=True, entries=(replace(native, seconds=0.1), hook)).step_time_bounds.leaving_seconds(apart)
        == 2.0
    )
    slow = replace(hook, saved=(0.0, 0.0, 7 * (site.forecasts[2].exchange_s or 0.0)))
    assert replace(state, moved=True, entries=(slow,)).step_time_bounds.leaving_seconds(apart) == pytest.approx(14.0)


def test_float16_needs_gradients_that_are_far_from_too_large() -> None:
    quiet, loud = (Site(0.05, 0.4, hides=0.0, energy=energy) for energy in (2.0, 2 * LARGEST_FLOAT16_NORM**2))
    assert NATIVE16 in {step.measured.candidate for step in quiet.run(400)}
    assert NATIVE16 not in {step.measured.candidate for step in loud.run(400)}
    assert loud.run(400)[-1].state.energy == 2 * LARGEST_FLOAT16_NORM**2


def test_float16_is_not_begun_with() -> None:
    """No gradient was seen yet."""
    assert not fits_float16(0.0)
    for exposed in (0.0, 0.3, 0.9):
        assert Site(0.05, exposed).run(1)[0].measured.candidate != NATIVE16


def test_a_restored_native_hold_goes_on_with_its_stretch() -> None:
    site, goodput = Site(0.01, 0.0, hides=0.0), Goodput()
    last = site.run(600)[-1]
    state, decision = goodput.restore(goodput.dump(last.state), site.forecasts)
    assert (state, decision.watch) == (last.state, last.decision.watch)
    assert decision.watch > DEFAULT_STRETCH_STEPS


def test_what_was_measured_stays_when_outer_steps_are_admitted_beside_it() -> None:
    alone, more = Site(0.3, 0.5), Site(0.3, 0.5, every=EVERY)
    goodput = Goodput()
    last = alone.run(60)[-1]
    state, decision = goodput.restore(goodput.dump(last.state), more.forecasts)
    assert decision.reason == ""
    assert decision.candidate == last.decision.candidate
    before = {last.state.forecasts[entry.position].candidate: entry.seconds for entry in last.state.entries}
    assert {state.forecasts[entry.position].candidate: entry.seconds for entry in state.entries} == before


# GraVAC

GRAVAC = (
    Forecast(NATIVE, 1.0),
    Forecast(Candidate("hook", "dense", 2.0), 2.0),
    Forecast(NATIVE16, 2.0),
    *(Forecast(Candidate("hook", "topk", cf), cf / 2) for cf in (10.0, 20.0, 40.0)),
)


def gains(gain: Callable[[int], float], energy: float = 4.0) -> Callable[[int, Decision], Measurement]:
    def measure(step: int, holds: Decision) -> Measurement:
        share = 1.0 if holds.candidate.dense else gain(step)
        shadow = tuple((cf, energy * (1 - gain(step))) for cf in holds.shadow)
        return Measurement(0, holds.candidate, 0.1, 10.0, energy * (1 - share), energy, shadow)

    return measure


ABSOLUTE = GraVAC(epsilon_mode="absolute", epsilon=0.5)


@pytest.mark.parametrize("forecasts", [GRAVAC, (GRAVAC[0], *GRAVAC[3:])], ids=["float16", "float32"])
def test_gravac_rests_native_and_evaluates_with_the_hook_when_the_rest_is_over(
    forecasts: tuple[Forecast, ...],
) -> None:
    steps = list(drive(ABSOLUTE, forecasts, gains(lambda step: 0.1), 600))
    native = [step for step in steps if step.measured.candidate.mode == "native"]
    assert {step.measured.candidate for step in native} <= {forecast.candidate for forecast in forecasts}
    assert sum(step.measured.steps for step in native) > 4 * (len(steps) - len(native))
    evaluated = [step for step in steps if step.measured.shadow]
    assert {step.measured.candidate for step in evaluated if step.measured.first > 60} == {
        native[0].measured.candidate.in_hook
    }


def test_gravac_comes_back_from_native_when_gains_do() -> None:
    steps = list(drive(ABSOLUTE, GRAVAC, gains(lambda step: 0.1 if step < 400 else 0.9), 900))
    assert "native" in modes(steps)
    assert any(step.measured.candidate.compressor == "topk" for step in steps if step.measured.first > 400)


def test_gravac_with_nothing_that_sends_less_is_native_for_good() -> None:
    steps = list(drive(GraVAC(), GRAVAC[:1], gains(lambda step: 1.0), 20))
    assert {step.measured.candidate for step in steps} == {NATIVE}
    assert steps[-1].measured.steps == LONGEST_STRETCH_STEPS


def test_gravac_goes_to_float16_only_where_gradients_fit() -> None:
    steps = list(drive(ABSOLUTE, GRAVAC, gains(lambda step: 0.1, energy=2 * LARGEST_FLOAT16_NORM**2), 600))
    assert NATIVE16 not in {step.measured.candidate for step in steps}


def test_algorithm_1_as_printed_is_never_native() -> None:
    literal = GraVAC(paper_literal=True)
    assert not literal.chooses_native
    assert modes(list(drive(literal, GRAVAC[:1], gains(lambda step: 0.1), 60))) == {"hook"}


def test_exposed_is_what_the_forecast_and_the_link_say() -> None:
    forecasts = Site(0.1, 0.1, hides=0.0).forecasts
    native, hook = StepTiming(0, 0.1, 1, 1.0), StepTiming(1, 0.2, 1, 1.0, (0.1, 0.01, 0.1))
    state = GoodputState(forecasts, "hold", 0, 0, Window(NATIVE), (native,))
    assert state.step_time_bounds.waiting_fraction(native) == pytest.approx(0.1)
    assert state.step_time_bounds.waiting_fraction(native) > LEAST_WAITING_FRACTION
    assert (
        replace(state, entries=(native, hook)).step_time_bounds.waiting_fraction(native) == 1.0
    )  # the link is 20 times slower than forecast
    assert replace(state, moved=True).step_time_bounds.waiting_fraction(native) == 1.0


def warming(site: Site, rise: int, falls: bool, seed: int = 0) -> Callable[[int, Decision], Measurement]:
    """Measurements of a site whose learning rate rises over so many training steps, then falls or stays."""
    measured, made = site.measure(seed), [0]

    def at_rate(step: int, holds: Decision) -> Measurement:
        now = measured(step, holds)
        made[0] += DEFAULT_STRETCH_STEPS if holds.candidate.mode == "native" else holds.candidate.every
        return replace(now, learning_rate=1e-3 * min(made[0] / rise, 1 - falls * made[0] / 1e6))

    return at_rate


@pytest.mark.parametrize("falls", [True, False])
@pytest.mark.parametrize("rise", [1, 50, 200, 400])
def test_no_outer_steps_while_the_learning_rate_warms_up(rise: int, falls: bool) -> None:
    site = Site(7.0, 0.99, every=EVERY, leaving_s=20.0)
    made, ran = 0, []
    for step in drive(Goodput(), site.forecasts, warming(site, rise, falls), 1500):
        ran.append((made, step.applied.candidate.mode))
        made += DEFAULT_STRETCH_STEPS if step.applied.candidate.mode == "native" else step.applied.candidate.every
        if ran[-1][1] == "outer":
            break
    first = next(at for at, mode in ran if mode == "outer")
    assert first >= rise
    assert first <= (1 if falls else 2) * rise + 100, "afterwards they are not put off for long"


def test_a_learning_rate_that_fell_is_no_longer_warming_up_until_it_rises_again() -> None:
    state = GoodputState(Site(1.0, 0.5).forecasts, "hold", 0, 0, Window(NATIVE))
    seen = []
    for rate in (0.1, 0.2, 0.3, 0.3, math.nan, 0.29, 0.29, 0.3, 0.1):
        state = state.count_steps(Measurement(0, NATIVE, 1.0, 1.0, 0.0, 1.0, learning_rate=rate))
        seen.append(state.warming_up)
    assert seen == [False, True, True, True, True, False, False, True, False]


def test_outer_steps_that_nothing_stands_beside_do_not_wait_for_the_learning_rate() -> None:
    outer = tuple(one for one in Site(7.0, 0.99, every=EVERY).forecasts if one.candidate.mode == "outer")
    state = GoodputState(outer, "hold", 0, 0, Window(outer[0].candidate), steps=10, rose_at=10)
    assert state.warming_up and all(map(state.may_run, range(len(outer))))


def test_a_learning_rate_that_is_not_known_or_stays_keeps_nobody_waiting() -> None:
    state = GoodputState(Site(1.0, 0.5).forecasts, "hold", 0, 0, Window(NATIVE))
    for rate in (math.nan, 0.1, 0.1, math.nan, 0.05, 0.0):
        state = state.count_steps(Measurement(0, NATIVE, 1.0, 1.0, 0.0, 1.0, learning_rate=rate))
        assert not state.warming_up
    assert state.count_steps(Measurement(0, NATIVE, 1.0, 1.0, 0.0, 1.0, learning_rate=0.2)).rose_at == 0, "it was 0"
