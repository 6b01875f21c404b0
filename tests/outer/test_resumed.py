# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Decisions of outer steps after a checkpoint: what is held, how late, what was measured of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from gravac import Goodput, checkpoint, merge_states, quantize
from gravac.candidate import Candidate, Forecast
from gravac.controllers.goodput_state import GoodputState
from gravac.engine.decisions import Deciding
from gravac.engine.run_state import RunState
from gravac.lab.links.pauses import imitated_link
from gravac.telemetry.records import DecisionRecord
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import SGD, Ranks, equal, inner_step, network, saved
from tests.ranks import processes

DECIDES: dict[str, Any] = {"base": "ladder", "cf_range": (2, 1000), "every": (1, 20), "delay": "auto", "clock": 0.01}


def offering(steps: int) -> Any:
    """Have exchanges travel behind none, or so many steps: in memory no link is probed."""

    def delays(one: Forecast, every: int, compute_s: float | None, delay: Any) -> tuple[int, ...]:
        assert delay == "auto"
        return (0, min(steps, every // 2)) if compute_s and every > 1 else (0,)

    return mock.patch("gravac.modes.outer.candidates.delays", delays)


def decisions(outer: OuterByHand) -> GoodputState:
    state: GoodputState = outer._engine.settled.controller
    return state


def candidates(state: GoodputState) -> list[Candidate]:
    return [forecast.candidate for forecast in state.forecasts]


def measured(state: GoodputState) -> dict[Any, Any]:
    """What was measured, by candidate."""
    return {candidates(state)[entry.position]: (entry.seconds, entry.window) for entry in state.entries}


def before(ranks: int = 2, **settings: Any) -> Ranks:
    with offering(4):
        return Ranks(ranks, controller=Goodput(), **{**DECIDES, **settings}).train(90)


class Restored(NamedTuple):
    """Decisions of a rank as its first step after a load began."""

    state: GoodputState
    history: list[DecisionRecord]


@contextmanager
def watching() -> Iterator[list[Restored]]:
    """Take down decisions as they are restored, before anything else is measured."""
    restored: list[Restored] = []
    start = Deciding.decide_first

    def watched(self: Deciding, state: RunState, *arguments: Any) -> Any:
        decision = start(self, state, *arguments)
        restored.append(Restored(state.controller, [*state.history]))
        return decision

    with mock.patch.object(Deciding, "decide_first", watched):
        yield restored


def taken_up(states: list[Any], ranks: int = 2, delay: int = 3, **settings: Any) -> tuple[Ranks, list[Restored]]:
    """A run that is restored, after its first round, and what its ranks began with; its link promises other delays."""
    with offering(delay), watching() as restored:
        again = Ranks(ranks, controller=Goodput(), **{**DECIDES, **settings})
        for outer, state in zip(again.outer, states, strict=True):
            outer.load_state_dict(state)
        rounds = again.outer[0].rounds
        while again.outer[0].rounds == rounds:
            again.train(1)
    return again, restored


def test_decisions_after_a_load_are_those_of_before_though_other_delays_are_measured() -> None:
    first = before()
    states = [saved(outer.state_dict()) for outer in first.outer]
    then, history = decisions(first.outer[0]), first.outer[0].history
    again, (restored, other) = taken_up(states)
    now = restored.state
    assert max(candidate.delay for candidate in candidates(then)) == 4
    assert candidates(now) == candidates(then)
    assert [forecast.compute_s for forecast in now.forecasts] == [forecast.compute_s for forecast in then.forecasts]
    assert None not in [forecast.compute_s for forecast in now.forecasts]
    assert (now.position, now.best, now.phase, now.windows) == (then.position, then.best, then.phase, then.windows)
    assert now.entries == then.entries
    assert restored == other
    assert restored.history == history
    assert equal(again.anchors)


def test_what_is_saved_before_the_first_step_after_a_load_is_what_was_loaded() -> None:
    states = [saved(outer.state_dict()) for outer in before().outer]
    again = Ranks(2, controller=Goodput(), **DECIDES)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
        twice = saved(outer.state_dict())
        assert state["controller_state"] is not None
        assert twice["controller_state"] == state["controller_state"]
        assert twice["compute_s"] == state["compute_s"]
        assert twice["candidates"] == state["candidates"]
        for part in ("phase", "ended", "steps", "in_round", "every", "delay"):
            assert twice["outer"][part] == state["outer"][part]


@pytest.mark.parametrize("ranks", [1, 3])
def test_at_another_number_of_ranks_what_was_measured_stays_of_candidates_that_there_are_still(ranks: int) -> None:
    first = before()
    merged = merge_states([saved(outer.state_dict()) for outer in first.outer])
    then, history = decisions(first.outer[0]), first.outer[0].history
    again, restored = taken_up([merged] * ranks, ranks)
    now = restored[0].state
    there = {*candidates(now)}
    assert measured(now).keys() == measured(then).keys() & there
    assert all(measured(then)[one] == known for one, known in measured(now).items())
    gone = [candidate for candidate in candidates(then) if candidate not in there]
    told = restored[0].history[len(history) :]
    assert len(told) == bool(gone)
    assert all("this run lacks" in record.reason for record in told)
    assert all(one == restored[0] for one in restored)
    assert equal(again.train(10).anchors)


def test_a_search_that_starts_anew_as_nothing_measured_can_be_chosen_any_more_says_so_in_a_record() -> None:
    first = before(every=(10, 20))
    then = decisions(first.outer[0])
    states = [saved(outer.state_dict()) for outer in first.outer]
    ran = str(then.running)
    again, (restored, other) = taken_up(states, every=(1, 5))
    (record,) = restored.history[len(first.outer[0].history) :]
    assert "this run lacks" in record.reason
    assert "no measurement is left; start at" in record.reason
    assert ran not in map(str, candidates(restored.state))
    assert record.changed
    assert restored == other
    assert equal(again.anchors)


# over gloo

SLOW: dict[str, Any] = {
    "base": quantize(bits=4),
    "cf_range": (8, 8),
    "every": 4,
    "delay": "auto",
    "dense_below": 0,
}

SLOW_BPS = 9e4
"""Rate of a link on which an exchange of 4 bits takes about as long as three steps, of ``PAUSE`` seconds each."""

PAUSE = 0.05


def paused(outer: OuterByHand, module: Any, rank: int, first: int, steps: int) -> None:
    for step in range(first, first + steps):
        inner_step(module, outer.inner, step, rank)
        time.sleep(PAUSE)
        outer.step()


def made(settings: dict[str, Any]) -> tuple[OuterByHand, Any]:
    module = network()
    controller = Goodput(window=400)  # what is held once is held for longer than this test takes
    return OuterByHand(module, SGD(module.parameters()), controller=controller, **settings), module


@imitated_link(SLOW_BPS)
def holds(rank: int, world: int, folder: Path) -> tuple[Any, Any, Any]:
    """Train until something is held that travels behind steps; save."""
    outer, module = made(SLOW)
    for block in range(40):
        paused(outer, module, rank, 20 * block, 20)
        outer.synchronize()
        if decisions(outer).phase == "hold":
            break
    checkpoint.save(folder, outer)
    state, history = decisions(outer), outer.history
    outer.close()
    return state, history, outer._state.delay


@imitated_link(SLOW_BPS)
def goes_on(rank: int, world: int, folder: Path) -> tuple[Any, Any, Any]:
    outer, module = made(SLOW)
    checkpoint.load(folder, outer)
    rounds = outer.rounds
    with watching() as restored:
        while outer.rounds < rounds + 2:
            paused(outer, module, rank, 0, 1)
    ((state, history),) = restored
    outer.close()
    return state, history, outer._state.delay


def test_over_a_network_a_run_holds_what_it_held_before_as_late_as_before(tmp_path: Path) -> None:
    (then, history, behind), (other, *_) = processes(holds, 2, tmp_path)
    assert then == other
    assert then.phase == "hold"
    assert behind == then.running.delay > 0
    for now, told, late in processes(goes_on, 2, tmp_path):
        assert candidates(now) == candidates(then)
        assert (now.phase, now.running, late) == ("hold", then.running, behind)
        assert (now.windows, now.window, now.entries) == (then.windows, then.window, then.entries)
        assert told == history
