# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Buckets that wait for each other on real gloo: fewer collectives, the same sums, nothing that waits in vain."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, quantize
from gravac.compressors import Context, Profile, Quantize, Rounds
from gravac.engine.coalescing import FEWEST_JOBS
from gravac.exchange.failures import ExchangeError
from gravac.exchange.link_probe import LinkProbe
from tests.distributed.training import batch, parallel, sgd, train, weights
from tests.ranks import processes


class Breaks(Quantize):
    """Fails on every rank in the third step, at a tensor in the middle of the model."""

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        return replace(super().profile(cf, world=world), pad_multiple=0)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        if ctx.step == 2 and ctx.name == "6.weight":
            raise ArithmeticError("made to fail")
        return (yield from super().rounds(x, cf, ctx))


def jobs(ddp: DistributedDataParallel, rank: int, cf: float, steps: int) -> list[int]:
    """How many groups were averaged together, step by step."""
    with AdaptiveCompressor(quantize, cf_range=(1, 32), controller=Static(cf=cf)) as compressor:
        compressor.attach(ddp)
        compressor._attachment.admission.link = LinkProbe(
            latency=1e-5, bandwidth=1e10, copy_bytes_per_s=1e10
        )  # not what it is just now
        averager, counted = compressor._engine.averager, Counter[int]()
        average = averager.average

        def counting(pieces: Any, plan: Any, *more: Any) -> Any:
            counted[plan.step] += 1
            return average(pieces, plan, *more)

        averager.average = counting  # type: ignore[method-assign]
        train(ddp, sgd(ddp), rank, range(steps))
    return [counted[step] for step in range(steps)]


def fewer(rank: int, world: int) -> tuple[list[int], list[int], torch.Tensor]:
    dense, ddp = parallel(), parallel()
    return jobs(dense, rank, 1, 6), jobs(ddp, rank, 8, 6), weights(ddp)


def test_compressed_groups_go_in_a_few_parts_and_dense_ones_as_they_come() -> None:
    (dense, compressed, one), (_, _, other) = processes(fewer, 2)
    assert all(count > FEWEST_JOBS for count in dense[2:])
    assert all(1 < count <= FEWEST_JOBS for count in compressed[2:])
    assert torch.equal(one, other)


def odd_layouts(rank: int, world: int) -> list[torch.Tensor]:
    trained = [parallel(static_graph=True), parallel(find_unused_parameters=True)]
    for ddp in trained:
        jobs(ddp, rank, 8, 4)
    return [weights(ddp) for ddp in trained]


def test_nothing_waits_in_vain() -> None:
    for one, other in zip(*processes(odd_layouts, 2), strict=True):
        assert torch.equal(one, other)


def failing(rank: int, world: int) -> list[str]:
    ddp = parallel()
    said = []
    with AdaptiveCompressor(Breaks(bits=4), cf_range=(1, 32), controller=Static(cf=8)) as compressor:
        compressor.attach(ddp)
        for step in range(4):
            try:
                torch.nn.functional.cross_entropy(ddp(batch(rank, step)[0]), batch(rank, step)[1]).backward()
            except (ArithmeticError, ExchangeError) as failure:  # its own, or that of the rank that was first
                said.append(str(failure).splitlines()[0])
                break
    return said


def test_a_failure_among_groups_that_wait_surfaces_from_backward() -> None:
    for said in processes(failing, 2):
        assert len(said) == 1
        assert "made to fail" in said[0]
