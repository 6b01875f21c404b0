# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange groups: learnt from the rebuilt layout, then fixed, whatever buckets come."""

import hypothesis.strategies as st
from hypothesis import given

from gravac.sources.exchange_layout import ExchangeLayout, Names

FIRST: list[Names] = [("a", "b", "c", "d")]
REBUILT: list[Names] = [("d", "c"), ("b", "a")]


def step(groups: ExchangeLayout, buckets: list[Names]) -> tuple[list[Names], list[Names]]:
    ready = [group for bucket in buckets for group in groups.add_bucket(bucket)]
    return ready, groups.end()


def test_groups_are_fixed_from_the_first_rebuilt_layout() -> None:
    groups = ExchangeLayout()
    assert step(groups, FIRST) == (FIRST, [])
    assert groups.fixed_groups == ()
    assert step(groups, REBUILT) == (REBUILT, [])
    assert groups.fixed_groups == tuple(REBUILT)


def test_a_layout_that_stays_is_taken_after_three_steps() -> None:
    groups = ExchangeLayout()
    for _ in range(2):
        step(groups, REBUILT)
        assert groups.fixed_groups == ()
    step(groups, REBUILT)
    assert groups.fixed_groups == tuple(REBUILT)


def test_static_graph_rebuilds_one_step_later() -> None:
    groups = ExchangeLayout()
    for buckets in (FIRST, FIRST, REBUILT):
        step(groups, buckets)
    assert groups.fixed_groups == tuple(REBUILT)


def test_a_resumed_run_cuts_its_one_bucket_into_the_stored_groups() -> None:
    assert step(ExchangeLayout(REBUILT), FIRST) == (REBUILT, [])


def test_a_group_over_two_buckets_waits_for_both() -> None:
    groups = ExchangeLayout([("a", "b", "c")])
    assert groups.add_bucket(("a", "b")) == []
    assert groups.add_bucket(("c",)) == [("a", "b", "c")]
    assert groups.end() == []


def test_members_whose_group_never_completes_are_left_for_the_end() -> None:
    assert step(ExchangeLayout([("a", "b"), ("c", "d")]), [("a", "b", "c")]) == ([("a", "b")], [("c",)])


def test_names_that_no_group_knows_travel_by_themselves() -> None:
    assert step(ExchangeLayout([("a",)]), [("a", "new")]) == ([("a",), ("new",)], [])


@given(st.permutations(list("abcdefgh")), st.permutations(list("abcdefgh")), st.data())
def test_every_parameter_travels_exactly_once(one: list[str], other: list[str], data: st.DataObject) -> None:
    def cut(names: list[str]) -> list[Names]:
        at = sorted(data.draw(st.sets(st.integers(1, 7), max_size=4)))
        return [tuple(names[i:j]) for i, j in zip([0, *at], [*at, 8], strict=True)]

    ready, left = step(ExchangeLayout(cut(one)), cut(other))
    assert sorted(name for group in ready + left for name in group) == sorted(one)
