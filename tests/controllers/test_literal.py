# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Algorithm 1 as printed: each defect of the paper is there to be seen, and its CFs stay on the list."""

import functools
from dataclasses import replace

import pytest

from gravac.controllers import Decision, GraVAC
from gravac.controllers.gravac_literal import LiteralState
from tests.controllers.script import DENSE_CANDIDATE, PAPER, Script, by_cf, forecasts, play

play_repaired = functools.partial(play, dense_exchange_s=1e6)
"""Plays a script over a link on which dense is hopeless, so that the repaired algorithm does not time dense."""

pytestmark = pytest.mark.timeout(60)

WINDOW = 8
LITERAL = GraVAC(paper_literal=True, window=WINDOW, epsilon=0.5)
REPAIRED = LITERAL(paper_literal=False, warmup=0, shadow_every=4, epsilon_mode="absolute")
ALIKE = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.9))
APART = by_cf({10: 0.95, 20: 0.9, 40: 0.85, 160: 0.8, 1000: 0.75})
FASTER = by_cf({1: 1.0, 10: 0.8, 20: 0.4, 40: 0.2, 160: 0.1, 1000: 0.05})


def first() -> LiteralState:
    state, _ = LITERAL.start(forecasts(PAPER))
    assert isinstance(state, LiteralState)
    return state


def observed(
    state: LiteralState, controller: GraVAC = LITERAL, gain: float = 0.9, seconds: float = 0.1
) -> tuple[LiteralState, Decision]:
    """One more step, of what the state runs."""
    script = Script(lambda cf, step: gain, lambda cf, step: seconds)
    shadow = tuple(sorted({state.candidates[position].cf for position in (state.floor_position, state.tried_position)}))
    after, decision = controller.observe(
        state, script.measure(state.steps, Decision(state.candidates[state.running], shadow))
    )
    assert isinstance(after, LiteralState)
    return after, decision


def test_it_is_dense_until_a_gain_is_known() -> None:
    assert play(LITERAL, Script(APART, FASTER), 40).runs[0] == (1, 2)


def test_both_levels_are_evaluated_in_every_step_for_ever() -> None:
    played = play(LITERAL, Script(APART, FASTER), 400)
    assert all(step.applied.shadow for step in played.steps)
    assert not any(step.applied.shadow for step in play_repaired(REPAIRED, Script(APART, FASTER), 400).steps[200:])


def test_theta_min_jumps_past_what_was_evaluated() -> None:
    played = play(LITERAL, Script(ALIKE, FASTER), 40)
    window = next(step for step in played.steps if step.decision.summary)
    evaluated = {cf for step in played.steps[:WINDOW] for cf in step.applied.shadow}
    assert evaluated == {10, 20}
    assert window.state.theta_min == 40
    repaired = play_repaired(REPAIRED, Script(ALIKE, FASTER), 40)
    assert max(PAPER[step.state.floor].cf for step in repaired.steps[: 2 * WINDOW + 2]) == 20


def test_the_candidate_of_the_second_best_throughput_is_returned_though_it_is_the_higher() -> None:
    state = replace(first(), running=2, throughput=((10.0, 90.4), (20.0, 90.0)), steps=WINDOW - 1, delta_min=0.95)
    state, _ = observed(state, gain=0.9, seconds=0.1)
    assert state.theta_s * state.theta_min == 20
    repaired = play_repaired(REPAIRED, Script(ALIKE, by_cf({10: 0.1, 20: 0.1001, 40: 1, 160: 1, 1000: 1})), 60)
    assert repaired.path == [10, 20, 10]


def test_dense_can_be_one_of_the_pair() -> None:
    state = replace(first(), throughput=((1.0, 100.0), (20.0, 100.5)), steps=WINDOW - 1)
    state, _ = observed(state, gain=0.6)
    # the lower is dense, for which there is no θ_s: clamped to the list
    assert state.theta_s * state.theta_min == 10


def test_the_branch_is_taken_in_every_iteration() -> None:
    swing = Script(lambda cf, step: (0.9 if step % 4 < 2 else 0.1) if cf > 10 else 0.8, FASTER)
    literal = play(LITERAL(ewma=1, window=100), swing, 90)
    assert len(literal.runs) > 40
    assert {1, 10, 20} == set(literal.path)
    assert len(play_repaired(REPAIRED(window=100), swing, 90).runs) == 1


def test_it_branches_candidate_theta_min_dense() -> None:
    at = {0.9: (0.9, 20), 0.7: (0.4, 10), 0.3: (0.2, 1)}
    for low, (high, expected) in at.items():
        script = Script(by_cf({10: low, 20: high, 40: 0, 160: 0, 1000: 0}), FASTER)
        assert play(LITERAL(window=100), script, 50).path[-1] == expected


def test_the_search_goes_on_after_a_saturated_pair_was_found() -> None:
    found = replace(first(), running=2, throughput=((10.0, 90.4), (20.0, 90.0)), steps=WINDOW - 1, delta_min=0.95)
    found, _ = observed(found, gain=0.9, seconds=0.1)
    assert found.tried_position == 2
    later = replace(found, running=2, throughput=((10.0, 60.0), (20.0, 90.0)), steps=2 * WINDOW - 1, delta_min=0.95)
    later, _ = observed(later, gain=0.8)
    assert later.tried_position == 3
    repaired = play_repaired(
        REPAIRED, Script(ALIKE, by_cf({10: 0.1, 20: 0.1, 40: 0.001, 160: 0.001, 1000: 0.001})), 400
    )
    assert repaired.path == [10, 20, 10]


def test_only_what_was_sent_has_a_throughput_the_latest_sample_each() -> None:
    state, _ = observed(replace(first(), running=2), seconds=0.1)
    state, _ = observed(replace(state, running=2), seconds=0.2)
    assert dict(state.throughput) == pytest.approx({20.0: 10 / 0.2 * 0.9})


def test_gains_are_smoothed_and_carried_over_to_the_next_candidate() -> None:
    state = replace(first(), steps=WINDOW - 1, delta_min=0.95, delta_c=0.9)
    state, _ = observed(state, LITERAL(ewma=0.5), gain=0.7)
    assert state.delta_c == pytest.approx(0.8)
    assert state.tried_position == 3  # θ_s went on from 2 to 4, and δ_c is still that of 20


def test_geometric_doubles_and_exponential_squares() -> None:
    ready = replace(first(), theta_s=4.0, steps=WINDOW - 1, delta_min=0.95, delta_c=0.5)
    assert observed(ready, LITERAL(step="geometric"))[0].theta_s == 8
    assert observed(ready, LITERAL(step="exponential"))[0].theta_s == 16


@pytest.mark.parametrize("step", ["exponential", "geometric"])
def test_theta_min_and_theta_s_stay_on_the_list(step: str) -> None:
    script = Script(ALIKE, by_cf(dict.fromkeys((1, 10, 20, 40, 160, 1000), 0.1)))
    for gain in (script, Script(APART, script.seconds), Script(lambda cf, at: APART(cf, at) - 0.4 * (at % 90 > 60))):
        for played in play(LITERAL(step=step), gain, 900).steps:
            state = played.state
            assert 10 <= state.theta_min <= 1000
            assert 10 * (1 - 1e-9) <= state.theta_s * state.theta_min <= max(20, 1000 * (1 + 1e-9))


def test_a_theta_s_below_one_does_not_vanish() -> None:
    state = replace(first(), theta_s=0.1, theta_min=40.0, delta_min=0.95, delta_c=0.6)
    for _ in range(40 * WINDOW):
        state, _ = observed(state)
        state = replace(state, throughput=())
    assert state.theta_s > 0


def test_without_candidates_it_is_dense() -> None:
    assert play(LITERAL, Script(APART, FASTER), 60, (DENSE_CANDIDATE,)).path == [1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_does_not_reach_the_averages(bad: float) -> None:
    script = Script(APART, FASTER)
    before = observed(first())[0]
    measured = script.measure(1, Decision(PAPER[2], (10.0, 20.0)))
    for broken in (
        replace(measured, energy=bad),
        replace(measured, error=bad),
        replace(measured, shadow=((10.0, bad), (20.0, bad))),
    ):
        after = LITERAL.observe(before, broken)[0]
        assert isinstance(after, LiteralState)
        assert (after.delta_min, after.delta_c) == (before.delta_min, before.delta_c)
