# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""DGC's schedule: stages by the clock, whatever is measured."""

import json

import pytest

from gravac.candidate import DENSE, Candidate, Span
from gravac.controllers import Warmup
from gravac.settings import SettingsError
from tests.controllers import laws as conformance
from tests.controllers.script import DENSE_CANDIDATE, Script, forecasts, play, topk

pytestmark = pytest.mark.timeout(60)

DGC = (DENSE_CANDIDATE, *(topk(cf) for cf in (4.0, 16.0, 64.0, 256.0, 1000.0)))
FLAT = Script(lambda cf, step: 0.25, lambda cf, step: 0.1)


@pytest.mark.parametrize(
    "controller",
    [Warmup(first=1.5), Warmup(every=1, window=1), Warmup(cf=10, every=7), Warmup(cf=1)],
    ids=str,
)
def test_obeys(controller: Warmup) -> None:
    conformance.check_controller(controller)


def test_the_stages_are_those_of_the_paper() -> None:
    sparsity = [1 - 1 / cf for cf in Warmup().stages]
    assert sparsity == pytest.approx([0.75, 0.9375, 0.984375, 0.99609375, 0.999])


def test_a_stage_takes_its_steps_to_the_step_and_the_last_stays() -> None:
    played = play(Warmup(every=50), FLAT, 400, DGC)
    assert played.runs == [(4, 50), (16, 50), (64, 50), (256, 50), (1000, 200)]


def test_gain_does_not_matter() -> None:
    bad = play(Warmup(every=50), Script(lambda cf, step: 0.0001 * step), 400, DGC)
    assert bad.cfs == play(Warmup(every=50), FLAT, 400, DGC).cfs


def test_every_change_and_every_window_is_told() -> None:
    played = play(Warmup(every=50, window=20), FLAT, 120, DGC)
    told = [(at, step.decision) for at, step in enumerate(played.steps) if step.decision.summary]
    assert [at for at, _ in told] == [19, 39, 48, 69, 89, 98, 119]
    runs = [Warmup(every=50, window=20).start(forecasts(DGC))[1].runs, *(step.decision.runs for step in played.steps)]
    assert [at for at, _ in told if runs[at + 1] != runs[at]] == [48, 98]
    assert told[2][1].reason == "warm-up: stage 2 of 5, topk 16x"
    summary = told[0][1].summary
    assert summary is not None
    assert (summary.phase, summary.gain) == ("warm-up", pytest.approx(0.25))
    assert summary.t_system == pytest.approx(100)


def test_the_end_is_said() -> None:
    played = play(Warmup(every=20), FLAT, 200, DGC)
    assert played.reasons[-1] == "warmed up: stage 5 of 5, topk 1000x"


def test_a_stage_that_was_not_admitted_runs_dense() -> None:
    assert play(Warmup(every=50), FLAT, 300, (DENSE_CANDIDATE, *DGC[2:])).path == [1, 16, 64, 256, 1000]


def test_a_stage_out_of_reach_runs_the_nearest() -> None:
    ladder = (DENSE_CANDIDATE, *(Candidate("hook", "ladder", cf) for cf in (3.9, 15.1, 56.9, 227.6, 910.2)))
    assert play(Warmup(every=50), FLAT, 300, ladder).path == [3.9, 15.1, 56.9, 227.6, 910.2]


def test_sixteen_bit_dense_serves_a_stage_of_2() -> None:
    half = Candidate("hook", DENSE, 2.0)
    assert Warmup(first=2).start(forecasts([half, *DGC[1:]]))[1].candidate == half


def test_it_proposes_its_stages_inside_the_range() -> None:
    assert Warmup().propose((1.0, 1000.0), Span(1.0, 1000.0)) == (4, 16, 64, 256, 1000)
    assert Warmup().propose((10.0, 100.0), Span(10.0, 100.0)) == (16, 64, 100)
    assert Warmup(cf=8).propose((10.0, 100.0), Span(10.0, 100.0)) == ()
    assert Warmup(cf=50).propose((1.0, 1000.0), (3.9, 15.1, 56.9)) == (3.9, 15.1, 56.9)


def test_a_checkpoint_goes_on_in_its_stage_with_other_candidates() -> None:
    controller = Warmup(every=50)
    state = play(controller, FLAT, 120, DGC).end
    plain = json.loads(json.dumps(controller.dump(state)))
    assert controller.restore(plain, forecasts(DGC))[1].candidate.cf == 64
    assert controller.restore(plain, forecasts(DGC[:2]))[1].candidate.cf == 4
    assert controller.restore(plain, forecasts(DGC[:1]))[1].candidate == DENSE_CANDIDATE


def test_a_factor_that_does_not_rise_is_refused() -> None:
    with pytest.raises(SettingsError, match="factor"):
        Warmup(factor=1)
