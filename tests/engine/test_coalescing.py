# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Small groups wait for each other, large ones go in parts, in compressed steps only; nobody waits in vain."""

import itertools
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac import AdaptiveCompressor, ladder, powersgd
from gravac.averaging.plan import Piece
from gravac.compressors.profile import CODING_BYTES_PER_ELEMENT
from gravac.engine import coalescing
from gravac.engine.coalescing import (
    ALWAYS_ENOUGH,
    ALWAYS_ENOUGH_ON_CPU,
    FEWEST_JOBS,
    MAX_CODING_BYTES,
    MAX_SEGMENT_ELEMENTS_ON_CPU,
    MIN_JOB_SECONDS,
    MOST_JOBS,
    ReadyGroup,
    Waiting,
    cut,
    describe,
    elements,
    elements_per_job,
)


def group(*sizes: int) -> ReadyGroup:
    pieces = tuple(Piece(str(size), torch.zeros(size), (size,)) for size in sizes)
    return ReadyGroup(pieces, None)


def test_a_small_model_goes_in_parts_and_a_large_one_does_not_wait() -> None:
    assert elements_per_job(1050) == 1050 // FEWEST_JOBS
    assert elements_per_job(1 << 26) == ALWAYS_ENOUGH
    assert elements_per_job(1 << 26, always_enough=ALWAYS_ENOUGH_ON_CPU) == ALWAYS_ENOUGH_ON_CPU


def test_on_a_slow_link_parts_are_smaller_down_to_a_bound() -> None:
    sizes = [
        elements_per_job(10_000, seconds)
        for seconds in (0.0, MIN_JOB_SECONDS, 5 * MIN_JOB_SECONDS, 100 * MIN_JOB_SECONDS)
    ]
    assert sizes == [-(-10_000 // parts) for parts in (FEWEST_JOBS, FEWEST_JOBS, 5, MOST_JOBS)]


def test_what_is_exchanged_is_told_by_its_first_and_last_tensor() -> None:
    assert describe(group(3000).pieces) == "tensor 3000 (3,000 elements)"
    assert describe(group(3, 4, 5).pieces) == "3 tensors from 3 to 5 (12 elements)"


def test_elements_are_those_of_all_pieces() -> None:
    assert elements([group(3, 4), group(5)]) == 12
    assert elements([]) == 0


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 12))
def test_parts_are_the_group_in_order_each_of_few_elements_or_one_tensor(sizes: list[int], spoiled: int) -> None:
    whole, said = ReadyGroup(group(*sizes).pieces, torch.zeros(sum(sizes))), list[str]()
    whole.averaged.add_done_callback(lambda future: said.append(f"finite {all(future.result())}"))
    executor: Any = SimpleNamespace(join=lambda: said.append("joined"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(coalescing, "MAX_SEGMENT_ELEMENTS", 40)
        parts = cut(whole)
    assert [piece for part in parts for piece in part.pieces] == [*whole.pieces]
    assert all(elements([part]) <= 40 or len(part.pieces) == 1 for part in parts)
    assert all(elements([one, other]) > 40 for one, other in itertools.pairwise(parts))
    if sum(sizes) <= 40:
        assert parts == [whole]
    for position, part in enumerate(parts):
        assert said == []
        assert part.whole is (whole if part is parts[-1] else None)
        part.add_mean(torch.tensor(position != spoiled), executor)
    finite = f"finite {spoiled >= len(parts)}"
    assert said == ([finite] if len(parts) == 1 else ["joined", finite])
    assert len(parts) == 1 or all(part.buffer is None for part in parts)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.sampled_from([50, 120]))
def test_what_goes_together_is_bounded_though_parts_wait_for_each_other(sizes: list[int], most: int) -> None:
    waiting, gone = Waiting(), list[ReadyGroup]()
    waiting.enough_elements, waiting.max_elements = 10, most
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(coalescing, "MAX_SEGMENT_ELEMENTS", 40)
        for part in cut(group(*sizes)):
            together = waiting.take(part, at_once=False)
            assert elements(together) <= most or len(together[-1].pieces) == 1
            if together and together[-1].next_segment_elements:
                assert elements(together) + together[-1].next_segment_elements > most  # the next segment did not fit
            gone += together
    gone += waiting.take(None, at_once=True)
    assert [piece.flat.numel() for one in gone for piece in one.pieces] == sizes
    assert waiting.take(None, at_once=True) == []


def test_more_goes_together_where_coding_takes_less() -> None:
    averager = AdaptiveCompressor(powersgd)._engine.averager
    waiting, low_rank = Waiting(), powersgd.profile(16.0).coding_bytes_per_element
    assert averager.coding_bytes_per_element(averager.plan(0, 16.0)) == low_rank < CODING_BYTES_PER_ELEMENT
    assert averager.coding_bytes_per_element(averager.plan(0, None)) == CODING_BYTES_PER_ELEMENT
    on_a_cpu = MAX_SEGMENT_ELEMENTS_ON_CPU + ALWAYS_ENOUGH_ON_CPU
    for on_cpu, most in ((False, MAX_CODING_BYTES // low_rank), (True, on_a_cpu)):
        waiting.set_limits(low_rank, 1 << 24, on_cpu=on_cpu)
        assert waiting.max_elements == most
    assert (
        ladder.profile(128.0).coding_bytes_per_element == powersgd.profile(128.0).coding_bytes_per_element
    )  # that of what serves it
