# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Four ranks of gloo that share the GPU: after twenty steps replicas are the same bit for bit, and so are decisions."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from gravac import AdaptiveCompressor, Compressor, Goodput, GraVAC, quantize, topk
from gravac.controllers.base import Controller
from tests.distributed.training import network, parallel, sgd
from tests.measure.gpu.parts import Row, attempts
from tests.measure.gpu.timing import GPU
from tests.ranks import PRELOADED, processes

WORLD, STEPS = 4, 20

CASES: dict[str, tuple[Compressor, Controller[Any]]] = {
    "topk, GraVAC": (topk, GraVAC(window=4, warmup=2, shadow_every=3, dwell=1)),
    "quantize(2), GraVAC": (quantize(2), GraVAC(window=4, warmup=2, shadow_every=3, dwell=1)),
    "topk, goodput": (topk, Goodput(window=5, trial=5)),
    "quantize(2), goodput": (quantize(2), Goodput(window=5, trial=5)),
}


def rows(device: torch.device = GPU) -> Iterator[Row]:
    yield from attempts({name: partial(same, *case, str(device)) for name, case in CASES.items()})


def same(base: Compressor, controller: Controller[Any], device: str, world: int = WORLD) -> Row:
    # what is imported before ranks are forked may look for GPUs, and CUDA does not outlive a fork
    preloaded = PRELOADED if device == "cpu" else ()
    ran = processes(replica, world, base, controller, device, timeout=60, preloaded=preloaded)
    weights, decisions = zip(*ran, strict=True)
    bits = all(torch.equal(one, weights[0]) for one in weights)
    agree = all(one == decisions[0] for one in decisions)
    finite = bool(weights[0].isfinite().all())
    row = {"replicas_equal": bits, "decisions_equal": agree, "finite": finite, "decisions": decisions[0]}
    return {**row, "met": bits and agree and finite}


def replica(
    rank: int, world: int, base: Compressor, controller: Controller[Any], device: str
) -> tuple[torch.Tensor, list[list[Any]]]:
    torch.manual_seed(rank)
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    ddp = parallel(network().to(where))
    optimizer = sgd(ddp)
    with AdaptiveCompressor(base, (2, 1000), controller=controller) as compressor:
        compressor.attach(ddp, optimizer)
        for _ in range(STEPS):
            x = torch.randn(16, 96, device=where)  # another on every rank
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(x), x[:, :10].argmax(1)).backward()
            optimizer.step()
        decisions = [[one.step, one.compressor, one.cf, one.changed] for one in compressor.history]
        _ = compressor.cf  # which waits
    return torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()]).cpu(), decisions
