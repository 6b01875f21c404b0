# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput finds the best candidate on any link, follows a link that changes, and keeps its trials cheap."""

import itertools
import math
import random
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac import Goodput
from gravac.candidate import Candidate, Forecast
from gravac.controllers import Decision, Measurement
from gravac.controllers.goodput import HARMLESS_EFFICIENCY
from gravac.controllers.goodput_state import GoodputState
from gravac.controllers.step_times import StepTiming
from gravac.controllers.window import Window
from gravac.engine.admission import Admission
from gravac.modes.outer.candidates import with_outer_candidates
from tests.controllers.laws import Step, drive


def rung(cf: float, efficiency: float, family: str) -> Forecast:
    """The forecast of a rung of the ladder, of dense at 1: its CF is its wire ratio."""
    return Forecast(Candidate("hook", "ladder" if cf > 1 else "dense", cf), cf, efficiency, family)


LADDER = (
    rung(1.0, 1.0, "float32"),
    rung(2.0, 1.0, "bfloat16"),
    rung(3.9, 1.0, "quantize"),
    rung(7.5, 0.98, "quantize"),
    rung(10.0, 0.97, "quantize"),
    rung(14.0, 0.95, "quantize"),
    rung(26.0, 0.89, "quantize"),
    rung(52.0, 0.5, "topkc"),
    rung(104.0, 0.35, "topkc"),
    rung(416.0, 0.2, "topkc"),
)
"""What the ladder gives, from dense on."""

EXPECTED = {forecast.candidate: forecast for forecast in LADDER}
"""What is expected of each candidate, by the candidate."""


@dataclass(frozen=True)
class Cluster:
    """Step times of a made-up cluster.

    Attributes:
        compute: seconds, of a step without exchange.
        dense: seconds that all bytes of dense float32 take on the link, by step.
        coding: seconds by family.
        hidden: share of compute that an exchange hides behind.
        jitter: relative, alternating.
        machine: what compute and coding take, relative, by step.
        booked: whether seconds waited and coded are known.
    """

    compute: float
    dense: Callable[[int], float]
    coding: dict[str, float]
    hidden: float = 0.5
    jitter: float = 0.0
    booked: bool = False
    machine: Callable[[int], float] = lambda step: 1.0

    def seconds(self, candidate: Candidate, step: int) -> float:
        slow, expected = self.machine(step), EXPECTED[candidate]
        busy = slow * (self.compute + self.coding[expected.family])
        return busy + max(0.0, self.dense(step) / expected.wire_ratio - self.hidden * slow * self.compute)

    def measure(self, step: int, holds: Decision) -> Measurement:
        wobble = 1 + self.jitter * math.sin(12.9898 * step)
        slow, expected = wobble * self.machine(step), EXPECTED[holds.candidate]
        seconds, coded = wobble * self.seconds(holds.candidate, step), slow * self.coding[expected.family]
        waited = max(0.0, seconds - slow * self.compute - coded)
        times = (waited, coded, self.dense(step) / expected.wire_ratio) if self.booked else (math.nan,) * 3
        waited, coded, exchanged = times
        return Measurement(
            step, holds.candidate, seconds, 16.0, 1.0, 2.0, waited=waited, coded=coded, exchanged=exchanged
        )

    def foreseen(self, coding: float = 1.0, link: float = 1.0) -> tuple[Forecast, ...]:
        """The ladder with seconds that are expected: so many times the truth."""
        return tuple(
            replace(
                forecast,
                coding_s=coding * self.coding[forecast.family],
                exchange_s=link * self.dense(0) / forecast.wire_ratio,
            )
            for forecast in LADDER
        )

    def goodput(self, candidate: Candidate, step: int) -> float:
        return EXPECTED[candidate].efficiency / self.seconds(candidate, step)

    def best(self, step: int) -> float:
        return max(self.goodput(candidate, step) for candidate in EXPECTED)


CODING = {"float32": 0.0, "bfloat16": 0.005, "quantize": 0.02, "topkc": 0.015}


def played(cluster: Cluster, steps: int = 400, forecasts: tuple[Forecast, ...] = LADDER) -> list[Step]:
    return list(drive(Goodput(), forecasts, cluster.measure, steps))


def regret(cluster: Cluster, steps: int, forecasts: tuple[Forecast, ...] = LADDER) -> float:
    """Time over that which the best candidate would have taken for the same progress."""
    ran = [step.applied.candidate for step in played(cluster, steps, forecasts)]
    taken = sum(cluster.seconds(candidate, at) for at, candidate in enumerate(ran))
    return taken / (sum(EXPECTED[candidate].efficiency for candidate in ran) / cluster.best(0))


@pytest.mark.parametrize("dense", [0.0, 0.02, 0.05, 0.2, 0.6, 3.0, 20.0, 100.0], ids="{:g}s".format)
@pytest.mark.parametrize("jitter", [0.0, 0.02])
@pytest.mark.parametrize("booked", [False, True])
def test_it_ends_at_the_best_goodput_on_any_link(dense: float, jitter: float, booked: bool) -> None:
    cluster = Cluster(0.08, lambda step: dense, CODING, jitter=jitter, booked=booked)
    last = played(cluster)[-1].applied.candidate
    assert cluster.goodput(last, 0) >= cluster.best(0) / (1.03 + 3 * jitter), f"ended at {last}"


@given(
    compute=st.floats(0.01, 1.0),
    dense=st.floats(0.0, 50.0),
    hidden=st.floats(0.0, 0.7),
    coding=st.fixed_dictionaries({family: st.floats(0.0, 0.3) for family in CODING}),
    booked=st.booleans(),
)
def test_a_search_without_noise_ends_near_the_best(
    compute: float, dense: float, hidden: float, coding: dict[str, float], booked: bool
) -> None:
    """Coding may cost up to 30 % of compute, as what bounds an untried family assumes."""
    costs = {f: share * compute for f, share in coding.items()}
    cluster = Cluster(compute, lambda step: dense, costs, hidden, booked=booked)
    last = played(cluster, 300)[-1].applied.candidate
    assert cluster.goodput(last, 0) >= cluster.best(0) / 1.0301


@given(
    compute=st.floats(0.01, 1.0),
    dense=st.floats(0.0, 50.0),
    hidden=st.floats(0.0, 0.66),
    coding=st.fixed_dictionaries({family: st.floats(0.0, 0.3) for family in CODING}),
    expected=st.tuples(st.floats(0.2, 1.2), st.floats(0.2, 1.2)),
    booked=st.booleans(),
)
def test_what_was_foreseen_never_keeps_a_search_from_the_best(
    compute: float, dense: float, hidden: float, coding: dict[str, float], expected: tuple[float, float], booked: bool
) -> None:
    costs = {f: share * compute for f, share in coding.items()}
    cluster = Cluster(compute, lambda step: dense, costs, hidden, booked=booked)
    last = played(cluster, 300, cluster.foreseen(*expected))[-1].applied.candidate
    assert cluster.goodput(last, 0) >= cluster.best(0) / 1.0301


@pytest.mark.parametrize("wrong", [5.0, 100.0])
def test_a_link_that_was_sounded_too_slow_is_found_to_be_fast(wrong: float) -> None:
    cluster = Cluster(0.08, lambda step: 0.01, CODING, booked=True)
    last = played(cluster, 300, cluster.foreseen(link=wrong))[-1].applied.candidate
    assert cluster.goodput(last, 0) >= cluster.best(0) / 1.0301


def test_where_the_link_is_fast_a_run_starts_dense_and_loses_little() -> None:
    cluster = Cluster(0.08, lambda step: 0.005, CODING, booked=True)
    steps = played(cluster, 160, cluster.foreseen())
    assert steps[0].applied.candidate.dense
    assert regret(cluster, 160, cluster.foreseen()) < 1.02 < regret(cluster, 160)


@pytest.mark.parametrize("dense", [0.005, 0.02, 0.1, 0.5, 3.0, 20.0], ids="{:g}s".format)
def test_foresight_never_costs(dense: float) -> None:
    cluster = Cluster(0.08, lambda step: dense, CODING, booked=True)
    assert regret(cluster, 160, cluster.foreseen(0.5, 0.9)) <= 1.01 * regret(cluster, 160)


@pytest.mark.parametrize("dense", [0.005, 0.35, 1.5], ids="{:g}s".format)
@pytest.mark.parametrize("known", [True, False])
def test_a_machine_that_drifts_does_not_make_it_waver(dense: float, known: bool) -> None:
    """Steps grow and shrink by a quarter over the run; what was measured in a better minute is no better."""
    cluster = Cluster(
        0.08, lambda step: dense, CODING, booked=True, machine=lambda step: 1 + 0.12 * math.sin(step / 40)
    )
    later = {s.applied.candidate for s in played(cluster, 470, cluster.foreseen() if known else LADDER)[60:]}
    assert len(later) == 1


@pytest.mark.parametrize("dense", [0.005, 0.5], ids="{:g}s".format)
@pytest.mark.parametrize("slower", [0.5, 2.0])
def test_a_machine_that_changes_at_once_starts_no_search_where_the_link_is_the_same(
    dense: float, slower: float
) -> None:
    cluster = Cluster(0.08, lambda step: dense, CODING, booked=True, machine=lambda step: 1.0 if step < 100 else slower)
    steps = played(cluster, 300, cluster.foreseen())
    reasons = [step.decision.reason for step in steps[100:]]
    assert any("the link is as fast as before" in reason for reason in reasons)
    assert not any("search again" in reason for reason in reasons)
    last = steps[-1].applied.candidate
    assert cluster.goodput(last, 299) >= cluster.best(299) / 1.05


def noisy(cluster: Cluster, seed: int, wobble: float) -> Callable[[int, Decision], Measurement]:
    """Steps that differ by chance, and a machine that is in a better or a worse mood for some dozen steps."""
    draw = random.Random(seed)
    moods = [0.0]
    for _ in range(1000):
        moods.append(0.95 * moods[-1] + draw.gauss(0, wobble / 8))

    def measure(step: int, holds: Decision) -> Measurement:
        chance = math.exp(moods[step] + draw.gauss(0, wobble))
        measured = cluster.measure(step, holds)
        return replace(measured, seconds=measured.seconds * chance, waited=measured.waited * chance)

    return measure


def test_an_unlucky_trial_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the link is fast candidates lie close, and five steps of a noisy machine do not tell them apart."""
    cluster = Cluster(0.08, lambda step: 0.03, {**CODING, "bfloat16": 0.006}, booked=True)

    def lost(seed: int) -> float:
        ran = [s.applied.candidate for s in drive(Goodput(), cluster.foreseen(), noisy(cluster, seed, 0.05), 480)]
        taken = sum(cluster.seconds(candidate, at) for at, candidate in enumerate(ran))
        return taken / (sum(EXPECTED[candidate].efficiency for candidate in ran) / cluster.best(0)) - 1

    believed = statistics.fmean(lost(seed) for seed in range(20))
    monkeypatch.setattr("gravac.controllers.goodput_state.STANDARD_ERRORS", 0)
    blind = statistics.fmean(lost(seed) for seed in range(20))
    assert believed < blind / 2, (believed, blind)


def test_a_trial_is_not_given_up_for_a_step_that_stalled() -> None:
    cluster = Cluster(0.08, lambda step: 0.02, CODING, booked=True)

    def stalling(step: int, holds: Decision) -> Measurement:
        measured = cluster.measure(step, holds)
        return replace(measured, seconds=measured.seconds * (2.5 if step in (11, 20) else 1.0))

    steps = list(drive(Goodput(), LADDER, stalling, 60))
    assert not any("given up" in step.decision.reason for step in steps)
    assert steps[-1].applied.candidate.dense


@pytest.mark.parametrize(("before", "after"), [(0.04, 2.0), (2.0, 0.04), (0.3, 5.0)])
def test_it_follows_a_link_that_changes_within_three_windows(before: float, after: float) -> None:
    cluster = Cluster(0.08, lambda step: before if step < 200 else after, CODING)
    steps = played(cluster, 600)
    held = steps[195].applied.candidate
    moved = next((step for step, s in enumerate(steps) if step > 200 and s.applied.candidate != held), None)
    if cluster.goodput(held, 599) < cluster.best(599) / 1.031:
        assert moved is not None and moved - 200 <= 3 * Goodput().window + 2
    assert cluster.goodput(steps[-1].applied.candidate, 599) >= cluster.best(599) / 1.031


@pytest.mark.parametrize("at", range(200, 212))
def test_a_link_that_breaks_down_is_not_waited_out(at: int) -> None:
    """A step of 16 bit takes 80 times as long now: three of them are enough, wherever in a window they lie."""
    cluster = Cluster(0.08, lambda step: 0.02 if step < at else 20.0, CODING)
    steps = played(cluster, 400)
    held = steps[at - 1].applied.candidate
    moved = next(step for step, s in enumerate(steps) if step > at and s.applied.candidate != held)
    assert moved - at <= 3 + 1 + 2  # three steps, one under way, and up to two that a window's end left behind
    assert cluster.goodput(steps[-1].applied.candidate, 399) >= cluster.best(399) / 1.031


@pytest.mark.parametrize("at", range(10, 60))
def test_nor_is_one_that_breaks_down_during_a_trial(at: int) -> None:
    """Steps of a trial that were quick before say nothing of those to come."""
    cluster = Cluster(0.08, lambda step: 0.3 if step < at else 20.0, CODING, booked=True)
    steps = played(cluster, at + 60, cluster.foreseen())
    lost = [s for s in steps[at:] if EXPECTED[s.applied.candidate].wire_ratio < 10]
    assert len(lost) <= 3 + 1 + 2


def test_a_stall_is_no_break_down() -> None:
    cluster = Cluster(0.08, lambda step: 0.02, CODING, booked=True)

    def stalling(step: int, holds: Decision) -> Measurement:
        measured = cluster.measure(step, holds)
        return replace(measured, seconds=measured.seconds * (5.0 if step % 20 in (4, 5) else 1.0))

    later = list(drive(Goodput(), cluster.foreseen(), stalling, 300))[60:]
    assert len({s.applied.candidate for s in later}) == 1


def test_a_link_that_becomes_faster_behind_backward_is_noticed() -> None:
    """What is held hides behind backward on the slow link already: its step time tells nothing."""
    cluster = Cluster(0.08, lambda step: 1.0 if step < 200 else 0.001, CODING, booked=True)
    steps = played(cluster, 300, cluster.foreseen())
    held = steps[199].applied.candidate
    assert cluster.seconds(held, 199) < 1.25 * cluster.seconds(held, 299)
    assert cluster.goodput(steps[-1].applied.candidate, 299) >= cluster.best(299) / 1.031 > cluster.goodput(held, 299)


@pytest.mark.parametrize(("at", "left"), [(100, False), (3000, True)])
@pytest.mark.parametrize("by_gain", [False, True])
def test_one_bit_is_left_for_what_gains_more_than_that_sets_training_back(
    at: int, left: bool, by_gain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link becomes faster, and 2 bits are 7 % better than 1: in a run of 200 steps that is less than a switch costs.

    Only of quantizers, whose efficiency goes by gain.
    """
    monkeypatch.setattr(
        "gravac.controllers.goodput_prices.COARSE_EFFICIENCY", 0.9
    )  # one bit of this ladder is worth 0.89
    cluster = Cluster(0.08, lambda step: 3.0 if step < at else 0.56, CODING, booked=True)
    points = [((0.0, c.efficiency), (1.0, c.efficiency)) if by_gain and c.family == "quantize" else () for c in LADDER]
    forecasts = tuple(replace(c, by_gain=own) for c, own in zip(LADDER, points, strict=True))
    steps = played(cluster, at + 90, forecasts)
    one_bit, two_bits = LADDER[6].candidate.cf, LADDER[5].candidate.cf
    assert steps[at].applied.candidate.cf == one_bit
    assert steps[-1].applied.candidate.cf == (two_bits if left or not by_gain else one_bit)


def test_on_a_slower_link_what_sends_more_is_not_tried_again() -> None:
    """16 bit was measured on the fast link; how much slower the held one became tells that it is hopeless now."""
    cluster = Cluster(0.08, lambda step: 0.35 if step < 200 else 4.0, CODING)
    steps = played(cluster, 600)
    assert any(EXPECTED[s.applied.candidate].family == "bfloat16" for s in steps[:200])
    later = {EXPECTED[s.applied.candidate].wire_ratio for s in steps[230:]}
    assert min(later) > 5, later


@pytest.mark.parametrize("began", [20, 26, 60, 150])
@pytest.mark.parametrize("booked", [False, True])
def test_a_pause_that_looked_like_a_slower_link_is_made_up_for(began: int, booked: bool) -> None:
    """A few steps take far longer, by whatever cause, while a candidate is tried or held; then all is as before."""
    cluster = Cluster(0.08, lambda step: 10.0 if began <= step < began + 6 else 0.5, CODING, booked=booked)
    steps = played(cluster, 500, cluster.foreseen())
    assert cluster.goodput(steps[-1].applied.candidate, 499) >= cluster.best(499) / 1.05


@pytest.mark.parametrize("booked", [False, True])
@pytest.mark.parametrize("behind_switch", [0, 1, 2])
def test_an_evaluation_within_any_trial_is_not_taken_for_a_slower_link(behind_switch: int, booked: bool) -> None:
    """Every trial has one step with a pause of 100 steps, as an evaluation makes: decisions are as without pauses."""
    cluster = Cluster(0.08, lambda step: 0.5, CODING, booked=booked)
    switched_at, candidate = 0, None

    def measure(step: int, holds: Decision) -> Measurement:
        nonlocal switched_at, candidate
        if holds.candidate != candidate:
            switched_at, candidate = step, holds.candidate
        measured = cluster.measure(step, holds)
        pauses = step > 0 and step - switched_at == behind_switch
        return replace(measured, seconds=measured.seconds + (9.0 if pauses else 0.0))

    steps = list(drive(Goodput(), cluster.foreseen(), measure, 500))
    assert not [s.decision.reason for s in steps if "slower" in s.decision.reason]
    held = statistics.mode(s.applied.candidate for s in steps[-100:])
    assert cluster.goodput(held, 499) >= cluster.best(499) / 1.05
    assert sum(s.measured.seconds > 9 for s in steps) < 10


@given(
    compute=st.floats(0.05, 0.5),
    before=st.floats(0.01, 10.0),
    after=st.floats(0.01, 10.0),
    hidden=st.floats(0.0, 0.7),
    held=st.integers(0, len(LADDER) - 1),
)
def test_what_follows_from_a_change_is_true(
    compute: float, before: float, after: float, hidden: float, held: int
) -> None:
    old, new = (Cluster(compute, lambda step, link=link: link, CODING, hidden) for link in (before, after))
    entries = tuple(StepTiming(at, old.seconds(c.candidate, 0), 1, c.efficiency) for at, c in enumerate(LADDER))
    state = GoodputState(LADDER, "hold", held, held, Window(LADDER[held].candidate), entries)
    for at, floor in state.after_link_change(new.seconds(LADDER[held].candidate, 0)).floors:
        assert floor <= new.seconds(LADDER[at].candidate, 0) * (1 + 1e-9)


@pytest.mark.parametrize("dense", [0.0, 0.05, 0.5, 3.0, 20.0])
def test_trials_cost_at_most_their_share(dense: float) -> None:
    cluster = Cluster(0.08, lambda step: dense, CODING, jitter=0.02)
    steps = played(cluster, 2000)
    best = cluster.best(0)
    later = steps[80:]  # the first search is over
    lost = sum(s.measured.seconds - EXPECTED[s.applied.candidate].efficiency / best for s in later)
    assert lost <= (Goodput().explore + Goodput().hysteresis) * sum(s.measured.seconds for s in later)


@pytest.mark.parametrize("dense", [3.0, 8.0, 20.0, 100.0], ids="{:g}s".format)
@pytest.mark.parametrize("booked", [False, True])
def test_what_may_set_training_back_is_tried_last(dense: float, booked: bool) -> None:
    """Steps of low efficiency, when nothing else promises anything."""
    cluster = Cluster(0.08, lambda step: dense, CODING, booked=booked)
    ran = [c for c, _ in itertools.groupby(s.applied.candidate for s in played(cluster, 120, cluster.foreseen()))]
    efficiencies = [EXPECTED[c].efficiency for c in ran]
    harmful = [at for at, one in enumerate(efficiencies) if one < HARMLESS_EFFICIENCY]
    assert not harmful or all(
        one < HARMLESS_EFFICIENCY or one in efficiencies[: harmful[0]] for one in efficiencies[harmful[0] :]
    )
    assert bool(harmful) == (dense > 3)


def test_no_step_is_expected_to_be_shorter_than_what_it_computes() -> None:
    """2 bits on a slow link: 25 ms of a step are neither waited nor coded, and rank 1 will take no less."""
    ladder = tuple(replace(c, coding_s=0.005, exchange_s=1.0 / c.wire_ratio) for c in LADDER)
    two_bits = StepTiming(5, 0.2, 1, 0.95, (0.165, 0.01, 0.17))
    state = GoodputState(ladder, "hold", 5, 5, Window(ladder[5].candidate), (two_bits,))
    assert state.step_time_bounds.shortest_step_seconds(9, 40) >= 0.025 + 0.8 * 0.005


@pytest.mark.parametrize(("behind", "least"), [(None, 0.8), (0.0, 0.95), (0.5, 0.9), (1.0, 0.85)])
def test_of_a_round_no_more_hides_than_may_travel(behind: float | None, least: float) -> None:
    """Compute takes 0.1 s, and coding 0.05 s and exchange 1 s were expected; four fifths of both count."""
    sends = [replace(LADDER[0], coding_s=0.0, exchange_s=1.0), replace(LADDER[5], coding_s=0.0, exchange_s=0.1)]
    sends[0] = replace(sends[0], coding_s=0.0625, behind=behind)
    state = GoodputState(
        tuple(sends), "hold", 1, 1, Window(sends[1].candidate), (StepTiming(1, 0.2, 1, 0.95, (0.1, 0, 0.1)),)
    )
    bound = state.step_time_bounds._shortest_step_by_probe(sends[0])
    assert bound == pytest.approx(least + (0.1 / 3 if behind is None else 0.0))


@pytest.mark.parametrize("dense", [0.0, 0.05, 0.2, 0.6, 3.0, 20.0], ids="{:g}s".format)
@pytest.mark.parametrize("delay", [0, 5])
def test_rounds_are_found_at_once_where_the_link_is_as_foreseen(dense: float, delay: int) -> None:
    """What a search tries besides the best costs at most a fiftieth of thirty rounds."""
    cluster = Cluster(0.08, lambda step: dense, CODING, booked=True)
    forecasts = with_outer_candidates(Admission(cluster.foreseen()), (2, 5, 10, 20, 50), 0.08, delay, False).forecasts
    expected = {forecast.candidate: forecast for forecast in forecasts}

    def goodput(forecast: Forecast) -> float:
        assert forecast.step_s is not None
        return forecast.least_efficiency / forecast.step_s

    def measure(step: int, holds: Decision) -> Measurement:
        ran, known = holds.candidate, expected[holds.candidate]
        assert known.step_s is not None
        assert known.coding_s is not None
        made = Measurement(step, ran, known.step_s, 16.0, 1.0, 2.0, exchanged=known.exchange_s or 0.0)
        return replace(made, waited=max(0.0, known.step_s - 0.08 - known.coding_s), coded=known.coding_s)

    ran = [step.applied.candidate for step in drive(Goodput(), forecasts, measure, 30)]
    taken = sum(candidate.every * (expected[candidate].step_s or 0.0) for candidate in ran)
    progress = sum(candidate.every * expected[candidate].least_efficiency for candidate in ran)
    assert taken * max(map(goodput, forecasts)) <= 1.02 * progress


@pytest.mark.parametrize(
    ("dense", "delay", "evaluated_every"),
    [(0.6, 0, 150), (0.6, 5, 333), (3.0, 0, 333), (3.0, 5, 200), (20.0, 0, 200), (20.0, 5, 150)],
)
def test_evaluations_within_rounds_are_not_taken_for_a_change(dense: float, delay: int, evaluated_every: int) -> None:
    """One of two ranks evaluates for 9 s now and then, and the other rank waits for it in its next exchange."""
    cluster = Cluster(0.08, lambda step: dense, CODING, booked=True)
    forecasts = with_outer_candidates(Admission(cluster.foreseen()), (2, 5, 10, 20, 50), 0.08, delay, False).forecasts
    expected = {forecast.candidate: forecast for forecast in forecasts}
    trained = 0

    def measure(step: int, holds: Decision, pause: float) -> Measurement:
        nonlocal trained
        ran, known = holds.candidate, expected[holds.candidate]
        assert known.step_s is not None and known.coding_s is not None
        evaluations = (trained + ran.every) // evaluated_every - trained // evaluated_every
        trained += ran.every
        waited = max(0.0, known.step_s - 0.08 - known.coding_s)
        seconds = known.step_s + evaluations * pause / 2 / ran.every
        made = Measurement(step, ran, seconds, 16.0, 1.0, 2.0, exchanged=known.exchange_s or 0.0, steps=ran.every)
        return replace(made, waited=waited + evaluations * pause / 2 / ran.every, coded=known.coding_s)

    def run(pause: float) -> list[Step]:
        nonlocal trained
        trained = 0
        return list(drive(Goodput(), forecasts, lambda step, holds: measure(step, holds, pause), 400))

    undisturbed, disturbed = run(0.0), run(9.0)
    assert not [s.decision.reason for s in disturbed if re.search("changed|slower|faster", s.decision.reason)]
    assert statistics.mode(s.applied.candidate for s in disturbed) == undisturbed[-1].applied.candidate


def test_a_slow_link_never_sees_dense() -> None:
    """At 20 times the compute, a step of 16 bit would cost as much as fifty of what is found first."""
    cluster = Cluster(0.08, lambda step: 20.0, CODING)
    assert min(EXPECTED[s.applied.candidate].wire_ratio for s in played(cluster)) >= 10


def test_a_trial_that_is_clearly_slower_is_given_up_early() -> None:
    cluster = Cluster(0.08, lambda step: 0.25, {**CODING, "bfloat16": 0.2})
    steps = played(cluster)
    trial = [s for s in steps if EXPECTED[s.applied.candidate].family == "bfloat16"]
    assert 0 < len(trial) < Goodput().window
    assert any("given up early" in s.decision.reason for s in steps)


def test_where_nothing_waits_for_bytes_nothing_that_sends_less_is_tried() -> None:
    cluster = Cluster(0.08, lambda step: 0.03, CODING, booked=True)
    steps = played(cluster)
    assert steps[-1].applied.candidate.dense
    assert (
        max(EXPECTED[s.applied.candidate].wire_ratio for s in steps) == EXPECTED[steps[0].applied.candidate].wire_ratio
    )


def test_what_a_trial_may_cost_goes_by_what_the_exchange_took() -> None:
    """Two bits at 14x, coding for half of the step: dense sends 14 times as much, and takes little longer for that."""
    known, unknown = (StepTiming(5, 0.16, 1, 0.95, saved) for saved in ((0.0, 0.08, 0.002), None))
    bound, guess = (
        GoodputState(LADDER, "hold", 5, 5, Window(LADDER[5].candidate), (e,)).step_time_bounds.longest_step_seconds(0)
        for e in (known, unknown)
    )
    assert bound == pytest.approx(0.16 + 13 * 0.002)
    assert guess == pytest.approx(14 * 0.16)


def test_coding_that_grows_with_what_is_sent_is_not_taken_for_the_link() -> None:
    """Low rank at twice the rank codes for longer; dense would not."""
    light, heavy = StepTiming(7, 0.05, 1, 0.5, (0.0, 0.02, 0.001)), StepTiming(6, 0.08, 1, 0.9, (0.0, 0.05, 0.001))
    forecasts = (*LADDER[:6], replace(LADDER[6], family="topkc"), *LADDER[7:])
    state = GoodputState(forecasts, "hold", 7, 7, Window(LADDER[7].candidate), (light, heavy))
    assert state.step_time_bounds.shortest_step_seconds(0, 40) <= 0.05
    blind = replace(state, entries=(replace(light, saved=None), replace(heavy, saved=None)))
    assert blind.step_time_bounds.shortest_step_seconds(0, 40) > 0.5


def test_a_gain_that_was_measured_changes_what_is_held() -> None:
    """Of two candidates as fast, the one whose expected efficiency its gain does not bear out is left."""
    points = ((0.0, 0.1), (1.0, 1.0))
    known = (LADDER[0], replace(LADDER[5], by_gain=points), LADDER[4])

    def measure(step: int, holds: Decision) -> Measurement:
        error = 1.8 if holds.candidate == known[1].candidate else 0.1
        return Measurement(step, holds.candidate, 1.0 if holds.candidate.dense else 0.1, 16.0, error, 2.0)

    ran = [s.applied.candidate for s in drive(Goodput(), known, measure, 100)]
    assert known[1].candidate in ran
    assert ran[-1] == LADDER[4].candidate


def test_reasons_tell_times_and_efficiency() -> None:
    steps = played(Cluster(0.08, lambda step: 0.6, CODING))
    reasons = [s.decision.reason for s in steps if s.decision.reason]
    assert any(re.search(r"ladder [\d.]+x (?:took|takes) [\d.]+ ms a step.*; try ladder", reason) for reason in reasons)
    assert any(reason.startswith("keep ladder") for reason in reasons)


def test_one_candidate_is_held_for_good() -> None:
    cluster = Cluster(0.08, lambda step: 0.6, CODING)
    steps = list(drive(Goodput(), LADDER[:1], cluster.measure, 100))
    assert {s.applied.candidate for s in steps} == {LADDER[0].candidate}
    assert {s.decision.runs for s in steps} == {(LADDER[0].candidate, ())}


def test_a_held_candidate_rests_between_searches() -> None:
    """What expires may be tried again, but candidates do not alternate."""
    steps = played(Cluster(0.08, lambda step: 0.6, CODING, jitter=0.03), 2000)
    changes = [s for s, following in itertools.pairwise(steps) if s.applied.candidate != following.applied.candidate]
    assert len(changes) <= 40


def entries(state: GoodputState) -> dict[Candidate, StepTiming]:
    """What was measured, by candidate."""
    return {state.forecasts[entry.position].candidate: replace(entry, position=0) for entry in state.entries}


@given(
    at=st.integers(0, 300),
    left=st.sets(st.integers(1, len(LADDER) - 1)),
    more=st.booleans(),
    dense=st.sampled_from([0.05, 0.6, 3.0]),
)
def test_a_state_restored_with_other_candidates_keeps_what_was_measured_of_those_there_are_still(
    at: int, left: set[int], more: bool, dense: float
) -> None:
    cluster, controller = Cluster(0.08, lambda step: dense, CODING, jitter=0.02), Goodput()
    state: GoodputState = [*drive(controller, LADDER, cluster.measure, at + 1)][-1].state
    others = (rung(9.0, 0.97, "quantize"),) if more else ()
    forecasts = (LADDER[0], *others, *(LADDER[position] for position in sorted(left)))
    now, decision = controller.restore(controller.dump(state), forecasts)
    candidates = [forecast.candidate for forecast in forecasts]
    known = {one: measured for one, measured in entries(state).items() if one in candidates}
    gone = [candidate for candidate in EXPECTED if candidate not in candidates]
    assert bool(decision.reason) == bool(gone)
    assert decision.candidate == now.running
    if "no measurement is left" in decision.reason:
        assert not known
        return
    assert entries(now) == known
    assert now.windows == state.windows
    if state.running in candidates:
        assert (now.running, now.phase, now.window) == (state.running, state.phase, state.window)
    else:
        assert now.phase == "hold"
        assert now.running in known or now.running == state.forecasts[state.best].candidate
        assert f"run {now.running}, the best that was measured" in decision.reason
    if gone:
        assert str(gone[0]) in decision.reason
