# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The CFs worth trying."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.candidate import Span
from gravac.controllers.schedule import exponential, geometric, snap

pytestmark = pytest.mark.timeout(60)

RANGES = st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)).map(lambda pair: (min(pair), max(pair)))


def test_exponential_is_the_papers() -> None:
    assert exponential((10.0, 1000.0)) == (10, 20, 40, 160, 1000)


def test_geometric_is_the_papers() -> None:
    assert geometric((10.0, 2000.0)) == (10, 20, 40, 80, 160, 320, 640, 1280, 2000)


def test_a_range_of_one_cf_has_one_candidate() -> None:
    assert exponential((10.0, 10.0)) == geometric((10.0, 10.0)) == (10,)


def test_a_highest_cf_that_is_hit_exactly_is_not_repeated() -> None:
    assert exponential((10.0, 40.0)) == (10, 20, 40)
    assert geometric((10.0, 80.0)) == (10, 20, 40, 80)


@given(RANGES)
def test_spacings_ascend_from_the_lowest_to_the_highest(cf_range: tuple[float, float]) -> None:
    for cfs in (exponential(cf_range), geometric(cf_range)):
        assert (cfs[0], cfs[-1]) == cf_range
        assert list(cfs) == sorted(set(cfs))


def test_a_span_keeps_what_it_holds() -> None:
    assert snap((10, 20, 40, 160, 1000), Span(15, 200)) == (20, 40, 160)


def test_a_list_gives_the_nearest_by_ratio_without_repetition() -> None:
    # 20 is nearer to 28 by ratio (1.4) than to 12 (1.67), though 12 is as near by difference
    assert snap((20.0,), (12.0, 28.0)) == (28,)
    assert snap((10.0, 20.0, 1000.0), (16.0, 64.0)) == (16, 64)


def test_an_empty_list_gives_nothing() -> None:
    assert snap((10.0, 20.0), ()) == ()
