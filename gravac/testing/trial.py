# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Random gradients, and functions that average gradients over ranks in one process, for tests of compressors."""

from collections.abc import Sequence

import torch

from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import Compressor, Context, Reduced, dense
from gravac.compressors.base import energy
from gravac.compressors.sparse import Addend, as_dense
from gravac.exchange import memory
from gravac.exchange.fuse import fuse
from gravac.measurement import LocalMeasurement


def averagers(compressor: Compressor, world: int, strength: float | None = None) -> list[Averager]:
    """Return an averager, which compresses and averages one rank's gradients, for each of ``world`` ranks.

    Args:
        compressor: compressor of all averagers.
        world: number of ranks.
        strength: fraction of the unsent part of a gradient that is kept as residual, in [0, 1]; ``None``: the
            compressor's default.
    """
    averagers = [Averager(compressor, dense, strength, 0, Feedback()) for _ in range(world)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, world
    return averagers


def residual_of(averager: Averager, elements: int) -> torch.Tensor:
    """Return what a rank has not sent of the tensor ``"w"``: the residual, plus what the compressor itself keeps.

    Args:
        averager: averager of the rank, after ``average``.
        elements: number of elements of the tensor.

    Returns:
        Tensor ``[elements]``, float64; zeros if nothing is kept.
    """
    residual = averager.feedback.residual.get("w", torch.zeros(elements)).double()
    kept_aside = averager.kept_aside("w")
    return residual if kept_aside is None else residual + kept_aside.double()


def average(ranks: Sequence[Averager], xs: Sequence[torch.Tensor], cf: float, step: int) -> list[torch.Tensor]:
    """Average gradients over all ranks, with residuals; return the mean on each rank, in the gradients' shape.

    Args:
        ranks: averager of each rank, which adds and updates the rank's residual.
        xs: gradient of each rank for the tensor ``"w"``, all of one shape; not changed.
        cf: compression factor.
        step: index of the step, which determines random numbers.
    """
    means = [x.clone() for x in xs]
    plan = ranks[0].plan(step, cf)
    pieces = [Piece("w", mean.view(-1), tuple(mean.shape)) for mean in means]
    for averager in ranks:
        averager.measure(LocalMeasurement(step, Candidate("hook", ranks[0].base.name, cf)))
    memory.run([averager.average([piece], plan) for averager, piece in zip(ranks, pieces, strict=True)])
    for averager in ranks:
        averager.commit()
    return means


def gradients(world: int, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    """Return a random gradient for each of ``world`` ranks: of the given shape, float32, with heavy tails."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * torch.rand(shape, generator=generator) ** 3 for _ in range(world)]


def ledgers(compressor: Compressor, cf: float, world: int, shape: tuple[int, ...]) -> list[Ledger]:
    """Compress and average one random tensor over ``world`` ranks; return the ledger of each rank's bytes.

    Args:
        compressor: compressor to run.
        cf: compression factor.
        world: number of ranks.
        shape: shape of the tensor.
    """
    ledger_by_rank = [Ledger(world) for _ in range(world)]
    rounds_by_rank = [
        fuse([compressor.rounds(x.reshape(-1), cf, Context(rank=rank, world=world, shape=shape))], finite=True)
        for rank, x in enumerate(gradients(world, shape))
    ]
    memory.run(rounds_by_rank, ledger_by_rank)
    return ledger_by_rank


def error_of(reduced: Reduced, x: torch.Tensor) -> float:
    """Return the squared error that gain is computed from: ``reduced.error``, or ``‖x - sent‖²`` if that is ``None``.

    Args:
        reduced: a rank's result for ``x``.
        x: the rank's gradient, of any shape.
    """
    error = energy(x.reshape(-1) - as_dense(reduced.sent, x)) if reduced.error is None else reduced.error
    return float(error)


def concatenate(tensors: Sequence[torch.Tensor | Addend], rows: torch.Tensor) -> torch.Tensor:
    """Return the elements of dense or sparse tensors, one tensor after the other, as a flat dense tensor.

    Args:
        tensors: tensors of equal size, one for each row of ``rows``.
        rows: tensor of shape ``[tensors, elements]``, which gives the size, dtype and device of each tensor.
    """
    return torch.cat([as_dense(tensor, rows.view(len(tensors), -1)[0]) for tensor in tensors])
