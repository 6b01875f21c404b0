# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fusing rounds and stepping ranks in memory."""

from collections.abc import Generator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, Ledger, tensors_of
from gravac.compressors import Context, Reduced, Rounds, dense, topk
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from gravac.exchange.fuse import Outcome, fuse


def mixed(rank: int, world: int) -> list[Rounds]:
    xs = [torch.full((n,), float(rank + 1)) for n in (40, 3, 2000)]
    contexts = [Context(f"p{i}", 0, rank, world, 0, (x.numel(),), x.dtype) for i, x in enumerate(xs)]
    return [
        topk.rounds(xs[0], 10.0, contexts[0]),
        dense.rounds(xs[1], 1.0, contexts[1]),
        topk.rounds(xs[2], 10.0, contexts[2]),
    ]


def test_tensors_of_one_kind_travel_as_one() -> None:
    ledgers = [Ledger(2), Ledger(2)]
    memory.run([fuse(mixed(rank, 2)) for rank in range(2)], ledgers)
    assert ledgers[0].calls == {"AllReduce": 1, "AllGather": 1}
    # 3 floats and the flag; 4 + 200 values, 4 one-byte and 200 two-byte indices, padded to 8
    assert ledgers[0].payload_bytes == 16 + 1224
    assert ledgers[0].wire_bytes == 16 + 1224


@given(
    st.lists(st.tuples(st.sampled_from(["sum", "half", "gather"]), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(0, 2**31),
)
def test_two_ranks_gather_sums_with_what_is_gathered_anyway(kinds: list[tuple[str, int]], seed: int) -> None:
    """As many bytes, and the same bits, in one collective; as on any number of ranks, no copy of a rank's own row."""
    generator = torch.Generator().manual_seed(seed)
    xs = [[torch.randn(n, generator=generator) for _, n in kinds] for _ in range(2)]
    bases = {"sum": (dense, 1.0), "half": (dense(dtype="float16"), 2.0), "gather": (topk, 3.0)}

    def ranks(knows_world: bool, ledgers: list[Ledger]) -> Outcome[Reduced]:
        jobs = []
        for rank in range(2):
            rounds = [
                base.rounds(x, cf, Context(str(index), rank=rank, world=2))
                for index, (x, (base, cf)) in enumerate(zip(xs[rank], [bases[kind] for kind, _ in kinds], strict=True))
            ]
            jobs.append(fuse(rounds, rank=rank, world=2 if knows_world else None))
        first, second = memory.run(jobs, ledgers)
        assert first is not None
        assert second is not None
        return first

    known, unknown = [Ledger(2), Ledger(2)], [Ledger(2), Ledger(2)]
    together, apart = ranks(True, known), ranks(False, unknown)
    for one, other, x in zip(together.reduced, apart.reduced, xs[0], strict=True):
        assert torch.equal(as_dense(one.mean, x), as_dense(other.mean, x))
    gathers = any(kind == "gather" for kind, _ in kinds)
    assert not gathers or known[0].calls == {"AllGather": 1}
    assert known[0].wire_bytes <= unknown[0].wire_bytes + 8  # rows of bytes are padded to 8


def test_the_flag_of_one_rank_stops_all() -> None:
    assert memory.run([fuse(mixed(rank, 3), finite=torch.tensor(rank != 1)) for rank in range(3)]) == [None, None, None]


def test_a_gather_carries_the_flag_when_there_is_no_sum() -> None:
    def rounds(rank: int) -> Rounds:
        return topk.rounds(torch.ones(30), 10.0, Context(rank=rank, world=2))

    assert memory.run([fuse([rounds(r)], finite=torch.tensor(r == 0)) for r in range(2)]) == [None, None]


def test_sixteen_bit_overflow_on_the_wire_counts_as_not_finite() -> None:
    half = dense(dtype="float16")
    ranks = [fuse([half.rounds(torch.full((4,), 3e5), 2.0, Context(world=2))]) for _ in range(2)]
    assert memory.run(ranks) == [None, None]


def test_no_tensors_is_no_collective() -> None:
    assert memory.run([fuse([])]) == [Outcome([], None)]


def test_rounds_of_different_lengths_are_fused_round_by_round() -> None:
    def chatty(turns: int) -> Rounds:
        x = torch.ones(1)
        for _ in range(turns):
            x = yield AllReduce(x)
        return Reduced(x, x, 1.0)

    ledger = Ledger(2)
    (first, _) = memory.run([fuse([chatty(1), chatty(3)]) for _ in range(2)], [ledger, Ledger(2)])
    assert first is not None
    assert [float(r.mean[0]) for r in first.reduced if isinstance(r.mean, torch.Tensor)] == [2.0, 8.0]
    assert ledger.calls == {"AllReduce": 3}


def test_ranks_that_receive_may_hand_over_one_tensor_for_several_broadcasts() -> None:
    def receiving(x: torch.Tensor) -> Rounds:
        mean = yield Broadcast(x, 0)
        return Reduced(mean, mean, 1.0)

    placeholder = torch.zeros(3)
    first, second = torch.ones(3), torch.full((3,), 2.0)
    outcomes = memory.run(
        [fuse([receiving(first), receiving(second)]), fuse([receiving(placeholder), receiving(placeholder)])]
    )
    for outcome in outcomes:
        assert outcome is not None
        assert [list(reduced.mean) for reduced in outcome.reduced] == [[1.0] * 3, [2.0] * 3]  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", [AllReduce, AllGather])
def test_ranks_that_ask_for_different_things_are_caught(kind: type[AllReduce] | type[AllGather]) -> None:
    def rank(size: int) -> Generator[list[Collective], Any, None]:
        request: list[Collective] = [kind(torch.zeros(size))]
        yield request

    with pytest.raises(ValueError, match="different collectives"):
        memory.run([rank(1), rank(2)])


def test_a_rank_that_ends_early_is_caught() -> None:
    def rank(turns: int) -> Generator[list[Collective], Any, None]:
        for _ in range(turns):
            request: list[Collective] = [AllReduce(torch.zeros(1))]
            yield request

    with pytest.raises(ValueError, match="ended while others"):
        memory.run([rank(1), rank(2)])


@pytest.mark.parametrize(
    ("kind", "world", "expected"),
    [(AllReduce, 2, 1000), (AllReduce, 4, 1500), (AllGather, 2, 1000), (AllGather, 4, 3000)],
)
def test_wire_bytes_follow_each_collectives_formula(kind: type[AllReduce], world: int, expected: int) -> None:
    assert kind.wire_bytes(1000, world) == expected


tensors = st.sampled_from([torch.float32, torch.int32, torch.uint8, torch.bfloat16]).map(
    lambda dtype: torch.arange(1, 13).view(3, 4).to(dtype)
)


@given(tensors, st.integers(0, 2))
def test_an_echo_is_what_comes_where_all_hand_over_the_same(tensor: torch.Tensor, rank: int) -> None:
    for asked in (AllReduce(tensor), AllGather(tensor, tensor[0]), AllToAll(tensor), Broadcast(tensor, 1)):
        got, want = memory.result_for_equal_ranks(asked, rank, 3), memory.results_by_rank([asked] * 3)[rank]
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other) and one.is_contiguous()
            assert all(one.data_ptr() != given.data_ptr() for given in tensors_of(asked)), "memory of its own"
