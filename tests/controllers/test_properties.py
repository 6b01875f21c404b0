# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What holds for any gains and times, and the recorded trace of one run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.candidate import DENSE, Candidate, Span
from gravac.controllers import GraVAC, Static
from gravac.controllers.gravac_state import EXPLORE
from tests.controllers.laws import drive, turbulent
from tests.controllers.script import DENSE_CANDIDATE, Played, Script, forecasts, play, topk

pytestmark = pytest.mark.timeout(60)

WINDOW = 5
LATENCY = 2

RANGES = st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)).map(lambda pair: (min(pair), max(pair)))
LEVELS = st.lists(st.floats(-0.2, 1), min_size=8, max_size=24)
TIMES = st.lists(st.floats(1e-3, 10), min_size=8, max_size=24)
CONTROLLERS = st.builds(
    GraVAC,
    window=st.just(WINDOW),
    warmup=st.integers(0, 6),
    epsilon=st.floats(0.05, 1),
    epsilon_mode=st.sampled_from(["absolute", "calibrated"]),
    omega=st.sampled_from([0.0, 0.01, 0.2]),
    step=st.sampled_from(["exponential", "geometric"]),
    shadow_every=st.integers(2, 7),
    band=st.floats(0.05, 0.5),
    dwell=st.integers(1, 3),
    expire=st.integers(1, 20),
    paper_literal=st.booleans(),
)


def any_script(levels: list[float], times: list[float], optimism: float) -> Script:
    """Gains and times that jump about with CF and with every window or so."""
    return Script(
        lambda cf, step: levels[(step // 7 + int(cf) * 3) % len(levels)],
        lambda cf, step: times[(step + int(cf)) % len(times)],
        optimism=optimism,
    )


SCRIPTS = st.builds(any_script, LEVELS, TIMES, st.sampled_from([1.0, 3.0]))


@given(CONTROLLERS, SCRIPTS, RANGES, st.sampled_from([1.0, 2.0]))
def test_the_cf_is_1_or_2_or_in_the_range(
    controller: GraVAC, script: Script, cf_range: tuple[float, float], dense_cf: float
) -> None:
    dense = Candidate("hook", DENSE, dense_cf)
    for chosen in (controller, Static(cf=cf_range[0])):
        cfs = chosen.propose(cf_range, Span(*cf_range))
        played = play(chosen, script, 120, (dense, *(topk(cf) for cf in cfs)))
        for step in played.steps:
            cf = step.decision.candidate.cf
            assert cf in (1, 2) or cf_range[0] <= cf <= cf_range[1]


def longest_search(played: Played) -> int:
    """Most steps on end after which the state was exploring."""
    longest = current = 0
    for step in played.steps:
        current = current + 1 if step.state.phase == EXPLORE else 0
        longest = max(longest, current)
    return longest


@given(CONTROLLERS, SCRIPTS, RANGES)
def test_every_search_ends(controller: GraVAC, script: Script, cf_range: tuple[float, float]) -> None:
    searching = controller(paper_literal=False)
    cfs = searching.propose(cf_range, Span(*cf_range))
    candidates = (DENSE_CANDIDATE, *(topk(cf) for cf in cfs))
    played = play(searching, script, 400, candidates)
    # a window for each candidate that runs, and the step that passes before each decision holds
    assert longest_search(played) <= (len(cfs) + 1) * WINDOW + LATENCY * len(candidates)


@given(CONTROLLERS, SCRIPTS)
def test_equal_measurements_give_equal_decisions(controller: GraVAC, script: Script) -> None:
    first, second = (play(each, script, 150) for each in (controller, controller()))
    assert [step.decision for step in first.steps] == [step.decision for step in second.steps]
    assert [step.state for step in first.steps] == [step.state for step in second.steps]


GOLDEN: tuple[tuple[float, int], ...] = (
    (10, 7),
    (1, 2),
    (10, 30),
    (20, 21),
    (40, 21),
    (160, 21),
    (40, 21),
    (10, 21),
    (1, 147),
    (10, 30),
    (20, 21),
    (40, 21),
    (160, 21),
    (1000, 7),
    (160, 61),
    (10, 21),
    (20, 21),
    (40, 21),
    (20, 21),
    (10, 21),
    (1, 83),
    (10, 30),
    (20, 21),
    (40, 21),
    (160, 21),
    (1000, 21),
    (160, 61),
    (10, 21),
    (20, 21),
    (40, 21),
    (20, 21),
    (10, 21),
    (1, 165),
    (10, 30),
    (20, 21),
    (40, 21),
    (160, 61),
    (10, 41),
    (1, 187),
    (10, 30),
    (20, 21),
    (40, 21),
    (160, 21),
    (1000, 7),
    (160, 61),
    (10, 21),
    (1, 187),
    (10, 30),
    (20, 21),
    (40, 21),
    (160, 101),
    (10, 12),
)
"""``(CF, steps)`` that ran under ``turbulent``. After a change that is meant to move it: print ``runs`` and say why."""


def test_the_recorded_trace_is_reproduced() -> None:
    cfs = GraVAC().propose((10.0, 1000.0), Span(10.0, 1000.0))
    candidates = (DENSE_CANDIDATE, *(topk(cf) for cf in cfs))
    runs = Played(list(drive(GraVAC(dwell=2), forecasts(candidates), turbulent, 2000))).runs
    assert runs == list(GOLDEN)
