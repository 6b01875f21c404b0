# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a compressed step is worth on a model of your own: a short paired probe, in one process and without a network.

From where the model stands, a few steps are made with each candidate and the loss compared with that of as many dense
steps on the same batches; then all is put back. A communication hook cannot make a step twice, so this is a function
that is called with a step function.

A few steps do not show what error feedback brings later, nor what noise costs in the end: the probe is right about
quantizers of two bits and more, and ranks sparsifiers worse than their gain does (``docs/evidence/matrices.md``).
"""

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from gravac.compressors import Compressor, dense
from gravac.lab.simulate import Totals, train


class Probed(NamedTuple):
    """The result for one candidate.

    Attributes:
        compressor: the compressor that was probed.
        cf: its compression factor.
        efficiency: decrease of the loss over dense's on the same batches, median over repeats; 1 is as good as dense.
        low: lowest efficiency of a repeat.
        high: highest efficiency of a repeat.
        gain: energy kept / energy, over all its steps.
        wire_ratio: wire bytes of dense float32 / its own.
    """

    compressor: Compressor
    cf: float
    efficiency: float
    low: float
    high: float
    gain: float
    wire_ratio: float


def probe(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int, int], torch.Tensor],
    score: Callable[[], float],
    candidates: Sequence[tuple[Compressor, float]],
    *,
    ranks: int = 2,
    steps: int = 20,
    repeats: int = 3,
) -> list[Probed]:
    """Compare candidates by how far a few steps with each bring the model.

    Args:
        model: model on CPU or a device, not wrapped by DDP; it is put back when this returns, also when it raises.
        optimizer: optimizer of the model; it is put back too.
        loss: function of ``(step, rank)`` that returns the training loss, a scalar tensor, on a batch of their own:
            the same for the same numbers. Steps count from 0.
        score: function that returns the loss on data that is not trained on; lower is better.
        candidates: compressors and compression factors.
        ranks: number of ranks, in one process; each has its own batch, residuals and memory.
        steps: number of steps of each candidate in each repeat.
        repeats: number of repeats, each on other batches, from the same start.

    Returns:
        One result for each candidate, in their order.

    Raises:
        ValueError: dense steps do not lower the score, so that nothing can be compared with them.

    Example:
        >>> from gravac import quantize, topk
        >>> from gravac.lab.probe import probe
        >>> probe(model, optimizer, loss, score, [(quantize(2), 16), (topk, 100)])        # doctest: +SKIP
    """
    with _put_back(model, optimizer):
        begun = score()
    won: list[list[float]] = [[] for _ in candidates]
    totals: list[list[Totals]] = [[] for _ in candidates]
    for repeat in range(repeats):

        def decrease(
            base: Compressor, cf: float | None, into: list[Totals] | None = None, first: int = repeat * steps
        ) -> float:
            with _put_back(model, optimizer):
                made = train(model, optimizer, loss, base, cf, None, ranks, steps, first=first, ramp=1)
                if into is not None:
                    into.append(made)
                return begun - score()

        of_dense = decrease(dense, None)
        if not of_dense > 0:
            raise ValueError(
                f"steps: {steps} dense steps lower the score by {of_dense:g} from {begun:g}: nothing to compare with; "
                "use more steps, a lower learning rate, or a score on more data"
            )
        for (base, cf), wins, of_one in zip(candidates, won, totals, strict=True):
            wins.append(decrease(base, cf, of_one) / of_dense)
    return [
        Probed(
            base,
            cf,
            statistics.median(wins),
            min(wins),
            max(wins),
            statistics.fmean(made.gain for made in of_one) if of_one else math.nan,
            of_one[0].wire_ratio,
        )
        for (base, cf), wins, of_one in zip(candidates, won, totals, strict=True)
    ]


@contextmanager
def _put_back(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put model, gradients, optimizer and the random numbers' state back when the block ends."""
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    memory = copy.deepcopy(optimizer.state_dict())
    training = model.training
    devices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            model.load_state_dict(weights)
            optimizer.load_state_dict(memory)
            model.train(training)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
