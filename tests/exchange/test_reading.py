# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A host that reads at once and a device that selects come to the same numbers; ``None`` is as good as zeros."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac.exchange.reading import Finite, Reads, ReadsAtOnce, ReadsLater, both

KINDS: tuple[Reads, Reads] = (ReadsAtOnce(), ReadsLater())

FLAGS = st.sampled_from([None, True, False])
TENSORS = st.none() | st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3)


def flag_of(finite: bool | None) -> Finite:
    return None if finite is None else torch.tensor(finite)


def tensor_of(numbers: list[float] | None) -> torch.Tensor | None:
    return None if numbers is None else torch.tensor(numbers)


@given(FLAGS, TENSORS, TENSORS)
def test_what_is_stored_is_new_if_finite_and_old_otherwise(
    finite: bool | None, new: list[float] | None, old: list[float] | None
) -> None:
    expected = old if finite is False else new
    for reads in KINDS:
        stored = reads.settle(flag_of(finite), tensor_of(new), tensor_of(old))
        assert ([0.0] * 3 if stored is None else stored.tolist()) == (expected or [0.0] * 3)


@given(FLAGS)
def test_a_choice_is_one_of_two_tensors_and_changes_neither(finite: bool | None) -> None:
    for reads in KINDS:
        new, old = torch.ones(3), torch.zeros(3)
        chosen = reads.choose(flag_of(finite), new, old)
        assert chosen.tolist() == [float(finite is not False)] * 3
        assert (new.tolist(), old.tolist()) == ([1.0] * 3, [0.0] * 3)


@pytest.mark.parametrize("reads", KINDS, ids=lambda reads: type(reads).__name__)
@pytest.mark.parametrize("finite", [None, True, False])
def test_only_what_is_not_finite_is_spoilt_in_every_format(reads: Reads, finite: bool | None) -> None:
    tensors = [torch.full((2,), 1.5, dtype=dtype) for dtype in (torch.float32, torch.float16, torch.float64)]
    reads.spoil(flag_of(finite), [*tensors, torch.empty(0)])
    for tensor in tensors:
        assert bool(tensor.isnan().all()) == (finite is False)
        assert finite is False or tensor.tolist() == [1.5] * 2


def test_only_a_host_that_reads_at_once_knows_a_flag_and_gets_floats() -> None:
    at_once, later = KINDS
    number = torch.tensor(2.5)
    assert [at_once.known(flag_of(finite)) for finite in (None, True, False)] == [True, True, False]
    assert [later.known(flag_of(finite)) for finite in (None, True, False)] == [True, None, None]
    assert at_once.numbers([number, math.inf]) == [2.5, math.inf]
    assert later.numbers([number, math.inf])[0] is number
    for reads in KINDS:
        assert reads.to_host(reads.vector([1.0, number])).read() == [1.0, 2.5]


def test_a_sum_in_place_is_in_place_only_where_it_can_be_taken_back() -> None:
    for reads, in_place in zip(KINDS, (True, False), strict=True):
        kept = torch.ones(3)
        total = reads.sum_in_place(kept, torch.ones(3))
        assert total.tolist() == [2.0] * 3
        assert (total is kept) == in_place
        assert kept.tolist() == ([2.0] * 3 if in_place else [1.0] * 3)


@given(FLAGS, FLAGS)
def test_both_are_finite_if_each_is(first: bool | None, second: bool | None) -> None:
    assert KINDS[0].known(both(flag_of(first), flag_of(second))) == (first is not False and second is not False)
    assert (both(flag_of(first), flag_of(second)) is None) == (first is None and second is None)
