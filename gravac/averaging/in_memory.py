# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compresses and averages tensors over ranks that are all in this process, for laws and tests."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import Compressor, Context, Reduced, dense
from gravac.exchange import memory
from gravac.exchange.fuse import fuse


def exchange(
    compressor: Compressor,
    xs: Sequence[torch.Tensor],
    cf: float,
    *,
    step: int = 0,
    seed: int = 0,
    name: str = "w",
    ledger_by_rank: Sequence[Ledger] = (),
) -> list[Reduced]:
    """Compress and average one tensor over ``len(xs)`` ranks in this process; return each rank's result, by rank.

    Args:
        compressor: compressor to run.
        xs: gradient of each rank, all of one shape, float32 or float64; not changed.
        cf: compression factor.
        step: index of the step; ``step``, ``seed`` and ``name`` determine the compressor's random numbers.
        seed: seed of the run.
        name: name of the parameter.
        ledger_by_rank: ledger of each rank, which counts its bytes; empty: bytes are not counted.

    Raises:
        AssertionError: the compressor changed a gradient.

    Example:
        >>> from gravac import topk
        >>> from gravac.compressors.sparse import as_dense
        >>> xs = [torch.tensor([4.0, 0.0, 1.0, 0.0]), torch.tensor([2.0, 0.0, 0.0, 1.0])]
        >>> first, second = exchange(topk, xs, cf=4)  # each rank sends one of four elements
        >>> as_dense(first.mean, xs[0]).tolist()
        [3.0, 0.0, 0.0, 0.0]
    """
    contexts = [Context(name, step, rank, len(xs), seed, tuple(x.shape), x.dtype) for rank, x in enumerate(xs)]
    return exchange_tensors(compressor, [TensorOfRanks(xs, cf, contexts)], ledger_by_rank)[0]


class TensorOfRanks(NamedTuple):
    """A tensor to exchange: each rank's gradient, the compression factor, and each rank's context."""

    xs: Sequence[torch.Tensor]
    cf: float
    contexts: Sequence[Context]


def exchange_tensors(
    compressor: Compressor, tensors: Sequence[TensorOfRanks], ledger_by_rank: Sequence[Ledger] = ()
) -> list[list[Reduced]]:
    """Compress and average several tensors in one exchange; return for each tensor each rank's result, by rank.

    The results are those of an exchange for each tensor, which would take twice as long.

    Raises:
        AssertionError: the compressor changed a gradient.
    """
    rounds_by_rank, gradients_and_copies = [], []
    for rank in range(len(tensors[0].xs)):
        rounds = []
        for xs, cf, contexts in tensors:
            flat_gradient = xs[rank].reshape(-1).clone()
            gradients_and_copies.append((xs[rank], flat_gradient))
            rounds.append(compressor.rounds(flat_gradient, cf, contexts[rank]))
        rounds_by_rank.append(fuse(rounds))
    outcome_by_rank = memory.run(rounds_by_rank, ledger_by_rank)
    assert all(torch.equal(flat_gradient, x.reshape(-1)) for x, flat_gradient in gradients_and_copies), (
        "the compressor changed the gradient x; rounds() must leave x as it is"
    )
    return [
        [outcome.reduced[position] for outcome in outcome_by_rank if outcome is not None]
        for position in range(len(tensors))
    ]


def exchange_steps(compressor: Compressor, x: torch.Tensor, cf: float, steps: int) -> list[Reduced]:
    """Compress the gradient of a single rank as ``exchange`` does in steps 0, 1, ...; return each step's result.

    Args:
        compressor: compressor to run; every step starts without a state.
        x: gradient; not changed.
        cf: compression factor.
        steps: number of steps, which differ in the compressor's random numbers.
    """
    contexts = [Context("w", step, 0, 1, 0, tuple(x.shape), x.dtype) for step in range(steps)]
    return [result for (result,) in exchange_tensors(compressor, [TensorOfRanks([x], cf, [ctx]) for ctx in contexts])]


def averagers(compressor: Compressor, world: int, strength: float | None = None) -> list[Averager]:
    """Return an averager, which compresses and averages one rank's gradients, for each of ``world`` ranks.

    Args:
        compressor: compressor of all averagers.
        world: number of ranks.
        strength: fraction of the unsent part of a gradient that is kept as residual, in [0, 1]; ``None``: the
            compressor's default.
    """
    averagers = [Averager(compressor, dense, strength, 0) for _ in range(world)]
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
    unsent = torch.zeros(elements, dtype=torch.float64, device="cpu")
    for tensor in (averager.residuals.by_name.get("w"), averager.kept_aside("w")):
        if tensor is not None:
            unsent += tensor
    return unsent


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
        averager.measure(StepRecording(step, Candidate("hook", ranks[0].base.name, cf)))
    memory.run([averager.average([piece], plan) for averager, piece in zip(ranks, pieces, strict=True)])
    for averager in ranks:
        averager.commit()
    return means
