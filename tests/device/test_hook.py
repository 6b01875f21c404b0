# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""DDP's real hook with streams under it, on CPU tensors: the thread's bits, and the host looks at nothing."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import gravac.adaptive
from gravac import AdaptiveCompressor, Compressor, Static, dense, powersgd, quantize, topk
from gravac.exchange.group import GroupTransport
from gravac.exchange.opening import Opened
from gravac.exchange.streams import StreamExecutor
from tests.device.idle import Idle
from tests.ranks import processes

LOOKS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")


class Looks(TorchDispatchMode):
    """Notes where gravac reads data, but for compressors, whose ways on a CPU are not those on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.split("::")[1] in LOOKS:
            frame = sys._getframe(1)
            while frame is not None and "/gravac/" not in frame.f_code.co_filename:
                frame = frame.f_back  # type: ignore[assignment]
            if frame is not None and "/compressors/" not in frame.f_code.co_filename:
                self.seen.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return func(*args, **(kwargs or {}))


def trained(
    rank: int, world: int, base: Compressor, cf: float, streams: bool, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[str], int]:
    """Weights after some steps, where data was looked at, and how often the host waited."""
    made: list[StreamExecutor] = []
    moments = random.Random(rank)

    def opened(device: Any, group: Any, *_: Any) -> Opened:
        made.append(StreamExecutor(GroupTransport(group), Idle(torch.device("cpu"), lambda: moments.expovariate(1.0))))
        return Opened(made[0])

    if streams:
        gravac.adaptive.open_executor = opened
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(dtype)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    looks = Looks()
    with AdaptiveCompressor(base, (1, 100), controller=Static(cf=cf)) as compressor:
        compressor.attach(ddp, optimizer)
        for step in range(8):
            optimizer.zero_grad()
            draws = torch.Generator().manual_seed(10 * step + rank)
            loss = ddp(torch.randn(4, 64, generator=draws).to(dtype)).square().mean()
            with looks:
                loss.backward()
            optimizer.step()
        waits = made[0].host_waits if made else 0
        weights = [p.detach().clone() for p in model.parameters()]
    return weights, looks.seen, waits


@pytest.mark.parametrize(
    ("base", "cf"), [(dense, 1.0), (topk, 10.0), (quantize(4), 8.0), (powersgd, 8.0)], ids=lambda one: str(one)[:12]
)
def test_the_hook_gives_the_same_bits_and_looks_at_nothing(base: Compressor, cf: float) -> None:
    by_thread = processes(trained, 2, base, cf, False)
    by_streams = processes(trained, 2, base, cf, True)
    for (want, _, _), (weights, looks, waits) in zip(by_thread, by_streams, strict=True):
        assert all(map(torch.equal, want, weights))
        assert looks == []
        assert waits == 7  # once in each step but the first


def test_narrow_buckets_go_the_same_way() -> None:
    (one, looks, _), (other, _, _) = processes(trained, 2, topk, 10.0, True, torch.bfloat16)
    assert all(map(torch.equal, one, other))
    assert looks == []


def refused(rank: int, world: int, executor: str) -> str:
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    try:
        AdaptiveCompressor(executor=executor).attach(model)
    except RuntimeError as failure:
        return str(failure)
    return "" if dist.is_initialized() else "no group"


def test_streams_without_nccl_are_refused_by_name() -> None:
    (said,) = processes(refused, 1, "stream")
    assert 'executor: "stream"' in said
    assert "gloo carries cpu tensors" in said
    assert processes(refused, 1, "thread") == [""]
