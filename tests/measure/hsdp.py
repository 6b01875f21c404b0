# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What models in shards exchange over their replicas, remember, and hide behind backward: four ranks, two replicas.

    python -m tests.measure.hsdp [--json FILE]

A model of eight blocks, each a unit, is trained for fifty steps by torch's own HSDP and with each method of gravac.
The last two methods make outer steps, whose exchange does not run during backward.
Bytes over the replicas are those that a rank sends in a step by gravac's count, natively by torch's flight recorder.
Bytes within a replica are those that a rank gives to torch's collectives in a step, by the flight recorder. A unit has
*left* when its gradients were handed to the exchange, and is *done* when they hold the mean. Backward lasts until the
last unit has left; medians are of the last thirty steps. Ranks and their exchanges share the cores of one machine.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from gravac import AdaptiveCompressor, Static
from gravac.compressors import Compressor, ladder, powersgd, quantize, topk
from gravac.engine.engine import Engine
from tests import flight_recorder
from tests.hsdp.training import mesh_of
from tests.measure.results import write
from tests.ranks import processes

STEPS, TIMED = 50, 30

WIDTH, BLOCKS, BATCH = 192, 8, 64

METHODS: dict[str, Callable[[], AdaptiveCompressor | None]] = {
    "native HSDP": lambda: None,
    "dense": lambda: _fixed(quantize, 1),
    "16 bit": lambda: _fixed(ladder, 2),
    "4 bits": lambda: _fixed(quantize, 8),
    "4 bits, bfloat16 residuals": lambda: _fixed(quantize, 8, error_feedback=1.0, residual_dtype="bfloat16"),
    "1 bit": lambda: _fixed(quantize, 32),
    "low rank": lambda: _fixed(powersgd, 16),
    "top-k": lambda: _fixed(topk, 50),
    "top-k, bfloat16 residuals": lambda: _fixed(topk, 50, residual_dtype="bfloat16"),
    "as it comes": AdaptiveCompressor,
    "dense every 10": lambda: AdaptiveCompressor(quantize, controller=Static(cf=1), every=10),
    "4 bits every 10": lambda: AdaptiveCompressor(quantize, controller=Static(cf=8), every=10),
}
"""Compressors by the names of methods; ``None``: torch exchanges."""


def _fixed(base: Compressor, cf: float, **settings: Any) -> AdaptiveCompressor:
    return AdaptiveCompressor(base, controller=Static(cf=cf), native=False, **settings)


class Moments:
    """Moments at which units left, and were done, in each backward.

    Attributes:
        began: moment at which the backward began, in seconds.
        left: moments since then at which a unit was handed over.
        done: moments since then at which a unit held its mean.
    """

    def __init__(self, engine: Engine) -> None:
        self.began = 0.0
        self.left: list[float] = []
        self.done: list[float] = []
        exchange = engine.exchange

        def noting(*pieces: Any, **settings: Any) -> Any:
            self.left.append(time.perf_counter() - self.began)
            handle = exchange(*pieces, **settings)
            handle.then(lambda failure: self.done.append(time.perf_counter() - self.began))
            return handle

        engine.exchange = noting  # type: ignore[method-assign]

    def start(self) -> None:
        """Begin a backward."""
        self.began = time.perf_counter()
        self.left.clear()
        self.done.clear()


def trained(rank: int, world: int, method: str) -> dict[str, Any]:
    """Train with a method, and return what it came to on this rank."""
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(BLOCKS)]
    model, mesh = torch.nn.Sequential(*blocks, torch.nn.Linear(WIDTH, 8)), mesh_of(2)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compressor = METHODS[method]()
    moments = None
    if compressor is not None:
        compressor.attach(model, optimizer)
        moments = Moments(compressor._engine)
    chance = torch.Generator().manual_seed(rank)
    directions = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))
    losses, steps_s, shares = [], [], []
    started_at = flight_recorder.newest()
    for step in range(STEPS):
        labels = torch.randint(8, (BATCH,), generator=chance)
        inputs = directions[labels] + 2 * torch.randn(BATCH, WIDTH, generator=chance)
        began = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.register_hook(lambda gradient: None if moments is None else moments.start())
        loss.backward()
        if moments is not None and step >= STEPS - TIMED and moments.left:
            whole = moments.left[-1]
            shares.append(([left / whole for left in moments.left], [done / whole for done in moments.done]))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        steps_s.append(time.perf_counter() - began)
    shards = sum(parameter.to_local().numel() for parameter in model.parameters())  # type: ignore[attr-defined]
    found: dict[str, Any] = {
        "loss": statistics.mean(losses[-5:]),
        "step_ms": 1e3 * statistics.median(steps_s[-TIMED:]),
        "shard_bytes": _recorded_bytes(mesh, "shard", started_at),
        "replica_bytes": _recorded_bytes(mesh, "replicate", started_at),
    }
    if compressor is not None:
        residuals = compressor._engine.averager.feedback.residual.values()
        found |= {
            "replica_bytes": compressor.ledger.wire_bytes / STEPS,
            "residual_bytes_per_parameter": sum(each.nbytes for each in residuals) / shards,
            "first_left_share": statistics.median(left[0] for left, _ in shares) if shares else None,
            "done_in_backward": statistics.median(sum(share < 1 for share in done) for _, done in shares)
            if shares
            else None,
            "units": statistics.median(len(left) for left, _ in shares) if shares else None,
        }
        compressor.close()
    dist.barrier()
    return found


def _recorded_bytes(mesh: DeviceMesh, dimension: str, after: int) -> float:
    """Return the bytes of a step that this rank gave to torch's collectives along a dimension of the mesh.

    In an all-reduce of two ranks, such as that of the replicas, a rank sends as many bytes.

    Args:
        mesh: mesh of two replicas of two shards.
        dimension: name of the dimension.
        after: number of the last collective before the first step.
    """
    return sum(each.input_bytes for each in flight_recorder.collectives_of(mesh.get_group(dimension), after)) / STEPS


def measured(method: str) -> dict[str, Any]:
    """Return a row: means over the ranks."""
    ranks = processes(trained, 4, method)
    means = {
        name: None if ranks[0][name] is None else statistics.mean(rank[name] for rank in ranks) for name in ranks[0]
    }
    return {"method": method, "steps": STEPS, **means}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    os.environ["TORCH_FR_BUFFER_SIZE"] = "20000"  # collectives that ranks keep: all of a run
    write([measured(method) for method in METHODS], parser.parse_args(arguments).json)


if __name__ == "__main__":
    main()
