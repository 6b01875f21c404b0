# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes spent over tensors: never more than the budget, never worse than the same CF for all."""

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac import AdaptiveCompressor, Policy, SettingsError, Static, quantize, topk
from gravac.averaging.allocation import Curve, Point, allocate, hull, spend
from gravac.averaging.stats import StepStats
from gravac.stepping.tensor_errors import TensorErrors

pytestmark = pytest.mark.timeout(60)

CFS = (2.0, 4.0, 8.0, 64.0)


@st.composite
def curve(draw: st.DrawFn) -> Curve:
    """Any at all: error need not fall with bytes, nor bytes with CF."""
    error = st.floats(0, 1e6, allow_nan=False)
    sent = st.integers(0, 1000)
    points = (Point(cf, draw(error), draw(sent)) for cf in CFS)
    return Curve(1e6, (Point(None, 0.0, draw(sent)), *points))


@st.composite
def convex(draw: st.DrawFn) -> Curve:
    """As compressors have them: more bytes, less error, ever slower."""
    energy = draw(st.floats(0.1, 1e3))
    elements = draw(st.integers(100, 10_000))
    bend = draw(st.floats(0.1, 3.0))
    points = (Point(cf, energy * (1 - cf**-bend), int(8 * elements / cf)) for cf in CFS)
    return Curve(energy, (Point(None, 0.0, 8 * elements), *points))


CURVES = st.dictionaries(st.sampled_from("abcdef"), curve() | convex(), min_size=1)


def total(chosen: dict[str, Point]) -> tuple[float, int]:
    return math.fsum(point.error for point in chosen.values()), sum(point.wire_bytes for point in chosen.values())


@given(curves=CURVES, cf=st.sampled_from(CFS))
def test_no_more_is_sent_than_by_one_cf_and_no_more_is_lost(curves: dict[str, Curve], cf: float) -> None:
    chosen = {name: next(p for p in curves[name].points if p.cf == at) for name, at in allocate(curves, cf).items()}
    uniform = {name: one for name, it in curves.items() if (one := it.at(cf)) is not None}
    assert chosen.keys() == curves.keys()
    (error, sent), (its_error, its_sent) = total(chosen), total(uniform)
    assert sent <= its_sent
    assert error <= its_error


@given(curves=CURVES, more=st.integers(0, 3000))
def test_the_budget_is_kept_and_more_of_it_is_never_worse_than_the_least(curves: dict[str, Curve], more: int) -> None:
    least = sum(min(point.wire_bytes for point in it.points) for it in curves.values())
    error, sent = total(spend(curves, least + more))
    assert least <= sent <= least + more
    assert error <= total(spend(curves, least))[0]
    with pytest.raises(ValueError, match=rf"budget: {least - 1} bytes, and the fewest .* are {least}"):
        spend(curves, least - 1)


@given(curves=st.dictionaries(st.sampled_from("abc"), convex(), min_size=1), share=st.floats(0, 1))
def test_what_is_left_over_is_less_than_a_step(curves: dict[str, Curve], share: float) -> None:
    """The best of all choices saves no more than the one step that did not fit would have."""
    low, high = (sum(pick(p.wire_bytes for p in it.points) for it in curves.values()) for pick in (min, max))
    budget = int(low + share * (high - low))
    points = [hull(it.points) for it in curves.values()]
    best = min(
        math.fsum(p.error for p in every)
        for every in itertools.product(*points)
        if sum(p.wire_bytes for p in every) <= budget
    )
    steps = [before.error - after.error for one in points for before, after in itertools.pairwise(one)]
    assert total(spend(curves, budget))[0] <= best + max(steps, default=0.0) + 1e-9


@given(curves=CURVES, cf=st.sampled_from(CFS), order=st.randoms())
def test_the_order_in_which_tensors_come_does_not_matter(curves: dict[str, Curve], cf: float, order: object) -> None:
    names = list(curves)
    order.shuffle(names)  # type: ignore[attr-defined]
    assert allocate({name: curves[name] for name in names}, cf) == allocate(curves, cf)


@given(curve())
def test_a_hull_is_convex_and_below_every_point(it: Curve) -> None:
    corners = hull(it.points)
    slopes = [(b.error - a.error) / (b.wire_bytes - a.wire_bytes) for a, b in itertools.pairwise(corners)]
    assert all(slope <= 0 for slope in slopes)
    assert slopes == sorted(slopes)
    assert corners[0].wire_bytes == min(point.wire_bytes for point in it.points)
    assert corners[-1].error == min(point.error for point in it.points)


def test_bytes_go_where_they_save_most() -> None:
    def tensor(energy: float) -> Curve:
        points = [Point(cf, energy * (1 - 1 / cf), int(1000 / cf)) for cf in (5.0, 10.0, 20.0)]
        return Curve(energy, (Point(None, 0.0, 1000), *points))

    curves = {"flat": tensor(1.0), "flatter": tensor(0.5), "steep": tensor(9.0)}
    assert allocate(curves, 10.0) == {"flat": 20.0, "flatter": 20.0, "steep": 5.0}
    small = Curve(9.0, (Point(None, 0.0, 60), *(Point(cf, 8.0, int(60 / cf)) for cf in (5.0, 10.0, 20.0))))
    assert allocate({**curves, "small": small}, 10.0)["small"] is None


def test_a_cf_that_a_tensor_was_not_surveyed_at_stays() -> None:
    assert allocate({"a": Curve(1.0, (Point(None, 0.0, 10), Point(4.0, 0.5, 5)))}, 7.0) == {}


def test_gain_is_what_is_not_lost() -> None:
    it = Curve(4.0, (Point(None, 0.0, 10), Point(4.0, 1.0, 5)))
    assert (it.gain(4.0), it.gain(8.0), Curve(0.0, it.points[1:]).gain(4.0)) == (0.75, None, 1.0)


def test_a_tensor_whose_gradient_was_not_finite_has_no_curve() -> None:
    forms = dict.fromkeys("ab", ((100, 10), torch.float32))
    stats = StepStats(curves={"b": [4.0, 1.0], "a": [math.nan, math.nan]}, forms=forms)
    survey = TensorErrors.of(stats, (8.0,), 2.0, lambda form, cf: 100 if cf else 800)
    assert survey is not None
    assert survey.numbers[2:] == (1.0, 0.25)
    curves = survey.curves([3 * float(number) for number in survey.numbers])
    assert curves == {"b": Curve(3.0, (Point(None, 0.0, 800), Point(8.0, 0.75, 100)))}


def test_levels_are_doubled_in_a_span_and_all_of_a_list() -> None:
    assert Policy(base=topk, cf_range=(5, 100)).levels == ()
    assert Policy(base=topk, cf_range=(5, 100), allocation="by_gain").levels == (5, 10, 20, 40, 80, 100)
    assert Policy(base=quantize, cf_range=(1, 32), allocation="by_gain").levels == quantize.candidates((1, 32))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"allocation": "by_size"}, "allocation: .*'uniform' or 'by_gain'"),
        ({"allocation": "by_gain", "survey_every": 0}, "survey_every: .*greater than or equal to 1"),
        (
            {"allocation": "by_gain", "cf_range": (10, 10), "controller": Static(cf=10)},
            r"allocation: by_gain needs two CFs to choose from, and topk has 1 in \(10, 10\)",
        ),
        ({"allocation": "by_gain", "base": "dense", "cf_range": (1, 2)}, "and dense has 1 in"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        AdaptiveCompressor(**{"base": topk, **wrong})  # type: ignore[arg-type]
