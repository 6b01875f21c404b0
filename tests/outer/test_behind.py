# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchanges that travel behind as many steps as are decided: what is decided, when it is taken up, how it is timed."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import Goodput, quantize
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import Decision, Measurement
from gravac.controllers.goodput_state import SEARCH, GoodputState
from gravac.controllers.step_times import StepTiming
from gravac.controllers.window import Window
from gravac.engine.admission import Admission
from gravac.exchange.lockstep import Lockstep
from gravac.modes.outer.candidates import delays, delays_by_candidate, delays_if_continued, with_outer_candidates
from tests.outer.ranks import MOMENTUM, Ranks, averaged, equal, saved


class Wanders:
    """A controller that goes by a seed: any number of steps, and any behind which to travel; or by 0: the longest."""

    name, keeps_all, chooses_sixteen_bit, chooses_every = "wanders", True, False, True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def propose(self, cf_range: tuple[float, float], reach: Any) -> tuple[float, ...]:
        return (8.0,)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[tuple[Sequence[Candidate], int], Decision]:
        candidates = [forecast.candidate for forecast in forecasts]
        return (candidates, 0), self._decision(candidates, 0)

    def observe(self, state: Any, measurement: Measurement) -> tuple[Any, Decision]:
        candidates, at = state
        return (candidates, at + 1), self._decision(candidates, at + 1)

    def dump(self, state: Any) -> dict[str, Any]:
        return {"at": state[1]}

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[Any, Decision]:
        candidates = [forecast.candidate for forecast in forecasts]
        return (candidates, plain["at"]), self._decision(candidates, plain["at"])

    def _decision(self, candidates: Sequence[Candidate], at: int) -> Decision:
        if not self.seed:
            return Decision(max(candidates, key=lambda one: (one.delay, one.cf)))
        return Decision(random.Random(1000 * self.seed + at).choice(candidates))


@pytest.fixture(autouse=True)
def all_delays() -> Iterator[None]:
    """In memory no link is probed: have every delay offered."""

    def offered(one: Candidate, every: int, compute_s: float | None, delay: Any) -> Sequence[int]:
        return tuple(range(every + 1)) if delay == "auto" else (delay,)

    with mock.patch("gravac.modes.outer.candidates.delays", offered):
        yield


def wandering(seed: int, **settings: Any) -> dict[str, Any]:
    some = {"base": quantize(bits=4), "cf_range": (2, 100), "controller": Wanders(seed), "every": (1, 5)}
    return {**some, "delay": "auto", **settings}


@given(seed=st.integers(1, 10**6), ranks=st.integers(1, 3), mixing=st.sampled_from([None, 0.5]))
def test_anchors_are_the_same_on_all_ranks(seed: int, ranks: int, mixing: float | None) -> None:
    trained = Ranks(ranks, outer=MOMENTUM, **wandering(seed, mixing=mixing)).train(40)
    assert equal(trained.anchors)
    assert trained.outer[0].rounds > 3
    assert all(outer.late == 0 for outer in trained.outer), "what is decided is waited for"
    trained.synchronize()
    assert equal(trained.anchors)


@given(seed=st.integers(1, 10**6))
def test_nothing_is_lost_of_what_is_learned_meanwhile(seed: int) -> None:
    """One rank's anchor, at rate 1, goes to where it was: then nothing happens but training."""
    alone = Ranks(1, **wandering(seed, mixing=None, base="dense", cf_range=(1, 2))).train(30)
    torch.testing.assert_close(alone.weights[0], averaged(1, 30))


@given(seed=st.integers(1, 10**6), at=st.integers(6, 25))
def test_a_run_taken_up_is_the_run_that_went_on(seed: int, at: int) -> None:
    wanders = wandering(seed, outer=MOMENTUM)
    whole = Ranks(2, **wanders).train(at)
    states = [saved(outer.state_dict()) for outer in whole.outer]
    whole.train(15)
    again = Ranks(2, **wanders)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.made = at
    again.train(15)
    assert all(map(torch.equal, whole.weights, again.weights))
    assert all(map(torch.equal, whole.anchors, again.anchors))


def test_a_round_is_no_shorter_than_what_travelled_into_it() -> None:
    """Of what travels behind four steps nobody knows before what the next round is to be."""
    trained = Ranks(2, **wandering(1))
    outer = trained.outer[0]
    ends, decided = [0], []
    for step in range(1, 61):
        trained.train(1)
        if outer.rounds == len(ends):
            ends.append(step)
            decided.append(outer._state.delay)
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert len(set(decided)) > 2
    assert all(length >= behind for length, behind in zip(lengths[1:], decided, strict=False))


def test_looking_does_not_wait() -> None:
    trained = Ranks(2, **wandering(0, every=6)).train(12)
    outer = trained.outer[0]
    assert outer.under_way
    with mock.patch.object(outer._engine, "drain", side_effect=AssertionError("it waits")):
        assert (outer.every, outer.cf) == (6, 8.0)
        assert outer.gain is not None
        assert outer.wire_ratio is not None
        assert [record.step for record in outer.history] == [0]
    assert equal(trained.anchors)


class Behind(Wanders):
    """Chooses a delay, and keeps the measurements."""

    def __init__(self, delay: int) -> None:
        super().__init__()
        self.delay, self.measured = delay, list[Measurement]()

    def observe(self, state: Any, measurement: Measurement) -> tuple[Any, Decision]:
        self.measured.append(measurement)
        return super().observe(state, measurement)

    def _decision(self, candidates: Sequence[Candidate], at: int) -> Decision:
        return Decision(next(one for one in candidates if one.delay == self.delay))


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_an_exchange_that_is_over_before_its_delay_is_not_waited_for(delay: int) -> None:
    chosen = Behind(delay)
    Ranks(2, clock=0.5, **wandering(1, every=3, controller=chosen)).train(15)
    assert len(chosen.measured) > 2
    assert all((measured.waited == 0) == (delay > 0) for measured in chosen.measured)


def test_an_anchor_without_what_travels_is_that_of_the_last_round() -> None:
    trained = Ranks(2, **wandering(0, every=6)).train(11)
    with trained.outer[0].shared_weights():
        before = [p.detach().clone() for p in trained.modules[0].parameters()]
    trained.train(1)
    assert trained.outer[0].under_way
    with trained.outer[0].shared_weights(wait=False):
        assert all(map(torch.equal, before, trained.modules[0].parameters()))
    with trained.outer[0].shared_weights():
        assert not all(map(torch.equal, before, trained.modules[0].parameters()))


@given(
    every=st.integers(2, 100),
    compute=st.floats(1e-4, 10),
    coding=st.floats(0, 10),
    exchange=st.floats(0, 100),
)
def test_a_delay_is_as_long_as_the_exchange_takes_and_at_most_half_a_round(
    every: int, compute: float, coding: float, exchange: float
) -> None:
    one = Forecast(Candidate("hook", "topk", 10.0), 6.4, coding_s=coding, exchange_s=exchange)
    waits, travels = delays(one, every, compute, "auto")
    assert waits == 0 < travels <= every / 2
    assert travels == every // 2 or travels * compute >= coding + exchange
    assert delays(one, every, None, "auto") == delays(one, 1, compute, "auto") == (0,)
    assert delays(one, every, compute, 7) == (7,)


def test_who_does_not_choose_gets_what_promises_more() -> None:
    slow = Forecast(Candidate("hook", "topk", 8.0), 4.0, 0.9, "topk", coding_s=0.0, exchange_s=1.0)
    quick = Forecast(Candidate("hook", "topk", 64.0), 30.0, 0.5, "topk", coding_s=0.0, exchange_s=0.001)
    with mock.patch("gravac.modes.outer.candidates.delays", delays):
        admission = Admission((slow, quick))
        both = with_outer_candidates(admission, (10,), 0.2, "auto", keep_dominated=True).forecasts
        one = with_outer_candidates(admission, (10,), 0.2, "auto", keep_dominated=True, chooses=False).forecasts
    assert [(it.candidate.cf, it.candidate.delay) for it in both] == [(8, 0), (8, 5), (64, 0), (64, 1)]
    assert [(it.candidate.cf, it.candidate.delay) for it in one] == [(8, 5), (64, 0)]


@pytest.mark.parametrize("chooses", [True, False])
def test_delays_that_a_continued_run_had_stay_whatever_the_link_promises_now(chooses: bool) -> None:
    bases = tuple(
        Forecast(Candidate("hook", "topk", cf), cf / 2, 0.9, "topk", coding_s=0.0, exchange_s=1.0) for cf in (8.0, 64.0)
    )
    made = [Candidate("outer", "topk", 8.0, 10, delay) for delay in ((3, 0) if chooses else (3,))]
    before = delays_by_candidate(made)
    with mock.patch("gravac.modes.outer.candidates.delays", delays):
        how: tuple[Any, ...] = (0.2, "auto", True, chooses, 2, before)
        auto = with_outer_candidates(Admission(bases), (10,), *how).forecasts
        fixed = with_outer_candidates(Admission(bases), (10,), 0.2, 7, True, checkpointed=before).forecasts
    found, given = ([forecast.candidate for forecast in forecasts] for forecasts in (auto, fixed))
    assert [one.delay for one in found if one.cf == 8] == ([0, 3] if chooses else [3])
    assert max(one.delay for one in found if one.cf == 64) == 5
    assert {one.delay for one in given} == {7}


MOMENTS = st.lists(
    st.tuples(st.floats(0.1, 5), st.floats(0, 5), st.floats(0, 1), st.booleans()), min_size=2, max_size=20
)


@given(MOMENTS)
def test_times_of_rounds_are_what_passed_and_each_has_the_waiting_for_its_own_exchange(rounds: list[Any]) -> None:
    """Training goes on once a round's exchange ended, or with some steps left of it and then waits for the rest."""
    candidate, executor = Candidate("hook", "topk", 8.0), Lockstep(1).executors[0]
    now, measurements, told = 0.0, [], []
    for trains, exchange, pause, hides in rounds:
        now += trains + pause  # what is waited for of the last exchange is in what follows
        left, ended = now, now + exchange
        idle_since = left + trains / 2 if hides and exchange > trains / 2 else None
        stood = exchange if not hides else max(0.0, exchange - trains / 2) if idle_since else 0.0
        measurement = StepRecording(len(measurements), candidate, overlaps=hides, waits_since=idle_since, paused=pause)
        measurement.previous = measurements[-1] if measurements else None
        measurement.backward_ended, measurement.exchange_ended = left, ended
        measurement.ended = left if hides else ended
        measurement.spent = lambda: (0.0, 100.0)
        measurements.append(measurement)
        told.append((trains, stood))
        now = now + stood if hides else ended

    for measurement, (trains, stood) in zip(measurements[1:], told[1:], strict=True):
        measurement.read(executor)
        assert measurement.waited == pytest.approx(stood)
        assert measurement.seconds == pytest.approx(trains + stood)


@pytest.mark.parametrize("hidden", [False, True])
def test_more_is_tried_behind_steps_where_less_was_waited_for(hidden: bool) -> None:
    """Half of a step was spent on waiting: the same bytes behind steps may take half as long."""
    choices = tuple(
        Forecast(Candidate("outer", "topk", 8.0, 10, d), 40.0, 0.9, "topk", behind=d / 10, coding_s=0.0, exchange_s=0.1)
        for d in (0, 10)
    )
    dense = Forecast(Candidate("hook", "dense", 1.0), 1.0)
    ran = 2 if hidden else 1
    entry = StepTiming(ran, 0.2, 0, 0.9, saved=(0.0 if hidden else 0.1, 0.0, 0.1))
    state = GoodputState((dense, *choices), SEARCH, ran, ran, Window(choices[ran - 1].candidate), (entry,), windows=1)
    if hidden:  # waiting for it takes no less, and at most all of the exchange more
        assert state.step_time_bounds.shortest_step_seconds(1, 10) >= 0.2
        assert state.step_time_bounds.longest_step_seconds(1) == pytest.approx(0.3)
    else:
        assert state.step_time_bounds.shortest_step_seconds(2, 10) <= 0.1 + 1e-9
        assert state.step_time_bounds.longest_step_seconds(2) == pytest.approx(0.2)


def test_goodput_takes_what_hides() -> None:
    """Played: a round's exchange takes a third of its compute, so that behind four of ten steps nothing waits."""
    bases = (
        Forecast(Candidate("hook", "dense", 1.0), 1.0, coding_s=0.0, exchange_s=30.0),
        Forecast(Candidate("hook", "quantize", 16.0), 15.0, 0.96, "quantize", coding_s=0.0, exchange_s=0.3),
    )
    with mock.patch("gravac.modes.outer.candidates.delays", delays):
        forecasts = with_outer_candidates(Admission(bases), (1, 10, 100), 0.1, "auto", keep_dominated=False).forecasts
    exchange_s = {forecast.candidate: forecast.exchange_s or 0.0 for forecast in forecasts}
    controller = Goodput()
    state, decision = controller.start(forecasts)
    ran = []
    for step in range(60):
        one = decision.candidate
        trained = {"first": sum(before.every for before in ran), "steps": one.every}
        ran.append(one)
        exchange = exchange_s[one]
        waited = max(0.0, exchange - 0.1 * min(one.delay, one.every) / one.every)
        times = {"waited": waited, "coded": 0.0, "exchanged": exchange}
        measured = Measurement(step, one, 0.1 + waited, 32.0, 0.1, 1.0, **times, **trained)
        state, decision = controller.observe(state, measured)
    assert (ran[-1].every, ran[-1].delay, ran[-1].compressor) == (10, 4, "quantize")


def test_less_is_tried_where_what_travels_slows_the_steps() -> None:
    """Played: of a step of 0.12 s a sixth is what the exchange behind it takes of the processor."""
    often, seldom = (
        Forecast(
            Candidate("outer", "quantize", 16.0, every=h, delay=2), 15.0 * h, e, f"q{h}",
            behind=2 / h, coding_s=0.0, exchange_s=0.2 / h, compute_s=0.1,
        )
        for h, e in ((5, 0.91), (10, 0.89))
    )  # fmt: skip
    entry = StepTiming(1, 0.12, 0, 0.91, saved=(0.0, 0.0, 0.04))
    dense = Forecast(Candidate("hook", "dense", 1.0), 1.0)
    window = Window(often.candidate)
    state = GoodputState((dense, often, seldom), SEARCH, 1, 1, window, (entry,), windows=1)
    assert state.step_time_bounds.shortest_step_seconds(2, 10) == pytest.approx(0.1)
    assert state.efficiency(2) / state.step_time_bounds.shortest_step_seconds(2, 10) > 1.1 * state.goodput(entry)


@pytest.mark.parametrize(("promised", "tried"), [(1.05, False), (1.2, True)])
def test_a_little_more_is_not_tried_as_efficiencies_are_not_known_so_well(promised: float, tried: bool) -> None:
    """Played: another number of steps would be as quick at best, and its steps are believed to be worth more."""
    held, other = (
        Forecast(
            Candidate("outer", "any", 10.0, every=h), 10.0 * h, e, f"every {h}",
            behind=0.0, coding_s=0.0, exchange_s=0.0, step_s=s,
        )
        for h, e, s in ((10, 0.5, 0.1), (9, 0.5 * promised, 0.2))
    )  # fmt: skip
    state, decision = (controller := Goodput()).start((held, other))
    made = 0
    for step in range(200):
        seconds = 0.1 if decision.candidate == held.candidate else 0.2
        times = {"waited": 0.0, "coded": 0.0, "exchanged": 0.0}
        trained = {"first": made, "steps": decision.candidate.every}
        made += decision.candidate.every
        measured = Measurement(step, decision.candidate, seconds, 32.0, 0.1, 1.0, **times, **trained)
        state, decision = controller.observe(state, measured)
    assert (state.timing(1) is not None) == tried
    assert decision.candidate == held.candidate


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from([5, 10, 20]))
def test_in_a_run_that_is_continued_no_candidate_gets_a_shorter_delay_than_those_that_it_had(
    was: int, measured: int, every: int
) -> None:
    before = {("quantize", 8.0, every): (0, was), ("quantize", 16.0, 50): (0, 45)}
    same, other = (Forecast(Candidate("hook", "quantize", cf), cf) for cf in (8.0, 16.0))
    now = (0, measured)
    assert delays_if_continued(before, same, every, now) == (0, was)
    assert delays_if_continued(before, other, every, now) == (0, max(was, measured) if measured else 0)
    assert delays_if_continued({}, other, every, now) == now
