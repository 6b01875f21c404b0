# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Side by side, each tensor comes out as it would alone."""

from unittest import mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac.averaging import average as module
from gravac.averaging.average import Averager
from gravac.averaging.batch import MAX_JOINED_ELEMENTS, merge_batches
from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import Compressor, dense, ladder, quantize, topk
from gravac.compressors.ladder import wire_ratio
from gravac.exchange import memory

Shape = tuple[int, ...]

BASES: list[tuple[Compressor, float]] = [
    *((quantize(bits), 32 / bits) for bits in (8, 4, 2, 1)),
    (quantize(2, block=16, exchange="shards"), 16.0),
    (quantize(4, rotate=True), 8.0),
    (quantize(4, back_bits=8), 8.0),
    (topk, 10.0),
    (ladder, wire_ratio(quantize(2), 16)),
]


def average(
    base: Compressor, cf: float, shapes: list[Shape], ranks: int, by_itself: bool, dtype: torch.dtype = torch.float32
) -> tuple[list[list[torch.Tensor]], list[Averager], list[Ledger]]:
    """Two steps of all ranks, in one group or each tensor in a group of its own."""
    draw = torch.Generator().manual_seed(len(shapes))
    averagers = [Averager(base, dense, None, 16) for _ in range(ranks)]
    ledgers = [Ledger(ranks) for _ in range(ranks)]
    outs: list[list[torch.Tensor]] = []
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, ranks
    for step in range(2):
        outs = [[torch.randn(shape, generator=draw).to(dtype) for shape in shapes] for _ in averagers]
        pieces = [[Piece(str(i), out.view(-1), tuple(out.shape)) for i, out in enumerate(mine)] for mine in outs]
        for averager in averagers:
            averager.measure(StepRecording(step, Candidate(base.name, cf, cf)))
        for group in [slice(i, i + 1) for i in range(len(shapes))] if by_itself else [slice(None)]:
            memory.run(
                [a.average(mine[group], a.plan(step, cf)) for a, mine in zip(averagers, pieces, strict=True)], ledgers
            )
        for averager in averagers:
            averager.commit()
    return outs, averagers, ledgers


@pytest.mark.parametrize(("base", "cf"), BASES, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_side_by_side_come_out_as_each_alone(
    base: Compressor, cf: float, ranks: int, dtype: torch.dtype
) -> None:
    shapes: list[Shape] = [(7, 33), (5,), (40, 30), (2, 2), (129, 3), (8, 4, 3, 3), (1,)]
    together, merged, _ = average(base, cf, shapes, ranks, by_itself=False, dtype=dtype)
    alone, single, _ = average(base, cf, shapes, ranks, by_itself=True, dtype=dtype)
    for rank in range(ranks):
        for mine, other in zip(together[rank], alone[rank], strict=True):
            torch.testing.assert_close(mine, other, rtol=0 if ranks == 2 else 1e-6, atol=0 if ranks == 2 else 1e-6)
        assert merged[rank].residuals.by_name.keys() == single[rank].residuals.by_name.keys()
        assert float(merged[rank].recording.energy) == pytest.approx(float(single[rank].recording.energy), rel=1e-5)
        assert merged[rank].recording.achieved_cf == pytest.approx(single[rank].recording.achieved_cf)
    lost, lost_alone = (sum(float(averager.recording.error) for averager in some) for some in (merged, single))
    # whose shard a second coding is may differ; of tensors that are joined, the zeros between them count, too
    energy = sum(float(averager.recording.energy) for averager in merged)
    assert lost_alone * (1 - 1e-5) - 1e-9 <= lost <= energy


@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6),
    bits=st.sampled_from([8, 4, 2, 1]),
    ranks=st.integers(1, 4),
)
def test_what_travels_is_what_is_foretold(shapes: list[Shape], bits: int, ranks: int) -> None:
    _, averagers, ledgers = average(quantize(bits), 32 / bits, shapes, ranks, by_itself=False)
    forms = [(shape, torch.float32) for shape in shapes]
    foretold = sum(traffic.payload_bytes for traffic in averagers[0].traffic(forms, quantize(bits), 32 / bits))
    framing = 64 * ranks  # flags, and rows padded to whole words
    assert foretold <= ledgers[0].payload_bytes / 2 <= foretold + framing


def test_what_goes_together_does_not_depend_on_what_a_rank_keeps() -> None:
    shapes: list[Shape] = [(5,), (3,), (40, 30)]
    averagers = [Averager(quantize(4), dense, None, 16) for _ in range(2)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, 2
        averager.measure(StepRecording(0, Candidate("quantize", 8.0, 8.0)))
    averagers[0].residuals.by_name["0"] = torch.ones(5)
    outs = [[torch.ones(shape) for shape in shapes] for _ in averagers]
    pieces = [[Piece(str(i), out.view(-1), tuple(out.shape)) for i, out in enumerate(mine)] for mine in outs]
    memory.run([a.average(mine, a.plan(0, 8.0)) for a, mine in zip(averagers, pieces, strict=True)])
    for mine in outs:
        torch.testing.assert_close(mine[0], torch.full((5,), 1.5))  # what rank 0 kept arrives
        torch.testing.assert_close(mine[1], torch.ones(3))
    assert not averagers[0].residuals.by_name


def test_not_finite_on_one_rank_reaches_all_and_nothing_is_kept() -> None:
    shapes: list[Shape] = [(5,), (40, 30), (30, 20)]
    averagers = [Averager(quantize(4), dense, None, 16) for _ in range(2)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, 2
        averager.measure(StepRecording(0, Candidate("quantize", 8.0, 8.0)))
    outs = [[torch.ones(shape) for shape in shapes] for _ in averagers]
    outs[1][2][3, 4] = float("inf")
    pieces = [[Piece(str(i), out.view(-1), tuple(out.shape)) for i, out in enumerate(mine)] for mine in outs]
    memory.run([a.average(mine, a.plan(0, 8.0)) for a, mine in zip(averagers, pieces, strict=True)])
    assert all(out.isnan().all() for mine in outs for out in mine)
    assert all(not averager.residuals.by_name and not averager.recording.finite for averager in averagers)


def test_large_ones_stay_by_themselves_and_order_is_kept() -> None:
    sizes = [10, MAX_JOINED_ELEMENTS + 1, 20, 30]
    pieces = [Piece(str(i), torch.zeros(size), (size, 1)) for i, size in enumerate(sizes)]
    averager = Averager(quantize(4, block=16), dense, None, 0)
    plan = averager.plan(0, 8.0, cfs={"2": None})
    batches = merge_batches(averager._batch(piece, plan) for piece in pieces)
    assert [batch.names for batch in batches] == [["0", "3"], ["1"], ["2"]]
    assert batches[0].lengths == [16, 32]


@given(
    sizes=st.lists(st.integers(1, 200), max_size=30),
    padded=st.sampled_from([(dense, 1.0, 1), (quantize(4, block=16), 8.0, 16), (quantize(4, block=48), 8.0, 48)]),
)
def test_where_launches_cost_most_all_go_together(sizes: list[int], padded: tuple[Compressor, float, int]) -> None:
    base, cf, multiple = padded
    pieces = [Piece(str(i), torch.zeros(size, device="meta"), (size, 1)) for i, size in enumerate(sizes)]
    averager = Averager(base, dense, None, 0)
    with mock.patch.object(module, "MAX_JOINED_ELEMENTS", 100):
        batches = merge_batches(averager._batch(piece, averager.plan(0, cf)) for piece in pieces)
    assert [batch.pieces for batch in batches] == ([pieces] if pieces else [])
    lengths = [-(-size // multiple) * multiple for size in sizes]
    assert all(batch.lengths == lengths for batch in batches[: len(sizes) > 1])


def test_an_empty_tensor_is_not_compressed_and_goes_apart() -> None:
    pieces = [Piece(str(i), torch.zeros(size), (size, 1)) for i, size in enumerate((0, 8, 16))]
    averager = Averager(quantize(4, block=16), dense, None, 0)
    batches = merge_batches(averager._batch(piece, averager.plan(0, 8.0)) for piece in pieces)
    assert [batch.names for batch in batches] == [["0"], ["1", "2"]]
    assert [batch.choice.compresses for batch in batches] == [False, True]


@pytest.mark.parametrize("bits", [8, 4, 1])
def test_which_tensors_go_together_changes_no_bits(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[Shape] = [(7, 33), (5,), (40, 30), (129, 3), (60, 60)]
    outs: dict[int, list[torch.Tensor]] = {}
    for largest in (100, 10_000):
        monkeypatch.setattr(module, "MAX_JOINED_ELEMENTS", largest)
        draw, averager = torch.Generator().manual_seed(0), Averager(quantize(bits), dense, None, 16)
        outs[largest] = [torch.randn(shape, generator=draw) for shape in shapes]
        pieces = [Piece(str(i), out.view(-1), tuple(out.shape)) for i, out in enumerate(outs[largest])]
        averager.measure(StepRecording(0, Candidate("quantize", 32 / bits, 32 / bits)))
        ledger = Ledger(1)
        memory.run([averager.average(pieces, averager.plan(0, 32 / bits))], [ledger])
    assert all(torch.equal(*both) for both in zip(*outs.values(), strict=True))
