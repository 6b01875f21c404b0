# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How beliefs are made of a record: leave one program out, noise taken off, and the file as it comes out."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.beliefs import Beliefs, shipped_beliefs
from gravac.controllers.progress import OUTER_OVERSTATEMENT
from tests.measure.beliefs import (
    BEFORE,
    CONTROL,
    Worth,
    before,
    deviation_of,
    doubt_of,
    fitted,
    kind_of,
    mean_of,
    worths,
    written,
)
from tests.measure.progress import BELIEFS, NATIVE, Case, Way
from tests.measure.published import rows
from tests.measure.tables_of_progress import overstated

SHARES = st.lists(st.floats(0.1, 1.0), min_size=2, max_size=6)


def found(shares: list[float], each: int = 1) -> list[Worth]:
    return [Worth(f"program {at}", "cosine", 0.1, share) for at, share in enumerate(shares) for _ in range(each)]


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


def rows_of(share: float) -> list[dict[str, Any]]:
    """Rows of two programs: native gets down by a hundredth each step, every way by so much of that, 16 bit by all."""
    made = []
    for program in ("glyphs", "tokens"):
        for way in (NATIVE, *BELIEFS):
            worth = 1.0 if way in (NATIVE, CONTROL) else share
            case = Case(program, "cosine", 0.1, way, 0, 100)
            curve = [(step, 4 - worth * min(step, 90) / 100 - max(0, step - 90) / 100) for step in (*range(5, 101, 5),)]
            kept = curve if way == NATIVE else [one for one in curve if one[0] in (90, 100)]
            gain = {} if way.every else {"gain": share**2}
            made.append({**case._asdict(), "way": way._asdict(), "curve": kept, "higher_is_better": False, **gain})
    return made


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_programs_that_agree_are_believed_without_doubt(share: float) -> None:
    beliefs = fitted(rows_of(share), before())
    assert dict(beliefs.of_compressor("quantize").by_cf)[16.0] == pytest.approx(share, abs=0.01)
    assert dict(beliefs.of_compressor("quantize").by_gain)[0.64] == pytest.approx(0.8, abs=0.01), "the root of the gain"
    assert beliefs.of_outer(10, 0, 2).efficiency == pytest.approx(share, abs=0.01)
    assert beliefs.of_outer(10, 0, 2).deviation < 0.03
    assert beliefs.of_outer(10, 5, 2).efficiency == pytest.approx(share, abs=0.01), "a delay cost nothing"
    for kind in ("quantized", "sparse", "low rank", "outer"):
        assert beliefs.doubts[kind].deviation(share) < 0.03  # type: ignore[index]


def test_what_is_written_is_read_again() -> None:
    for beliefs in (before(), shipped_beliefs(), fitted(rows_of(0.7), before())):
        assert Beliefs(**json.loads(written(beliefs))) == beliefs
    assert BEFORE.is_file()


def test_every_way_has_a_kind_that_is_doubted() -> None:
    for way in BELIEFS:
        assert kind_of(way) in shipped_beliefs().doubts
    assert kind_of(Way("quantize(2)", 16.0, every=10, delay=5)) == "delay"


def test_a_delay_is_judged_beside_the_same_without_one() -> None:
    made = rows_of(0.8)
    assert [one.efficiency for one in worths(made, Way(every=10, delay=5))] == pytest.approx([1.0, 1.0])
    without = [row for row in made if row["way"] != Way(every=10)._asdict()]
    assert worths(without, Way(every=10, delay=5)) == []


def test_trials_of_outer_steps_are_corrected_by_what_the_record_gives() -> None:
    read, error, _ = overstated(Way(every=10))
    assert abs(read - OUTER_OVERSTATEMENT) < 0.05
    assert math.log(read) > 2 * error, "trials of outer steps read too much"
    read, error, _ = overstated(NATIVE)
    assert abs(math.log(read)) < 2 * error, "trials of dense steps do not"


def test_what_gravac_believes_is_what_the_record_gives() -> None:
    by_record, shipped = fitted(rows("progress"), before()), shipped_beliefs()
    assert by_record.compressors.keys() == shipped.compressors.keys() and by_record.source == shipped.source
    for name, tables in shipped.compressors.items():
        other = by_record.of_compressor(name)
        for mine, theirs in ((tables.by_cf, other.by_cf), (tables.by_rank, other.by_rank)):
            assert dict(mine) == pytest.approx(dict(theirs), abs=0.02)
    for every in (2, 5, 10, 20, 50):
        assert shipped.of_outer(every, 0, 2) == pytest.approx(by_record.of_outer(every, 0, 2), abs=0.02)
