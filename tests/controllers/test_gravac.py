# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""GraVAC's transitions, one script each."""

import functools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.candidate import DENSE, Candidate
from gravac.controllers import Decision, GraVAC, Summary
from gravac.controllers.gravac_evidence import CLEAN_TIMES, DENSE_SETTLING
from gravac.controllers.gravac_state import EXPLOIT, EXPLORE, LOOK, WARM_UP, GravacState
from gravac.controllers.window import SETTLING
from tests.controllers import script as scripts
from tests.controllers.script import DENSE_CANDIDATE, PAPER, Curve, Script, by_cf, forecasts, topk

play = functools.partial(scripts.play, dense_exchange_s=1e6)
"""Plays a script over a link on which dense is hopeless, so that it is not timed."""

pytestmark = pytest.mark.timeout(60)

WINDOW = 8
ABSOLUTE = GraVAC(window=WINDOW, warmup=4, shadow_every=4, dwell=2, epsilon=0.5, epsilon_mode="absolute")

GOOD = by_cf({10: 0.95, 20: 0.90, 40: 0.85, 160: 0.80, 1000: 0.75})
FASTER = by_cf({1: 1.0, 10: 0.8, 20: 0.4, 40: 0.2, 160: 0.1, 1000: 0.05})
"""Every CF twice as fast as the one before: throughput never saturates."""


def until(step: int, before: Curve, after: Curve) -> Curve:
    """One curve before a step, another from it on."""
    return lambda cf, at: before(cf, at) if at < step else after(cf, at)


def summary(decision: Decision) -> Summary:
    assert decision.summary is not None
    return decision.summary


# warm-up and exploration


def test_warm_up_then_explore_then_exploit() -> None:
    told = play(ABSOLUTE, Script(GOOD, FASTER), 200).told
    assert [summary(decision).phase for decision in told[:6]] == [*[EXPLORE] * 5, EXPLOIT]


def test_warm_up_steps_are_not_measured() -> None:
    played = play(ABSOLUTE, Script(until(4, by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.01)), GOOD), FASTER), 60)
    assert summary(played.told[0]).gain_low == pytest.approx(0.95)
    assert all(not step.decision.shadow for step in played.steps[:4])


def test_candidates_run_in_ascending_order_a_window_each() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 200)
    # a decision comes one step late, so what ran goes on for one step more than its window
    assert played.runs == [(10, 4 + WINDOW + 1), (20, WINDOW + 1), (40, WINDOW + 1), (160, WINDOW + 1), (1000, 160)]


def test_the_step_of_another_candidate_before_a_decision_holds_does_not_count() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 200)
    for decision, cf in zip(played.told, (10, 20, 40, 160, 1000), strict=False):
        shown = summary(decision)
        assert shown.gain_low == pytest.approx(GOOD(cf, 0))
        assert shown.gain_high == pytest.approx(GOOD(cf, 0))
        assert shown.t_system == pytest.approx(10 / FASTER(cf, 0))


def test_a_calibrated_epsilon_is_relative_to_the_lowest_cf() -> None:
    gain = by_cf({10: 0.4, 20: 0.25, 40: 0.15, 160: 0.1, 1000: 0.05})
    played = play(GraVAC(window=WINDOW, warmup=4), Script(gain, FASTER), 60)
    assert played.end.threshold == pytest.approx(0.2)
    assert "sets ε, the lowest gain allowed, to 0.2 (0.5 of that gain)" in played.reasons[0]
    assert played.path[-1] == 20


def test_an_absolute_epsilon_is_what_it_says() -> None:
    gain = by_cf({10: 0.4, 20: 0.25, 40: 0.15, 160: 0.12, 1000: 0.05})
    played = play(ABSOLUTE(epsilon=0.1), Script(gain, FASTER), 100)
    assert played.end.threshold == 0.1
    assert played.path[-1] == 160


def test_a_candidate_below_epsilon_is_refused_and_so_is_what_is_higher() -> None:
    gain = by_cf({10: 0.9, 20: 0.8, 40: 0.4, 160: 0.9, 1000: 0.9})
    played = play(ABSOLUTE, Script(gain, FASTER, optimism=2), 100)
    assert played.path == [10, 20, 40, 20]
    assert "gain 0.4 at topk 40x is below ε 0.5: refused" in played.reasons[2]


def test_a_candidate_whose_shadow_gain_is_below_epsilon_is_refused_without_running() -> None:
    gain = by_cf({10: 0.9, 20: 0.8, 40: 0.4, 160: 0.9, 1000: 0.9})
    played = play(ABSOLUTE, Script(gain, FASTER), 100)
    assert played.path == [10, 20]
    assert (
        "gain 0.4 at topk 40x, computed without sending, is below ε 0.5: topk 40x and all higher" in played.reasons[1]
    )


def test_shadows_are_those_still_to_be_tried() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 100)
    asked = {step.applied.candidate.cf: step.applied.shadow for step in played.steps if step.applied.shadow}
    assert asked == {10: (20, 40, 160, 1000), 20: (40, 160, 1000), 40: (160, 1000), 160: (1000,)}


def test_a_second_search_asks_for_shadows_too() -> None:
    gain = until(120, GOOD, by_cf({10: 0.6, 20: 0.4, 40: 0.9, 160: 0.9, 1000: 0.4}))
    played = play(ABSOLUTE(dwell=9), Script(gain, FASTER), 250)
    assert played.path == [10, 20, 40, 160, 1000, 10]
    refusal = "gain 0.4 at topk 20x, computed without sending, is below ε 0.5: topk 20x and all higher"
    assert any(refusal in reason for reason in played.reasons)


@pytest.mark.parametrize(("at_20", "at_40"), [(0.1, 0.1001), (0.1001, 0.1)], ids=["40 is best", "20 is best"])
def test_saturation_chooses_the_lower_cf_and_ends_the_search(at_20: float, at_40: float) -> None:
    gain = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.9))
    seconds = by_cf({10: 0.2, 20: at_20, 40: at_40, 160: 0.001, 1000: 0.001})
    played = play(ABSOLUTE, Script(gain, seconds), 200)
    assert played.path == [10, 20, 40, 20]
    assert "compression throughput saturates: it differs by at most 1 % (ω) between topk 20x (" in played.reasons[2]
    assert "run topk 20x: compression throughput" in played.reasons[2]


def test_throughputs_further_apart_than_omega_do_not_saturate() -> None:
    gain = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.9))
    seconds = by_cf({10: 0.2, 20: 0.1, 40: 0.0985, 160: 0.05, 1000: 0.02})
    assert play(ABSOLUTE, Script(gain, seconds), 200).path == [10, 20, 40, 160, 1000]
    assert play(ABSOLUTE(omega=0.02), Script(gain, seconds), 200).path == [10, 20, 40, 20]


def test_without_saturation_the_best_throughput_is_chosen() -> None:
    seconds = by_cf({10: 0.2, 20: 0.12, 40: 0.08, 160: 0.1, 1000: 0.15})
    played = play(ABSOLUTE, Script(GOOD, seconds), 200)
    assert played.path == [10, 20, 40, 160, 1000, 40]
    assert (
        "run topk 40x: compression throughput 106.2 samples/s (best of the others: 75 samples/s at topk 20x)"
        in (played.reasons[4])
    )


def test_throughput_is_weighed_by_gain() -> None:
    gain = by_cf({10: 0.9, 20: 0.6, 40: 0.55, 160: 0.52, 1000: 0.51})
    seconds = by_cf({10: 0.1, 20: 0.08, 40: 0.079, 160: 0.078, 1000: 0.077})
    assert play(ABSOLUTE, Script(gain, seconds), 200).path[-1] == 10


def test_theta_min_rises_to_the_candidate_just_evaluated_and_not_past_it() -> None:
    gain = by_cf({10: 0.9, 20: 0.895, 40: 0.8, 160: 0.7, 1000: 0.6})
    played = play(ABSOLUTE, Script(gain, FASTER), 200)
    floors = [played.steps[at].state.floor for at, s in enumerate(played.steps) if s.decision.summary]
    assert floors[:4] == [1, 2, 2, 2]
    rise = "within 1 % (ω) of the gain 0.9 at topk 10x: θ_min, the lowest CF in use, rises to that of topk 20x"
    assert rise in played.reasons[1]


def test_theta_min_is_never_above_what_is_chosen() -> None:
    gain = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.9))
    seconds = by_cf({10: 0.1, 20: 0.2, 40: 0.3, 160: 0.4, 1000: 0.5})
    played = play(ABSOLUTE, Script(gain, seconds), 200)
    assert played.path[-1] == 10
    assert played.end.floor == 1


def test_a_lowest_cf_below_an_absolute_epsilon_goes_dense() -> None:
    gain = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.3))
    played = play(ABSOLUTE, Script(gain, FASTER), 300)
    assert played.path == [10, 1]
    assert "the lowest CF that compresses, is below ε 0.5: switched to dense 1x" in played.reasons[0]


def test_entries_older_than_expire_are_not_compared_with() -> None:
    seconds = by_cf({10: 0.1, 20: 0.2, 40: 0.3, 160: 0.4, 1000: 0.5})
    script = Script(by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.9)), seconds)
    assert play(ABSOLUTE, script, 200).path == [10, 20, 40, 160, 1000, 10]
    assert play(ABSOLUTE(expire=2), script, 200).path[-1] != 10


def test_a_new_search_forgets_the_entries_of_the_one_before() -> None:
    gain = until(120, GOOD, by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.51)))
    played = play(ABSOLUTE, Script(gain, FASTER), 400)
    again = next(s.state for s in played.steps[120:] if s.state.position == 2)
    assert [entry.position for entry in ABSOLUTE._evidence(again).complete] == [1]


def test_dense_is_never_one_of_the_pair() -> None:
    gain = until(100, GOOD, until(150, by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.1)), GOOD))
    seconds = by_cf({1: 0.1, 10: 0.1, 20: 0.05, 40: 0.03, 160: 0.02, 1000: 0.01})
    played = play(ABSOLUTE, Script(gain, seconds), 1000)
    assert played.path[:8] == [10, 20, 40, 160, 1000, 10, 1, 20], "10x is slower than dense at any gain"
    assert played.path[-1] == 1000
    assert not any("saturates" in reason and "dense" in reason for reason in played.reasons)


def test_with_one_candidate_it_is_chosen_at_once() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 100, (DENSE_CANDIDATE, topk(10.0)))
    assert played.path == [10]
    assert played.end.phase == EXPLOIT


# exploitation

FALLEN = by_cf({10: 0.4, 20: 0.35, 40: 0.3, 160: 0.25, 1000: 0.2})
CALM = ABSOLUTE(dwell=50)


def test_gain_below_epsilon_scales_down_to_theta_min_and_then_to_dense() -> None:
    played = play(CALM, Script(until(100, GOOD, FALLEN), FASTER), 200)
    assert played.path == [10, 20, 40, 160, 1000, 10, 1]
    assert any("fell below ε 0.5: down to topk 10x" in reason for reason in played.reasons)
    assert any("fell below ε 0.5: switched to dense" in reason for reason in played.reasons)


def test_scaling_down_stops_at_theta_min_when_its_gain_is_enough() -> None:
    fallen = by_cf({10: 0.8, 20: 0.4, 40: 0.35, 160: 0.3, 1000: 0.2})
    assert play(CALM, Script(until(100, GOOD, fallen), FASTER), 300).path == [10, 20, 40, 160, 1000, 10]


def test_scaling_down_goes_to_a_theta_min_that_has_risen() -> None:
    gain = by_cf({10: 0.9, 20: 0.895, 40: 0.8, 160: 0.7, 1000: 0.6})
    fallen = by_cf({10: 0.9, 20: 0.8, 40: 0.4, 160: 0.4, 1000: 0.4})
    assert play(CALM, Script(until(100, gain, fallen), FASTER), 300).path == [10, 20, 40, 160, 1000, 20]


def test_after_scaling_down_the_search_starts_again_when_the_dwell_is_over() -> None:
    fallen = by_cf({10: 0.8, 20: 0.4, 40: 0.35, 160: 0.3, 1000: 0.2})
    played = play(ABSOLUTE(dwell=20), Script(until(60, GOOD, fallen), FASTER, optimism=2), 400)
    assert played.path == [10, 20, 40, 160, 1000, 10, 20, 10]
    assert any("no search has chosen topk 10x yet: try the CFs again; try topk 10x" in r for r in played.reasons)


def test_dense_lasts_for_the_dwell_and_twice_as_long_each_time() -> None:
    script = Script(until(60, GOOD, FALLEN), FASTER, optimism=2)
    dense = [steps for cf, steps in play(ABSOLUTE(dwell=3), script, 600).runs if cf == 1]
    # three steps more: one of a look at the gain, and both decisions hold one step late
    assert dense[:3] == [3 * WINDOW + 3, 6 * WINDOW + 3, 12 * WINDOW + 3]


def test_dense_asks_for_shadow_gains_only_when_the_rest_is_over() -> None:
    played = play(ABSOLUTE(dwell=3), Script(until(60, GOOD, FALLEN), FASTER), 400)
    start = played.cfs.index(1)
    asked = [at - start for at, step in enumerate(played.steps) if step.applied.candidate.dense and step.applied.shadow]
    assert asked[0] >= 2 * WINDOW
    assert {played.steps[start + at].applied.shadow for at in asked} == {(10, 20, 40, 160, 1000)}


def test_dense_stays_while_the_shadow_gain_is_below_epsilon() -> None:
    played = play(ABSOLUTE(dwell=3), Script(until(60, GOOD, FALLEN), FASTER), 600)
    assert played.path[-1] == 1
    kept = "keep dense 1x: gain 0.4 at topk 10x, computed without sending, is below ε 0.5"
    assert any(reason.startswith(kept) for reason in played.reasons)


def test_it_comes_back_from_dense_to_theta_min_and_searches_again_after_a_dwell() -> None:
    gain = until(60, GOOD, until(120, FALLEN, GOOD))
    played = play(ABSOLUTE(dwell=3), Script(gain, FASTER), 900)
    assert played.path == [10, 20, 40, 160, 1000, 10, 1, 10, 20, 40, 160, 1000]
    assert any("reaches ε 0.5, and its time" in reason for reason in played.reasons)


def test_a_gain_inside_its_band_holds() -> None:
    played = play(ABSOLUTE, Script(until(100, GOOD, by_cf({1000: 0.75 * 1.29})), FASTER), 600)
    assert played.path == [10, 20, 40, 160, 1000]
    assert played.reasons[-1].startswith("keep topk")


@pytest.mark.parametrize("factor", [0.69, 1.31], ids=["down", "up"])
def test_a_gain_that_leaves_its_band_starts_a_new_search(factor: float) -> None:
    moved = by_cf({cf: factor * GOOD(cf, 0) for cf in (10, 20, 40, 160, 1000)})
    played = play(ABSOLUTE, Script(until(100, GOOD, moved), FASTER), 250)
    assert played.path == [10, 20, 40, 160, 1000, 10, 20, 40, 160, 1000]
    cause = "differs by more than 30 % from 0.75, the gain when topk 1000x was chosen: try the CFs again"
    assert any(cause in reason for reason in played.reasons)


def test_a_new_search_calibrates_again() -> None:
    lower = by_cf({10: 0.2, 20: 0.18, 40: 0.17, 160: 0.16, 1000: 0.15})
    controller = GraVAC(window=WINDOW, warmup=4, dwell=2, epsilon=0.1)
    played = play(controller, Script(until(100, GOOD, lower), FASTER), 300)
    assert played.end.threshold == pytest.approx(0.02)


def searches(controller: GraVAC, script: Script, steps: int) -> list[int]:
    """Windows from the end of one search to the start of the next."""
    waits, ended = [], None
    for decision in play(controller, script, steps).told:
        assert decision.summary is not None
        held = decision.summary.phase == EXPLOIT
        if held:
            ended = 1 if ended is None else ended + 1
        if "try the CFs again" in decision.reason and ended is not None:
            waits.append(ended)
            ended = None
    return waits


def test_a_link_that_changed_starts_a_search_within_three_windows() -> None:
    def seconds(cf: float, step: int) -> float:
        return FASTER(cf, step) * (1 if step < 400 else 3)

    played = play(CALM, Script(GOOD, seconds), 800)
    again = [step for step, s in enumerate(played.steps) if " instead of " in s.decision.reason]
    assert again and 400 <= again[0] <= 400 + 3 * CALM.window + 2
    assert len(again) == 1, "one change, one search"


def test_one_slow_window_starts_none() -> None:
    def seconds(cf: float, step: int) -> float:
        return FASTER(cf, step) * (3 if 400 <= step < 400 + CALM.window else 1)

    reasons = [s.decision.reason for s in play(CALM, Script(GOOD, seconds), 800).steps]
    assert not any(" instead of " in reason for reason in reasons)


def test_a_learning_rate_that_fell_starts_a_search() -> None:
    def rate(step: int) -> float:
        return 0.1 if step < 400 else 0.01

    played = play(CALM, Script(GOOD, FASTER, learning_rate=rate), 800)
    again = [step for step, s in enumerate(played.steps) if "learning rate fell from 0.1 to 0.01" in s.decision.reason]
    assert len(again) == 1 and 400 <= again[0] <= 400 + CALM.window + 2


def test_a_learning_rate_that_decays_slowly_starts_few() -> None:
    script = Script(GOOD, FASTER, learning_rate=lambda step: 0.1 * 0.999**step)
    reasons = [s.decision.reason for s in play(CALM, script, 2000).steps]
    assert 1 <= sum("learning rate fell" in reason for reason in reasons) <= 4


def test_searches_are_a_dwell_apart_which_doubles() -> None:
    # the gain never stops moving: out of any band by the time the dwell is over
    script = Script(lambda cf, step: GOOD(cf, step) * (0.999**step), FASTER)
    controller = ABSOLUTE(dwell=3, band=0.01, epsilon=0.05)
    assert searches(controller, script, 800) == [3, 6, 12, 24]


def test_dense_running_most_of_the_time_is_told() -> None:
    gain = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.3))
    played = play(ABSOLUTE, Script(gain, FASTER), 300)
    assert "% of all steps ran dense, so ε (the setting epsilon) may be too high" in played.reasons[-1]
    assert "ran dense" not in "".join(play(ABSOLUTE, Script(GOOD, FASTER), 300).reasons)


def test_a_few_dense_steps_are_not_told() -> None:
    played = play(ABSOLUTE, Script(until(60, GOOD, until(80, FALLEN, GOOD)), FASTER), 600)
    assert 0 < played.cfs.count(1) < 300
    assert "ran dense" not in played.reasons[-1]


def test_dense_for_good_is_not_called_a_matter_of_epsilon() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 300, (DENSE_CANDIDATE,))
    assert played.path == [1]
    assert set(played.reasons) == {"no candidate sends fewer bytes than dense 1x"}


def test_shares_are_of_all_steps() -> None:
    end = play(CALM, Script(until(100, GOOD, FALLEN), FASTER), 200)
    count = end.cfs.count
    expected = {"dense": count(1) / 200, "theta_min": count(10) / 200}
    expected["candidate"] = 1 - sum(expected.values())
    assert end.end.step_fractions == pytest.approx(expected)


# what is measured


def test_shadow_steps_do_not_lower_the_throughput() -> None:
    cheap, dear = (play(ABSOLUTE, Script(GOOD, FASTER, shadow_seconds=s), 200) for s in (0.0, 10.0))
    assert [summary(d).t_system for d in cheap.told] == [summary(d).t_system for d in dear.told]
    assert cheap.path == dear.path


def test_a_slow_start_after_a_change_does_not_lower_the_throughput() -> None:
    plain = play(ABSOLUTE, Script(GOOD, FASTER), 200)
    starts = {at for at in range(1, 200) if plain.cfs[at] != plain.cfs[at - 1]}
    slow = {at + later for at in starts for later in range(3)}
    played = play(ABSOLUTE, Script(GOOD, lambda cf, step: FASTER(cf, step) + 3.0 * (step in slow)), 200)
    assert [summary(d).t_system for d in played.told] == [summary(d).t_system for d in plain.told]


def test_a_candidate_that_goes_on_running_has_nothing_to_settle() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 200)
    ends = [at for at, step in enumerate(played.steps) if step.decision.summary]
    first = ends[6] + 1
    dipped = play(ABSOLUTE, Script(lambda cf, step: GOOD(cf, step) - 0.01 * (step == first), FASTER), 200)
    assert summary(dipped.told[7]).gain_low == pytest.approx(GOOD(1000, 0) - 0.01)


def test_pauses_do_not_lower_the_throughput() -> None:
    plain = play(ABSOLUTE, Script(GOOD, FASTER), 400)
    paused = play(ABSOLUTE, Script(GOOD, lambda cf, step: FASTER(cf, step) + 60.0 * (step % 5 == 0)), 400)
    assert [summary(d).t_system for d in paused.told] == pytest.approx([summary(d).t_system for d in plain.told])


def test_steps_that_were_not_finite_make_the_window_longer() -> None:
    broken = Script(lambda cf, step: float("nan") if 20 <= step < 30 else GOOD(cf, step), FASTER)
    plain = play(ABSOLUTE, Script(GOOD, FASTER), 200)
    assert play(ABSOLUTE, broken, 200).runs[1] == (20, plain.runs[1][1] + 10)


# trials of dense, which the samples per second of dense alone decide

HALF = Candidate("hook", DENSE, 2.0)
BESIDE = (DENSE_CANDIDATE, HALF, *PAPER[1:])
SLOW = {1: 2.0, 10: 0.4, 20: 0.2, 40: 0.1, 160: 0.05, 1000: 0.03}
SETTLED = SETTLING + CLEAN_TIMES
FAST_LINK = by_cf({1: 0.1, 2: 0.09, 10: 0.12, 20: 0.11, 40: 0.11, 160: 0.11, 1000: 0.11})


def test_16_bit_is_timed_as_soon_as_the_lowest_cf_has_a_few_times() -> None:
    seconds = {2: 0.81, **{cf: FASTER(cf, 0) for cf in (1, 10, 20, 40, 160, 1000)}}
    played = scripts.play(ABSOLUTE, Script(GOOD, by_cf(seconds)), 200, BESIDE)
    assert played.path == [10, 2, 10, 20, 40, 160, 1000]
    # a decision comes one step late, and one step computes shadow gains
    assert [steps for _, steps in played.runs[:2]] == [SETTLED + 2, DENSE_SETTLING + CLEAN_TIMES + 1]


def test_a_trial_of_16_bit_ends_at_the_first_step_that_is_far_too_slow() -> None:
    played = scripts.play(ABSOLUTE, Script(GOOD, by_cf({2: 5.0, **SLOW})), 200, BESIDE)
    assert played.runs[1] == (2, 2)
    assert "each step of dense 2x took at least 5 s; above 0.842 s it is far from the best" in played.reasons[1]


def test_a_trial_of_16_bit_ends_after_three_steps_that_are_too_slow_by_less() -> None:
    played = scripts.play(ABSOLUTE, Script(GOOD, by_cf({2: 0.6, **SLOW})), 400, BESIDE)
    assert played.runs[1] == (2, 4)
    assert "took at least 0.6 s; above 0.526 s" in played.reasons[1]
    assert played.path == [10, 2, 10, 20, 40, 160, 1000], "and is not timed again, since it was timed"


@pytest.mark.parametrize("later", [0, 1])
def test_a_pause_in_a_trial_of_16_bit_does_not_exclude_it(later: int) -> None:
    first = scripts.play(ABSOLUTE, Script(GOOD, FAST_LINK, waited=0.01), 50, BESIDE).cfs.index(2)

    def seconds(cf: float, step: int) -> float:
        return 9.0 if step == first + later else FAST_LINK(cf, step)

    played = scripts.play(ABSOLUTE, Script(GOOD, seconds, waited=0.01), 200, BESIDE)
    assert played.path[:3] == ([10, 2, 1] if later else [10, 2, 10])
    assert played.path[-1] in (1, 2)


def test_16_bit_is_not_tried_where_its_exchange_is_predicted_to_take_too_long() -> None:
    played = play(ABSOLUTE, Script(GOOD, by_cf({2: 5.0, **SLOW})), 200, BESIDE)
    assert played.path == [10, 20, 40, 160, 1000]


def test_float32_is_timed_only_where_16_bit_won() -> None:
    lost = scripts.play(ABSOLUTE, Script(GOOD, by_cf({2: 1.0, **SLOW})), 400, BESIDE)
    assert 1 not in lost.cfs
    won = scripts.play(ABSOLUTE, Script(GOOD, FAST_LINK, waited=0.01), 400, BESIDE)
    assert won.path[:4] == [10, 2, 1, 2]
    equal = scripts.play(ABSOLUTE, Script(GOOD, lambda cf, step: 0.09 if cf < 10 else 0.12, waited=0.0), 150, BESIDE)
    assert equal.path == [10, 2, 1], "of two that are equal, the one that loses nothing"


def test_float32_is_not_timed_where_its_exchange_alone_takes_longer_than_a_step_of_16_bit() -> None:
    for exchange_s, path in ((0.1, [10, 2, 1, 2]), (0.15, [10, 2])):
        played = scripts.play(ABSOLUTE, Script(GOOD, FAST_LINK, waited=0.01), 150, BESIDE, exchange_s)
        assert played.path[: len(path) + 1] == path


def test_a_cf_is_left_out_where_its_shadow_gain_is_too_low_to_win() -> None:
    fast = by_cf({1: 1.0, 2: 0.09, 10: 0.095, 20: 0.08, 40: 0.07, 160: 0.07, 1000: 0.07})
    high, low = (by_cf({10: 0.8, 20: gain, 40: gain, 160: gain, 1000: gain}) for gain in (0.79, 0.5))
    for gain, tried in ((high, True), (low, False)):
        played = scripts.play(GraVAC(epsilon=0.1), Script(gain, fast, waited=0.03), 200, BESIDE)
        assert (20 in played.cfs) is tried


def test_a_search_after_a_look_begins_at_the_cf_that_the_look_named() -> None:
    slow_at_low = {1: 1.0, 2: 0.1, 10: 0.2, 20: 0.12, 40: 0.12, 160: 0.12, 1000: 0.12}
    gain = until(60, by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.6)), by_cf({10: 0.9, 20: 0.9, 40: 0.8, 160: 0.8,
                                                                               1000: 0.8}))  # fmt: skip
    faster = until(60, by_cf(slow_at_low), by_cf({**slow_at_low, 20: 0.08, 40: 0.07, 160: 0.07, 1000: 0.07}))
    played = scripts.play(ABSOLUTE(expire=500), Script(gain, faster, waited=0.1), 1500, BESIDE)
    looks = [at for at, step in enumerate(played.steps) if step.state.phase == LOOK]
    after = [cf for cf in played.cfs[looks[0] :] if cf > 2]
    assert after[0] == 20
    assert 10 not in after[:50]


def test_on_a_fast_link_a_few_steps_are_compressed_and_no_higher_cf_is_tried() -> None:
    played = scripts.play(GraVAC(), Script(GOOD, FAST_LINK, waited=0.01), 1000, BESIDE)
    assert sum(cf > 2 for cf in played.cfs) <= 2 * SETTLED
    assert max(played.cfs) <= 20


def test_a_cut_window_has_no_throughput_sets_no_epsilon_and_raises_no_theta_min() -> None:
    gain = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.9))
    played = scripts.play(GraVAC(window=WINDOW, warmup=4), Script(gain, FAST_LINK), 60, BESIDE)
    cut = [step for step in played.steps if "cannot win at a gain of at most" in step.decision.reason]
    assert cut
    assert all(summary(step.decision).t_compression is None for step in cut)
    assert all(step.state.threshold is None and step.state.floor == 2 for step in cut)


def test_higher_cfs_are_left_out_where_a_step_without_waiting_would_be_too_slow() -> None:
    assert {*scripts.play(ABSOLUTE, Script(GOOD, FAST_LINK, waited=0.01), 200, BESIDE).cfs} == {1, 2, 10}
    assert max(scripts.play(ABSOLUTE, Script(GOOD, FAST_LINK, waited=0.05), 200, BESIDE).cfs) == 1000


def test_a_gain_far_too_low_ends_a_window_too() -> None:
    script = Script(by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.4)), by_cf({1: 0.1, 2: 0.09, **dict.fromkeys(
        (10, 20, 40, 160, 1000), 0.08)}), waited=0.01)  # fmt: skip
    played = scripts.play(GraVAC(), script, 200, BESIDE)
    assert sum(cf > 2 for cf in played.cfs) <= SETTLED + 2, "16 bit makes 111 samples/s, top-k 125 at half the gain"


def test_what_lost_by_its_times_is_not_tried_again_before_they_expire() -> None:
    controller = ABSOLUTE(dwell=2, expire=40)
    played = scripts.play(controller, Script(GOOD, FAST_LINK, waited=0.01), 40 * WINDOW, BESIDE)
    compressed = [at for at, cf in enumerate(played.cfs) if cf > 2]
    assert compressed[-1] < 10 * WINDOW
    assert any("by times younger than 40 windows, no CF can win" in reason for reason in played.reasons)
    later = scripts.play(controller, Script(GOOD, FAST_LINK, waited=0.01), 120 * WINDOW, BESIDE)
    again = [at for at, cf in enumerate(later.cfs) if cf > 2 and at > 10 * WINDOW]
    assert again and again[0] >= 40 * WINDOW
    assert any("and its time is not known, or too old: try topk" in reason for reason in later.reasons)


def test_a_look_at_the_gain_sends_dense_and_does_not_try_what_is_below_epsilon() -> None:
    gain = until(60, GOOD, by_cf(dict.fromkeys((10, 20, 40, 160, 1000), 0.4)))
    played = scripts.play(ABSOLUTE, Script(gain, FAST_LINK), 1200, BESIDE)
    looks = [step for step in played.steps if step.state.phase == LOOK]
    assert looks
    assert all(step.decision.candidate == HALF and step.decision.shadow for step in looks)
    assert all(cf <= 2 for cf in played.cfs[100:])


def test_trials_that_lose_become_rarer() -> None:
    played = scripts.play(ABSOLUTE(expire=1), Script(GOOD, FAST_LINK, waited=0.01), 4000, BESIDE)
    starts = [at for at in range(1, 4000) if played.cfs[at] == 10 and played.cfs[at - 1] <= 2]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert len(gaps) >= 3
    assert all(later > 1.5 * earlier for earlier, later in pairwise(gaps))


def test_a_slower_link_is_noticed_at_dense() -> None:
    played = scripts.play(ABSOLUTE(dwell=3), Script(GOOD, until(80, FAST_LINK, by_cf({2: 1.0, **SLOW}))), 600, BESIDE)
    assert played.cfs[79] <= 2
    assert played.path[-1] == 1000


def test_a_faster_link_is_noticed_at_a_compressed_candidate_and_dense_is_timed_again() -> None:
    slow = by_cf({2: 5.0, **SLOW})
    played = scripts.play(ABSOLUTE(dwell=3), Script(GOOD, until(150, slow, lambda cf, at: FAST_LINK(cf, at) / 9)), 900,
                          BESIDE)  # fmt: skip
    assert played.cfs[149] == 1000
    assert played.path[-1] in (1, 2)


def test_the_time_of_dense_is_measured_again_when_it_is_old_and_rarely() -> None:
    script = Script(GOOD, by_cf({2: 0.81, **{cf: FASTER(cf, 0) for cf in (1, 10, 20, 40, 160, 1000)}}))
    played = scripts.play(ABSOLUTE(expire=10), script, 3000, BESIDE)
    trials = [at for at in range(1, 3000) if played.cfs[at] == 2 and played.cfs[at - 1] != 2]
    gaps = [later - earlier for earlier, later in pairwise(trials)]
    assert gaps[-1] > 4 * gaps[0]
    assert len(trials) <= 9
    assert played.path[-1] == 1000


def test_where_gain_is_not_enough_16_bit_runs_and_not_dense() -> None:
    played = scripts.play(CALM, Script(until(100, GOOD, FALLEN), by_cf({2: 0.8, **SLOW})), 300, BESIDE)
    assert played.path == [10, 2, 10, 20, 40, 160, 1000, 10, 2]
    assert any("fell below ε 0.5: switched to dense 2x" in reason for reason in played.reasons)
    assert 1 not in played.cfs


def test_16_bit_does_not_raise_theta_min() -> None:
    gain = by_cf({10: 0.999, 20: 0.9, 40: 0.8, 160: 0.7, 1000: 0.6})
    played = scripts.play(ABSOLUTE, Script(gain, by_cf({2: 1.0, **SLOW})), 200, BESIDE)
    assert {step.state.floor for step in played.steps} == {2}


def test_nothing_but_16_bit_is_16_bit_for_good() -> None:
    played = play(ABSOLUTE, Script(GOOD, by_cf({2: 1.0})), 100, BESIDE[:2])
    assert played.path == [2]
    assert set(played.reasons) == {"no candidate sends fewer bytes than dense 2x"}


@given(dense_s=st.floats(0.01, 1.0), slower=st.floats(1.05, 3.0), gain=st.floats(0.05, 1.0), window=st.integers(6, 30))
def test_where_compression_is_slower_it_takes_few_steps(
    dense_s: float, slower: float, gain: float, window: int
) -> None:
    gains = by_cf(dict.fromkeys((10, 20, 40, 160, 1000), gain))
    script = Script(gains, lambda cf, step: dense_s * (1 if cf <= 2 else slower), waited=0.0)
    played = scripts.play(GraVAC(window=window), script, 1000, BESIDE)
    assert sum(cf > 2 for cf in played.cfs) <= 6 * (SETTLED + 2) + 1000 // (10 * window) * (SETTLED + 2)
    assert played.cfs[-1] <= 2 or played.end.phase != EXPLOIT


# checkpoints


def test_other_candidates_at_a_restore_start_over() -> None:
    played = play(ABSOLUTE, Script(GOOD, FASTER), 200)
    fewer = (DENSE_CANDIDATE, *PAPER[2:])
    state, decision = ABSOLUTE.restore(ABSOLUTE.dump(played.end), forecasts(fewer))
    assert isinstance(state, GravacState)
    assert (state.phase, decision.candidate) == (WARM_UP, topk(20.0))
    assert "the checkpoint has other candidates" in decision.reason


def test_more_ranks_than_any_candidate_allows_and_back_is_not_dense_for_good() -> None:
    alone = play(ABSOLUTE, Script(GOOD, FASTER), 50, (DENSE_CANDIDATE,))
    decision = ABSOLUTE.restore(ABSOLUTE.dump(alone.end), forecasts(PAPER))[1]
    assert decision.candidate == topk(10.0)


def test_a_checkpoint_of_the_other_algorithm_is_a_start() -> None:
    given = forecasts(PAPER)
    repaired, literal = GraVAC(), GraVAC(paper_literal=True)
    for made, loads in ((repaired, literal), (literal, repaired)):
        state, _ = made.start(given)
        restored, decision = loads.restore(made.dump(state), given)
        assert restored == loads.start(given)[0]
        assert decision.reason.startswith("the checkpoint has another value of paper_literal")
