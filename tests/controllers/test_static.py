# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One candidate for the whole run."""

import pytest

from gravac.candidate import DENSE, Candidate, Span
from gravac.controllers import Static
from tests.controllers.script import DENSE_CANDIDATE, Script, forecasts, play, topk

pytestmark = pytest.mark.timeout(60)

SPAN = Span(10.0, 1000.0)


def test_it_runs_its_cf_and_nothing_else() -> None:
    played = play(Static(cf=40), Script(lambda cf, step: 0.01), 100, (DENSE_CANDIDATE, topk(40.0)))
    assert played.path == [40]


def test_a_window_is_told_every_window_steps() -> None:
    played = play(
        Static(cf=40, window=8), Script(lambda cf, step: 0.25, lambda cf, step: 0.1), 80, (DENSE_CANDIDATE, topk(40.0))
    )
    assert [at for at, step in enumerate(played.steps) if step.decision.summary] == list(range(7, 80, 8))
    for decision in played.told:
        assert decision.summary is not None
        assert decision.summary.gain == pytest.approx(0.25)
        assert decision.summary.t_system == pytest.approx(100)
        assert decision.summary.t_compression == pytest.approx(25)


def test_cf_1_is_dense() -> None:
    assert Static(cf=1).start(forecasts([DENSE_CANDIDATE, topk(1.0)]))[1].candidate == DENSE_CANDIDATE


def test_cf_2_is_dense_when_dense_is_16_bit() -> None:
    half = Candidate("hook", DENSE, 2.0)
    assert Static(cf=2).start(forecasts([half, topk(2.0)]))[1].candidate == half
    assert Static(cf=2).start(forecasts([DENSE_CANDIDATE, topk(2.0)]))[1].candidate == topk(2.0)


def test_it_proposes_its_cf_the_nearest_or_none() -> None:
    assert Static(cf=50).propose((10.0, 1000.0), SPAN) == (50,)
    assert Static(cf=50).propose((10.0, 1000.0), (10.0, 40.0, 160.0)) == (40,)
    assert Static(cf=5).propose((10.0, 1000.0), SPAN) == ()
    assert Static(cf=1).propose((10.0, 1000.0), SPAN) == (1,)


def test_it_insists_on_its_cf() -> None:
    assert Static(cf=10).keeps_all
