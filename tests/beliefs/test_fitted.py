# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How beliefs are made of a record: leave one program out, noise taken off, and the file as it comes out."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.beliefs import Beliefs, shipped_beliefs
from tests.measure.beliefs import (
    BEFORE,
    CONTROL,
    RECORD,
    SHIPPED,
    Run,
    before,
    deviation_of,
    doubt_of,
    fitted,
    kind_of,
    mean_of,
    read,
    worths,
    written,
)
from tests.measure.efficiency import BELIEFS, Way

SHARES = st.lists(st.floats(0.1, 1.0), min_size=2, max_size=6)


def run_of(program: str, way: Way, efficiency: float, gain: float | None = None) -> Run:
    return Run(program, "cosine", 0.1, 0, way, gain, efficiency)


def found(shares: list[float], each: int = 1) -> list[Run]:
    return [run_of(f"program {at}", CONTROL, share) for at, share in enumerate(shares) for _ in range(each)]


@given(SHARES)
def test_the_mean_is_geometric_and_between_and_counts_each_program_once(shares: list[float]) -> None:
    mean = mean_of(found(shares))
    assert min(shares) <= mean * (1 + 1e-9) and mean <= max(shares) * (1 + 1e-9)
    assert mean_of([*found(shares), *found(shares[:1], 7)]) == pytest.approx(mean)


@given(SHARES, st.integers(1, 3))
def test_programs_that_are_alike_leave_no_doubt_and_others_do(shares: list[float], each: int) -> None:
    assert deviation_of(found([shares[0]] * len(shares), each)) == pytest.approx(0, abs=1e-9)
    if max(shares) > 1.1 * min(shares):
        assert deviation_of(found(shares, each)) > 0.01


def test_a_program_is_compared_with_the_others_and_not_with_itself() -> None:
    assert deviation_of(found([0.5, 1.0])) == pytest.approx(math.log(2))
    assert deviation_of(found([0.5, 1.0, 1.0])) > 0.4


@given(st.floats(0.0, 0.3), st.floats(0.0, 1.0))
def test_a_doubt_that_grows_with_the_loss_is_found_again(least: float, of_loss: float) -> None:
    medians = (0.95, 0.8, 0.5)
    doubt = doubt_of([(one, math.hypot(least, of_loss * math.log(one))) for one in medians])
    for one in medians:
        assert doubt.deviation(one) == pytest.approx(math.hypot(least, of_loss * math.log(one)), abs=0.03)


def test_a_kind_of_one_way_has_its_deviation() -> None:
    assert doubt_of([(0.9, 0.071)]).deviation(0.9) == pytest.approx(0.08)


def runs_of(share: float) -> list[Run]:
    """Runs of two programs: every way makes so much of a native step's progress, 16 bit all of it."""
    return [
        run_of(program, way, 1.0 if way == CONTROL else share, None if way.every else share**2)
        for program in ("glyphs", "tokens")
        for way in BELIEFS
    ]


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_programs_that_agree_are_believed_without_doubt(share: float) -> None:
    beliefs = fitted(runs_of(share), before())
    assert dict(beliefs.of_compressor("quantize").by_cf)[16.0] == pytest.approx(share, abs=0.01)
    assert dict(beliefs.of_compressor("quantize").by_gain)[0.64] == pytest.approx(0.8, abs=0.01), "the root of the gain"
    assert beliefs.of_outer(10, 0, 2).efficiency == pytest.approx(share, abs=0.01)
    assert beliefs.of_outer(10, 0, 2).deviation < 0.03
    assert beliefs.of_outer(10, 5, 2).efficiency == pytest.approx(share, abs=0.01), "a delay cost nothing"
    for kind in ("quantized", "sparse", "low rank", "outer"):
        assert beliefs.doubts[kind].deviation(share) < 0.03  # type: ignore[index]


def test_what_is_written_is_read_again() -> None:
    for beliefs in (before(), shipped_beliefs(), fitted(runs_of(0.7), before())):
        assert Beliefs(**json.loads(written(beliefs))) == beliefs
    assert BEFORE.is_file()


def test_every_way_has_a_kind_that_is_doubted() -> None:
    for way in BELIEFS:
        assert kind_of(way) in shipped_beliefs().doubts
    assert kind_of(Way("quantize(2)", 16.0, every=10, delay=5)) == "delay"


def test_a_delay_is_judged_beside_the_same_without_one() -> None:
    made = runs_of(0.8)
    assert [one.efficiency for one in worths(made, Way(every=10, delay=5))] == pytest.approx([1.0, 1.0])
    without = [run for run in made if run.way != Way(every=10)]
    assert worths(without, Way(every=10, delay=5)) == []


def test_what_gravac_believes_is_what_the_record_gives() -> None:
    assert written(fitted(read(RECORD), before())) == SHIPPED.read_text(encoding="utf-8")
