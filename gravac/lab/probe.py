# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the progress of compressed steps on your own model, in one process and without a network.

``probe`` trains the model for a few steps with each candidate, always from the model's current weights. It compares the
validation loss with the loss after as many dense steps on the same batches, and restores the model. A DDP communication
hook cannot repeat a step. Therefore you pass a function that computes the loss of any step of any rank.

A few steps show neither the later benefit of error feedback nor the final cost of compression noise. The measured
progress is right for quantizers of two bits and more. For sparsifiers, the gain predicts the order of candidates better
than the measured progress does (``docs/evidence/matrices.md``).
"""

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from gravac.compressors import Compressor, dense
from gravac.lab.simulate import TrainingTotals, train


class ProbeResult(NamedTuple):
    """Progress, gain and wire ratio of one candidate: a compressor at a compression factor.

    Attributes:
        compressor: compressor of the candidate.
        cf: compression factor of the candidate.
        efficiency: decrease of the validation loss by the candidate's steps / decrease by as many dense steps on the
            same batches; median over repeats. 1 is as good as dense.
        low: lowest efficiency of any repeat.
        high: highest efficiency of any repeat.
        gain: 1 - squared norm of what was not sent / squared norm of gradient and residual, both summed over all ranks
            and steps of a repeat; mean over repeats.
        wire_ratio: wire bytes of a dense float32 all-reduce / wire bytes of the candidate.
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
) -> list[ProbeResult]:
    """Train a few steps with each candidate; return how far the score falls, relative to as many dense steps.

    Args:
        model: model on a CPU or GPU, not wrapped by DDP, whose state is restored on return and on an error.
        optimizer: optimizer of the model, whose state is restored, too.
        loss: function of ``(step, rank)`` that returns the training loss, a scalar tensor that requires a gradient.
            Each step of each rank must have a batch of its own, which is the same in every call. Steps count from 0.
        score: function without arguments that returns the loss of the model on validation data, a number; lower is
            better.
        candidates: ``(compressor, compression factor)`` of each candidate.
        ranks: number of ranks to simulate in this process; each has its own batches and residuals.
        steps: number of steps of each candidate in each repeat.
        repeats: number of repeats; each begins with the same weights and uses other batches.

    Returns:
        One result for each candidate, in the order of ``candidates``.

    Raises:
        ValueError: dense steps do not lower the score, so candidates cannot be compared with dense steps.

    Example:
        >>> from gravac import quantize, topk
        >>> from gravac.lab.probe import probe
        >>> probe(model, optimizer, loss, score, [(quantize(2), 16), (topk, 100)])        # doctest: +SKIP
    """
    with _restore_after_block(model, optimizer):
        initial_score = score()
    efficiencies: list[list[float]] = [[] for _ in candidates]
    totals: list[list[TrainingTotals]] = [[] for _ in candidates]
    for repeat in range(repeats):

        def measure_decrease(
            base: Compressor,
            cf: float | None,
            collected_totals: list[TrainingTotals] | None = None,
            first: int = repeat * steps,
        ) -> float:
            with _restore_after_block(model, optimizer):
                run_totals = train(model, optimizer, loss, base, cf, None, ranks, steps, first=first, ramp=1)
                if collected_totals is not None:
                    collected_totals.append(run_totals)
                return initial_score - score()

        dense_decrease = measure_decrease(dense, None)
        if not dense_decrease > 0:
            raise ValueError(
                f"steps: {steps} dense steps changed the score from {initial_score:g} to "
                f"{initial_score - dense_decrease:g}, but candidates can be compared only if dense steps lower the "
                "score; use more steps, a lower learning rate, or a score on more data"
            )
        for (base, cf), candidate_efficiencies, candidate_totals in zip(candidates, efficiencies, totals, strict=True):
            candidate_efficiencies.append(measure_decrease(base, cf, candidate_totals) / dense_decrease)
    return [
        ProbeResult(
            base,
            cf,
            statistics.median(candidate_efficiencies),
            min(candidate_efficiencies),
            max(candidate_efficiencies),
            statistics.fmean(run_totals.gain for run_totals in candidate_totals) if candidate_totals else math.nan,
            candidate_totals[0].wire_ratio,
        )
        for (base, cf), candidate_efficiencies, candidate_totals in zip(candidates, efficiencies, totals, strict=True)
    ]


@contextmanager
def _restore_after_block(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore model, gradients, optimizer and random number generators to their present states when the block ends."""
    model_state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    optimizer_state = copy.deepcopy(optimizer.state_dict())
    was_training = model.training
    cuda_indices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(cuda_indices):
        try:
            yield
        finally:
            model.load_state_dict(model_state)
            optimizer.load_state_dict(optimizer_state)
            model.train(was_training)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
