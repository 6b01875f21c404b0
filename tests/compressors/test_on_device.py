# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""On a GPU compressors have the host wait for nothing, copy nothing, and launch as many kernels for any tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gravac.collectives import AllGather, Collective
from gravac.compressors import (
    Compressor,
    Context,
    artopk,
    dense,
    dgc,
    intsgd,
    ladder,
    majority,
    natural,
    powersgd,
    qsgd,
    quantize,
    randomk,
    redsync,
    signsgd,
    terngrad,
    thc,
    topk,
    topkc,
)
from tests.device.counting import DEVICE, Counting, counting

ROWS = 1 << 8
"""Rows of the tensor, seen as a matrix."""

COLUMNS = (1 << 9, 1 << 12)
"""Columns: 2¹⁷ elements, and 2²⁰; fewer have indices of 16 bits, which are converted."""

MOST = {"dense": 5, "quantize": 184, "topk": 20, "topkc": 132, "powersgd": 110, "randomk": 80, "thc": 170}
"""Kernels of a family, at most, over 8 ranks: encode, decode, adding the mean, and taking what was sent off."""

MEMBERS = [(member, member.candidates((1.0, 300.0))) for member in ladder.members]

CASES: tuple[tuple[Compressor, float], ...] = (
    *((member, cfs[0] if isinstance(cfs, tuple) and cfs else 100.0) for member, cfs in MEMBERS),
    *((one, 100.0) for one in (topk, topk(values="float16"), topkc, topkc(chunk=100), powersgd, randomk)),
    *((one, 100.0) for one in (randomk(block=100), topkc(chunk=100, values=quantize(2)), powersgd(iterations=2))),
    *((one, 8.0) for one in (thc, thc(exchange="lanes"), thc(sum_bits=4))),
    *((one, 8.0) for one in (quantize(2, rotate=True), quantize(4, block=64), quantize(1, back_bits=8))),
)

OTHERS: tuple[tuple[Compressor, float], ...] = (
    *((one, 100.0) for one in (artopk, dgc, dgc(clip=1.0), redsync)),
    *((one, 8.0) for one in (qsgd, terngrad, natural, intsgd, signsgd, majority)),
)


def answer(collective: Collective, world: int) -> Any:
    if isinstance(collective, AllGather):
        return tuple(tensor.new_empty(world, *tensor.shape) for tensor in collective.tensors)
    return torch.empty_like(collective.tensor)


def step(compressor: Compressor, x: torch.Tensor, cf: float, ctx: Context) -> None:
    """All of a step but the exchange itself: the mean is added to one tensor, what was sent taken off another."""
    rounds, came = compressor.rounds(x, cf, ctx), None
    while True:
        try:
            came = answer(rounds.send(came), ctx.world)
        except StopIteration as ended:
            reduced = ended.value
            break
    for numbers, alpha in ((reduced.mean, 1.0), (reduced.sent, -1.0)):
        if isinstance(numbers, torch.Tensor):
            torch.add(x, numbers, alpha=alpha)
        else:
            numbers.add_to(x, alpha)


def counted(run: Callable[[torch.Tensor, Context], object], world: int, columns: int) -> Counting:
    """What is asked for, but the first time, which makes tables."""
    for _ in range(2):
        with counting() as seen:
            context = Context("w", 7, 1, world, shape=(ROWS, columns), error_feedback=1.0)
            run(torch.empty(ROWS * columns, device=DEVICE), context)
    return seen


@pytest.mark.parametrize(("compressor", "cf"), CASES + OTHERS, ids=repr)
def test_the_host_waits_for_nothing_and_as_many_kernels_run_for_any_tensor(compressor: Compressor, cf: float) -> None:
    small, large = (counted(lambda x, c: step(compressor, x, cf, c), 8, columns) for columns in COLUMNS)
    for seen in (small, large):
        assert not seen.waits and not seen.copies
    if (compressor, cf) not in CASES:
        return
    # a few kernels more where a tensor's end is no whole block, or its rank not 1
    assert abs(sum(small.kernels.values()) - sum(large.kernels.values())) <= 3
    assert sum(large.kernels.values()) <= MOST[compressor.name], large.kernels


@pytest.mark.parametrize(("world", "most"), [(2, 36), (8, 80)])
def test_four_bits_take_few_kernels(world: int, most: int) -> None:
    """Ranks' numbers are added one rank after another, so that all devices get the same bits."""
    seen = counted(lambda x, ctx: step(quantize(4), x, 8.0, ctx), world, COLUMNS[-1])
    assert sum(seen.kernels.values()) <= most, seen.kernels


@pytest.mark.parametrize("compressor", [topk, topkc, randomk, quantize(4), thc, powersgd, dense], ids=repr)
def test_foreseeing_errors_waits_for_nothing(compressor: Compressor) -> None:
    cfs = [8.0] if compressor in (quantize(4), thc) else [10.0, 100.0]
    seen = counted(lambda x, ctx: compressor.errors(x, cfs, ctx), 2, COLUMNS[0])
    assert not seen.waits and not seen.copies
