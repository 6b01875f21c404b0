# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is averaged together comes out as each by itself, is remembered by name, and asks the same of every rank."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac.averaging import average
from gravac.averaging.average import Averager
from gravac.averaging.batch import merge_batches
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import (
    Compressor,
    Context,
    dense,
    dgc,
    hard_threshold,
    ladder,
    powersgd,
    quantize,
    redsync,
    topk,
    topkc,
)
from gravac.compressors.ladder import wire_ratio
from gravac.compressors.orthonormal import by_cholesky, by_householder
from gravac.compressors.quantize import Quantize
from gravac.exchange import memory
from gravac.measurement import LocalMeasurement

Shape = tuple[int, ...]
Groups = Sequence[Sequence[int]]

SHAPES: tuple[Shape, ...] = ((24, 16), (7,), (24, 16), (16, 24), (8, 5, 3), (24, 16), (8, 15), (16, 24), (8, 5, 3))
"""Three kinds of matrices that go together, one of another shape with the same rows and columns, and a vector."""

BASES: tuple[tuple[Compressor, float], ...] = (
    (powersgd, 3.0),
    (powersgd(2), 128.0),
    (powersgd(iterations=2), 2.0),
    (powersgd(warm_start=False), 4.0),
    (powersgd(alternating=True), 4.0),
    (ladder, wire_ratio(powersgd(2), powersgd(2).candidates((1.0, 1e6))[0])),  # type: ignore[index]
)

MASKS: Any = SimpleNamespace(judge=lambda flag: flag, everywhere=lambda flag: flag, host_looks=False)
"""An executor under which only the device knows whether gradients were finite."""


class Run:
    """Some ranks that average the same tensors, step after step.

    Args:
        base: what all compress by.
        cf: compression factor.
        world: number of ranks.
        host_looks: whether the host may look at data.
        dtype: number format of gradients.
        made: makes what keeps residuals.
    """

    def __init__(
        self,
        base: Compressor,
        cf: float,
        world: int,
        host_looks: bool,
        dtype: torch.dtype,
        made: Callable[[], Feedback] = Feedback,
    ) -> None:
        self.cf, self.host_looks, self.dtype = cf, host_looks, dtype
        self.averagers = [Averager(base, dense, None, 16, made()) for _ in range(world)]
        self.ledgers = [Ledger(world) for _ in range(world)]
        for rank, averager in enumerate(self.averagers):
            averager.rank, averager.world = rank, world

    def step(self, number: int, groups: Groups, together: bool, spoilt: int | None = None) -> list[list[torch.Tensor]]:
        """What each rank gets: gradients of the step, one of them not finite on one rank where it is ``spoilt``."""
        draw = torch.Generator().manual_seed(number)
        outs = [[torch.randn(shape, generator=draw, dtype=self.dtype) for shape in SHAPES] for _ in self.averagers]
        for mine in outs:
            mine[2].zero_()
        if spoilt is not None:
            outs[-1][spoilt].view(-1)[3] = float("inf")
        chosen = Candidate(self.averagers[0].base.name, self.cf, self.cf)
        for averager in self.averagers:
            averager.measure(LocalMeasurement(number, chosen), None if self.host_looks else MASKS)
        with mock.patch.object(average, "goes_alone", return_value=not together):
            for group in groups:
                pieces = [[Piece(str(i), mine[i].view(-1), SHAPES[i]) for i in group] for mine in outs]
                plans = [averager.plan(number, self.cf) for averager in self.averagers]
                each = zip(self.averagers, pieces, plans, strict=True)
                memory.run([averager.average(mine, plan) for averager, mine, plan in each], self.ledgers)
        for averager in self.averagers:
            averager.commit()
        return outs


def alike(one: Any, other: Any, dtype: torch.dtype) -> None:
    """Equal up to rounding; of tensors in containers too, which have the same keys."""
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


partitions = st.lists(st.integers(0, 2), min_size=len(SHAPES), max_size=len(SHAPES))
"""A group for each tensor, in each step another one."""


def _groups(numbers: Sequence[int]) -> Groups:
    return [group for which in range(3) if (group := [i for i, own in enumerate(numbers) if own == which])]


@pytest.mark.parametrize("way", [by_householder, by_cholesky], ids=lambda way: way.__name__)
@given(
    host_looks=st.booleans(),
    case=st.sampled_from(BASES),
    world=st.sampled_from([2, 3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    parted=st.lists(partitions, min_size=4, max_size=4),
    spoilt=st.none() | st.integers(0, len(SHAPES) - 1),
)
def test_together_each_comes_out_as_by_itself(
    way: Callable[[torch.Tensor], torch.Tensor],
    host_looks: bool,
    case: tuple[Compressor, float],
    world: int,
    dtype: torch.dtype,
    parted: list[list[int]],
    spoilt: int | None,
) -> None:
    """Means, residuals, memories and sums, over steps whose groups differ, as DDP's do; what travels is as much."""
    together, alone = (Run(*case, world, host_looks, dtype) for _ in range(2))
    with mock.patch("gravac.compressors.powersgd.orthonormal", way):
        for number, numbers in enumerate(parted):
            poisoned = spoilt if number == 2 else None
            groups = _groups(numbers)
            alike(together.step(number, groups, True, poisoned), alone.step(number, groups, False, poisoned), dtype)
            for one, other in zip(together.averagers, alone.averagers, strict=True):
                alike(one.feedback.residual, other.feedback.residual, dtype)
                alike(one.memory.stored, other.memory.stored, dtype)
                alike(float(one.measurement.error), float(other.measurement.error), torch.float32)
                assert one.measurement.achieved_cf == pytest.approx(other.measurement.achieved_cf)
    assert together.ledgers[0].payload_bytes == alone.ledgers[0].payload_bytes


CHOOSING: tuple[tuple[Compressor, float], ...] = (
    (topk, 5.0),
    (topk(values="float16"), 1.5),
    (topkc(chunk=8), 3.0),
    (topkc(chunk=8, values=None), 1.0),
    (topkc(chunk=8, values=quantize(2, block=16)), 4.0),
    (topkc(chunk=24), 5.0),
)
"""What chooses coordinates; of some settings only the larger tensors are of whole chunks."""


@pytest.mark.parametrize("host_looks", [True, False], ids=["looking", "masks"])
@given(
    case=st.sampled_from(CHOOSING),
    made=st.sampled_from([Feedback, lambda: Feedback(overflow_safety=True), lambda: Feedback(dtype="bfloat16")]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    parted=st.lists(partitions, min_size=4, max_size=4),
    spoilt=st.none() | st.integers(0, len(SHAPES) - 1),
    falls=st.booleans(),
)
def test_what_chooses_coordinates_comes_out_to_the_bit(
    host_looks: bool,
    case: tuple[Compressor, float],
    made: Callable[[], Feedback],
    dtype: torch.dtype,
    parted: list[list[int]],
    spoilt: int | None,
    falls: bool,
) -> None:
    """Residuals too, rounded at random or not, kept twice or not, and while some are released as a CF falls."""
    together, alone = (Run(*case, 2, host_looks, dtype, made) for _ in range(2))
    for number, numbers in enumerate(parted):
        # a host that looks takes a residual back by subtracting, to rounding
        poisoned, groups = spoilt if number == 2 and not host_looks else None, _groups(numbers)
        if falls and number == 1:
            for averager in (*together.averagers, *alone.averagers):
                averager.feedback.set_aside()
        outs = [one.step(number, groups, side, poisoned) for one, side in ((together, True), (alone, False))]
        for mine, other in zip(*outs, strict=True):
            assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(mine, other, strict=True))
        for one, another in zip(together.averagers, alone.averagers, strict=True):
            for ours, theirs in (
                (one.feedback.residual, another.feedback.residual),
                (one.feedback.releasing, another.feedback.releasing),
            ):
                assert ours.keys() == theirs.keys()
                assert all(torch.equal(ours[name], theirs[name]) for name in ours)
                assert all(one.untyped_storage().nbytes() == one.nbytes for one in ours.values())
    quantized = isinstance(case[0].values, Quantize)  # then padded to whole blocks, and not of each rank's shard
    both = together.ledgers[0].payload_bytes, alone.ledgers[0].payload_bytes
    assert both[0] <= both[1] if quantized else both[0] == both[1]


def test_a_checkpoint_of_a_batch_goes_on_alone() -> None:
    runs = [Run(powersgd, 3.0, 2, True, torch.float64) for _ in range(2)]
    everything = [list(range(len(SHAPES)))]
    for number in range(2):
        runs[0].step(number, everything, True)
    for saved, fresh in zip(runs[0].averagers, runs[1].averagers, strict=True):
        fresh.memory.load(saved.memory.stored)
        fresh.feedback.load(saved.feedback.residual, saved.feedback.releasing)
    alike(runs[0].step(2, everything, True), runs[1].step(2, everything, False), torch.float64)


def _batched(base: Compressor, cf: float, shapes: Sequence[Shape]) -> list[list[str]]:
    averager = Averager(base, dense, 1.0, 0, Feedback())
    pieces = [Piece(str(number), torch.zeros(shape).view(-1), shape) for number, shape in enumerate(shapes)]
    batches = merge_batches(averager._batch(piece, averager.plan(0, cf)) for piece in pieces)
    assert all(batch.is_matrix == (len(batch.pieces) > 1) for batch in batches)
    return [batch.names for batch in batches]


def test_on_a_processor_each_goes_by_itself() -> None:
    for base in (powersgd, topk, topkc):
        assert _batched(base, 3.0, SHAPES) == [[str(number)] for number in range(len(SHAPES))]


def test_elsewhere_equal_ones_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average, "goes_alone", lambda x: False)
    # "4" and "6" are seen as the same matrix; "1" has one dimension
    assert _batched(powersgd, 3.0, SHAPES) == [["0", "2", "5"], ["1"], ["3", "7"], ["4", "6", "8"]]
    assert _batched(powersgd, 1.0, [(4, 4)] * 2) == [["0"], ["1"]]  # low rank is no saving
    equal = [["0", "2", "3", "5", "7"], ["1"], ["4", "6", "8"]]
    assert _batched(topk, 3.0, SHAPES) == equal
    assert _batched(topkc(chunk=8), 3.0, SHAPES) == equal
    assert _batched(topkc(chunk=16), 3.0, SHAPES) == [equal[0], ["1"], ["4"], ["6"], ["8"]]  # no whole chunks
    for each in (redsync(exact_count=False), dgc, hard_threshold, topkc(chunk=8, values=quantize(4, rotate=True))):
        assert _batched(each, 3.0, SHAPES) == [[str(number)] for number in range(len(SHAPES))]


def test_what_is_sent_dense_is_no_batch() -> None:
    contexts = [Context(name, shape=(7,)) for name in "ab"]
    with pytest.raises(ValueError, match="sent dense"):
        next(powersgd.rounds_together(torch.zeros(2, 7), 3.0, contexts))
