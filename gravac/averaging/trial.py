# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks in this process that average one tensor step by step: what laws of the core operation are tried on."""

from collections.abc import Sequence

import torch

from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.compressors import Compressor, dense
from gravac.exchange import memory


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
    """Run one step of the core operation on all ranks; return what each gets."""
    outs = [x.clone() for x in xs]
    plan = ranks[0].plan(step, cf)
    pieces = [Piece("w", out.view(-1), tuple(out.shape)) for out in outs]
    for averager in ranks:
        averager.begin()
    memory.run([averager.average([piece], plan) for averager, piece in zip(ranks, pieces, strict=True)])
    for averager in ranks:
        averager.commit()
    return outs
