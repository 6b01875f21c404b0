# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Made-up gradients, and N ranks in this process that average them, for tests of averaging with residuals."""

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
    """Return an averager for each rank."""
    averagers = [Averager(compressor, dense, strength, 0, Feedback()) for _ in range(world)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, world
    return averagers


def residual_of(averager: Averager, elements: int) -> torch.Tensor:
    """Return the residual, plus the unsent rest that the compressor itself keeps; ``(elements,)``, float64."""
    residual = averager.feedback.residual.get("w", torch.zeros(elements)).double()
    aside = averager.kept_aside("w")
    return residual if aside is None else residual + aside.double()


def average(ranks: Sequence[Averager], xs: Sequence[torch.Tensor], cf: float, step: int) -> list[torch.Tensor]:
    """Average gradients over all ranks, with residuals; return each rank's mean, in its gradient's shape."""
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
    """Return made-up heavy-tailed gradients of a shape, different on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 3 for _ in range(world)]


def ledgers(compressor: Compressor, cf: float, world: int, shape: tuple[int, ...]) -> list[Ledger]:
    """Return a ledger for each rank, with the bytes of its collectives for one tensor."""
    by_rank = [Ledger(world) for _ in range(world)]
    ranks = [
        fuse([compressor.rounds(x.reshape(-1), cf, Context(rank=rank, world=world, shape=shape))], finite=True)
        for rank, x in enumerate(gradients(world, shape))
    ]
    memory.run(ranks, by_rank)
    return by_rank


def error_of(reduced: Reduced, x: torch.Tensor) -> float:
    """Return ``‖x - sent‖²`` of x, any shape, as the gain counts it."""
    error = energy(x.reshape(-1) - laid_out(reduced.sent, x)) if reduced.error is None else reduced.error
    return float(error)


def laid_side_by_side(numbers: Sequence[torch.Tensor | Addend], rows: torch.Tensor) -> torch.Tensor:
    """Return tensors one after another, flat; each is given as equally many ``rows``, ``[count, elements]``."""
    return torch.cat([laid_out(tensor, rows.view(len(numbers), -1)[0]) for tensor in numbers])
