# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Made-up gradients, and ranks in this process that average them: what laws of the core operation are tried on."""

from collections.abc import Sequence

import torch

from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import Compressor, Context, Reduced, dense
from gravac.compressors.base import energy
from gravac.compressors.sparse import Addend, laid_out
from gravac.exchange import memory
from gravac.exchange.fuse import fuse
from gravac.measurement import LocalMeasurement


def averagers(compressor: Compressor, world: int, strength: float | None = None) -> list[Averager]:
    """Make one for each rank."""
    averagers = [Averager(compressor, dense, strength, 0, Feedback()) for _ in range(world)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, world
    return averagers


def kept_of(averager: Averager, elements: int) -> torch.Tensor:
    """Return the residual, with what the compressor keeps itself; ``(elements,)``, float64."""
    residual = averager.feedback.residual.get("w", torch.zeros(elements)).double()
    aside = averager.kept_aside("w")
    return residual if aside is None else residual + aside.double()


def average(ranks: Sequence[Averager], xs: Sequence[torch.Tensor], cf: float, step: int) -> list[torch.Tensor]:
    """Run one step of the core operation on all ranks; return what each gets, of the shape it gave."""
    outs = [x.clone() for x in xs]
    plan = ranks[0].plan(step, cf)
    pieces = [Piece("w", out.view(-1), tuple(out.shape)) for out in outs]
    for averager in ranks:
        averager.measure(LocalMeasurement(step, Candidate("hook", ranks[0].base.name, cf)))
    memory.run([averager.average([piece], plan) for averager, piece in zip(ranks, pieces, strict=True)])
    for averager in ranks:
        averager.commit()
    return outs


def gradients(world: int, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    """Make up heavy-tailed gradients of a shape, different on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 3 for _ in range(world)]


def ledgers(compressor: Compressor, cf: float, world: int, shape: tuple[int, ...]) -> list[Ledger]:
    """Add up what each rank hands to collectives for one tensor."""
    found = [Ledger(world) for _ in range(world)]
    ranks = [
        fuse([compressor.rounds(x.reshape(-1), cf, Context(rank=r, world=world, shape=shape))], finite=True)
        for r, x in enumerate(gradients(world, shape))
    ]
    memory.run(ranks, found)
    return found


def error_of(reduced: Reduced, x: torch.Tensor) -> float:
    """Return ``‖x - sent‖²`` as it counts for the gain, of x of any shape."""
    error = energy(x.reshape(-1) - laid_out(reduced.sent, x)) if reduced.error is None else reduced.error
    return float(error)


def laid_side_by_side(numbers: Sequence[torch.Tensor | Addend], rows: torch.Tensor) -> torch.Tensor:
    """Return what is as long as some rows of ``[count, elements]`` together, flat, one after another."""
    return torch.cat([laid_out(one, rows.view(len(numbers), -1)[0]) for one in numbers])
