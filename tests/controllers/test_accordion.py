# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Accordion: critical regimes by the change of an epoch's gradient sum, and by the learning rate."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gravac.candidate import Candidate, Span
from gravac.controllers import Accordion, Decision, Measurement
from gravac.settings import SettingsError
from tests.controllers import laws as conformance
from tests.controllers.laws import Step, drive
from tests.controllers.script import DENSE_CANDIDATE, forecasts, topk

pytestmark = pytest.mark.timeout(60)

LOW, HIGH = topk(2.0), topk(10.0)
GIVEN = (DENSE_CANDIDATE, LOW, HIGH)
NAMES = ("a", "b", "c")
EPOCH = 5


def play(
    controller: Accordion,
    norms: Sequence[Sequence[float]],
    rates: Sequence[float] = (),
    given: Sequence[Candidate] = GIVEN,
) -> list[Step]:
    """Norms by epoch and tensor, learning rates by epoch."""

    def measure(step: int, holds: Decision) -> Measurement:
        epoch = step // EPOCH
        reported = tuple(zip(NAMES, norms[epoch], strict=True)) if holds.sums == "report" else ()
        rate = rates[epoch] if rates else math.nan
        return Measurement(step, holds.candidate, 0.1, 10.0, 1.0, 4.0, learning_rate=rate, norms=reported)

    return list(drive(controller, forecasts(given), measure, EPOCH * len(norms)))


def high(step: Step) -> set[str]:
    """Which tensors ran the high CF."""
    ran = step.applied
    if not ran.tensors:
        return set(NAMES) if ran.candidate == HIGH else set()
    assert ran.candidate == LOW
    assert {candidate for _, candidate in ran.tensors} == {HIGH}
    return {name for name, _ in ran.tensors}


def by_epoch(steps: Sequence[Step]) -> list[set[str]]:
    """The same for every epoch, from when what its first step showed has taken effect."""
    epochs = [[high(step) for step in steps[at + 2 : at + EPOCH]] for at in range(0, len(steps), EPOCH)]
    assert all(one == epoch[0] for epoch in epochs for one in epoch)
    return [epoch[0] for epoch in epochs]


def published(norms: Sequence[Sequence[float]], rates: Sequence[float], eta: float, every: int) -> list[set[str]]:
    """Which tensors run the high CF in each epoch, written down from the published training loop."""
    levels, now = [], set[str]()
    for epoch in range(len(norms)):
        levels.append(now)
        if epoch % every == 0:
            now = set()
            if epoch:
                for name, new, prev in zip(NAMES, norms[epoch], norms[epoch - every], strict=True):
                    ratio = abs(prev - new) / prev if prev != 0.0 else 9
                    if ratio < eta:
                        now = {*now, name}
        if epoch + 1 < len(norms) and rates[epoch + 1] < rates[epoch]:
            now = set()
    return levels


@pytest.mark.parametrize("controller", [Accordion(epoch=7, every=3), Accordion(epoch=40, every=1, eta=2)], ids=str)
def test_obeys(controller: Accordion) -> None:
    conformance.check_controller(controller)


@given(
    norms=st.lists(st.tuples(*[st.sampled_from([0.0, 1e-3, 0.4, 0.75, 1.0, 1.2, 1.5, 4.0])] * 3), min_size=1),
    falls=st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0]), min_size=30, max_size=30),
    eta=st.sampled_from([0.2, 0.5, 1.5]),
    every=st.integers(1, 4),
)
def test_decides_as_the_published_loop(
    norms: list[tuple[float, ...]], falls: list[float], eta: float, every: int
) -> None:
    norms = norms[:30]
    rates = [math.prod(falls[: epoch + 1]) for epoch in range(len(norms))]
    played = play(Accordion(epoch=EPOCH, every=every, eta=eta), norms, rates)
    assert by_epoch(played) == published(norms, rates, eta, every)


def test_everything_begins_critical_and_a_first_look_has_nothing_to_compare_with() -> None:
    played = play(Accordion(epoch=EPOCH, every=2), [(1, 1, 1)] * 4)
    assert by_epoch(played) == [set(), set(), set(), set(NAMES)]


def test_what_changed_by_half_stays_critical_and_the_rest_is_compressed() -> None:
    played = play(Accordion(epoch=EPOCH, every=1), [(1, 1, 1), (1.4, 1.5, 0.4), (1.4, 1.5, 0.4)])
    assert by_epoch(played)[2] == {"a"}
    decisions = [step.decision for step in played]
    told = [now for before, now in itertools.pairwise(decisions) if now.runs != before.runs]
    assert told[0].reason == f"accordion: 2 of 3 tensors are in a critical regime and run {LOW}; the others run {HIGH}"
    assert told[0].summary is not None
    assert told[0].summary.phase == "critical"


def test_calm_tensors_become_critical_again() -> None:
    played = play(Accordion(epoch=EPOCH, every=1), [(1, 1, 1), (1, 1, 1), (9, 1, 1), (9, 1, 1)])
    assert by_epoch(played) == [set(), set(), set(NAMES), {"b", "c"}]


def test_a_lower_learning_rate_makes_all_critical_until_the_next_look() -> None:
    played = play(Accordion(epoch=EPOCH, every=2), [(1, 1, 1)] * 7, [1, 1, 1, 1, 0.1, 0.1, 0.1])
    assert by_epoch(played) == [set(), set(), set(), set(NAMES), set(), set(NAMES), set(NAMES)]
    assert f"accordion: the learning rate fell from 1 to 0.1: 3 of 3 tensors are in a critical regime: run {LOW}" in [
        s.decision.reason for s in played
    ]


def test_a_learning_rate_that_rises_or_is_not_known_changes_nothing() -> None:
    for rates in ([1, 1, 2, 3, 4], [math.nan] * 5, [1, 1, 1, 1 - 1e-15, 1]):
        assert by_epoch(play(Accordion(epoch=EPOCH, every=1), [(1, 1, 1)] * 5, rates))[2:] == [set(NAMES)] * 3


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_a_norm_of_nothing_is_critical_and_so_is_the_next(bad: float) -> None:
    played = play(Accordion(epoch=EPOCH, every=1), [(1, 1, 1), (bad, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)])
    assert by_epoch(played)[2:] == [{"b", "c"}, {"b", "c"}, set(NAMES)]


def test_gradients_are_added_up_in_the_epochs_that_are_looked_at() -> None:
    asked = [step.applied.sums for step in play(Accordion(epoch=EPOCH, every=3), [(1, 1, 1)] * 7)]
    looked = ["add"] * 4 + ["report"]
    assert asked == [*looked, *["none"] * 10, *looked, *["none"] * 10, *looked]


def test_a_report_of_another_step_is_not_looked_at() -> None:
    controller = Accordion(epoch=EPOCH, every=1)
    played = play(controller, [(1, 1, 1)] * 2)
    late = replace(played[-1].measured, step=10, norms=tuple((name, 100.0) for name in NAMES))
    assert controller.observe(played[-1].state, late)[0].calm == NAMES


def test_dense_is_the_low_cf_where_that_was_not_admitted() -> None:
    played = play(Accordion(epoch=EPOCH, every=1), [(1, 1, 1), (1, 9, 1), (1, 9, 1)], given=(DENSE_CANDIDATE, HIGH))
    assert played[-1].applied.candidate == DENSE_CANDIDATE
    assert played[-1].applied.tensors == (("a", HIGH), ("c", HIGH))


def test_it_proposes_the_ends_of_the_range() -> None:
    assert Accordion().propose((2.0, 10.0), Span(1.0, 100.0)) == (2, 10)
    assert Accordion().propose((10.0, 10.0), Span(1.0, 100.0)) == (10,)
    assert Accordion().propose((2.0, 30.0), (4.0, 8.0, 16.0, 32.0)) == (4, 32)


def test_a_checkpoint_keeps_who_is_calm_with_other_candidates_too() -> None:
    controller = Accordion(epoch=EPOCH, every=1)
    state = play(controller, [(1, 1, 1), (1, 9, 1), (1, 9, 1)])[-3].state
    plain = json.loads(json.dumps(controller.dump(state)))
    assert controller.restore(plain, forecasts(GIVEN))[1].tensors == (("a", HIGH), ("c", HIGH))
    assert controller.restore(plain, forecasts(GIVEN[:1]))[1].runs == (DENSE_CANDIDATE, ())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epoch": 2}, "epoch: .*greater than or equal to 3"),
        ({"eta": 0}, "eta: .*greater than 0"),
        ({"every": 0}, "every: .*greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Accordion(**wrong)
