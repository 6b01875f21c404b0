# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training steps of N ranks in one process, averaged by a compressor as it runs over a network."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from gravac.averaging.allocation import Curve, allocate
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Form, Piece, Plan
from gravac.collectives import AllReduce, Ledger
from gravac.compressors import Compressor, dense
from gravac.exchange import memory
from gravac.stepping.tensor_errors import TensorErrors

BELOW = 1024
"""Number of elements below which a tensor is not compressed."""


class Totals(NamedTuple):
    """Gain and wire ratio of all steps together, each a ratio of sums."""

    gain: float
    wire_ratio: float


def train(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int, int], torch.Tensor],
    base: Compressor,
    cf: float | Callable[[int], float | None] | None,
    feedback: float | None,
    ranks: int,
    steps: int,
    levels: tuple[float, ...] = (),
    survey_every: int = 50,
    first: int = 0,
    ramp: int = 20,
    after: Callable[[int], None] | None = None,
) -> Totals:
    """Train a model as N ranks would, and return the gain and the wire ratio.

    Args:
        model: model to train.
        optimizer: optimizer of the model.
        loss: function of ``(step, rank)`` that returns the training loss, a scalar tensor.
        base: compressor.
        cf: compression factor, or a function of the step that returns it; ``None`` is dense.
        feedback: share of what was not sent that is kept, in [0, 1]; ``None`` is the compressor's own.
        ranks: number of ranks, in one process.
        steps: number of steps.
        levels: CFs that a single tensor may get, when the bytes of ``cf`` are spent over the tensors by their curves;
            none leaves all tensors at ``cf``.
        survey_every: number of steps between two surveys of the curves.
        first: number of the first step.
        ramp: number of steps over which the learning rate rises to its own.
        after: function that is called with each step's number once the model is updated.
    """
    averagers = [Averager(base, dense, feedback, BELOW, Feedback()) for _ in range(ranks)]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, ranks
    ledgers = [Ledger(ranks) for _ in range(ranks)]
    parameters = dict(model.named_parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    error = whole = 0.0
    cfs: dict[str, float | None] = {}
    for step in range(first, first + steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (step - first + 1) / max(ramp, 1))
        gradients = []
        for rank in range(ranks):
            optimizer.zero_grad(set_to_none=True)
            loss(step, rank).backward()  # type: ignore[no-untyped-call]
            gradients.append({name: p.grad.clone() for name, p in parameters.items() if p.grad is not None})
        for averager in averagers:
            averager.begin()
        survey = levels if levels and (step + 1) % survey_every == 0 else ()
        now = cf(step) if callable(cf) else cf
        plan = averagers[0].plan(step, now, cfs=cfs, survey=survey)
        pieces = [[Piece(name, g.view(-1), tuple(g.shape)) for name, g in mine.items()] for mine in gradients]
        memory.run([averager.average(mine, plan) for averager, mine in zip(averagers, pieces, strict=True)], ledgers)
        if survey and now is not None:
            cfs = allocate(curves(averagers, plan, base), now)
        for averager in averagers:
            averager.commit()
            error, whole = error + float(averager.stats.error), whole + float(averager.stats.energy)
        for name, p in parameters.items():
            p.grad = gradients[0][name]
        optimizer.step()
        if after is not None:
            after(step)
    full = steps * AllReduce.wire_bytes(4 * sum(p.numel() for p in parameters.values()), ranks)
    return Totals(1 - error / whole if whole else 1.0, full / max(ledger.wire_bytes for ledger in ledgers))


def curves(averagers: list[Averager], plan: Plan, base: Compressor) -> dict[str, Curve]:
    """Return each tensor's curve of loss by bytes, from a survey over the ranks."""

    def wire_bytes(form: Form, cf: float | None) -> int:
        asked = averagers[0].traffic([form], dense if cf is None else base, 1.0 if cf is None else cf)
        return sum(traffic.wire_bytes(len(averagers)) for traffic in asked)

    surveys = [TensorErrors.of(averager.stats, plan.survey, 1.0, wire_bytes) for averager in averagers]
    surveyed = [survey for survey in surveys if survey is not None]
    return surveyed[0].curves(torch.stack([survey.vector() for survey in surveyed]).sum(0))
