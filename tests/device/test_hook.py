# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""DDP's real hook with streams under it, on CPU tensors: the thread's bits, and the host looks at nothing."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from gravac import AdaptiveCompressor, Compressor, Static, dense, powersgd, quantize, topk
from gravac.compressors.profile import CODING_BYTES_PER_ELEMENT
from gravac.engine import coalescing
from tests.device.idle import streams
from tests.ranks import is_gravacs, processes

LOOKS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal")


class Looks(TorchDispatchMode):
    """Notes where gravac reads data, but for compressors, whose ways on a CPU are not those on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.split("::")[1] in LOOKS:
            frame = sys._getframe(1)
            while frame is not None and not is_gravacs(frame.f_code.co_filename):
                frame = frame.f_back  # type: ignore[assignment]
            if frame is not None and "/compressors/" not in frame.f_code.co_filename:
                self.seen.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return func(*args, **(kwargs or {}))


def trained(
    rank: int, world: int, base: Compressor, cf: float, by_streams: bool, largest: int = coalescing.MAX_SEGMENT_ELEMENTS
) -> tuple[list[torch.Tensor], list[str], int]:
    """Weights after some steps, where data was looked at, and how often the host waited."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    coalescing.MAX_SEGMENT_ELEMENTS, coalescing.MAX_CODING_BYTES = largest, largest * CODING_BYTES_PER_ELEMENT
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    looks = Looks()
    opening: Any = streams(rank) if by_streams else contextlib.nullcontext([])
    with opening as made, AdaptiveCompressor(base, (1, 100), controller=Static(cf=cf), native=False) as compressor:
        compressor.attach(ddp, optimizer)
        for step in range(8):
            optimizer.zero_grad()
            draws = torch.Generator().manual_seed(10 * step + rank)
            loss = ddp(torch.randn(4, 64, generator=draws)).square().mean()
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
        assert waits == 8  # once in each step, for the decision that was made in the last


def whole_and_in_parts(rank: int, world: int, by_streams: bool) -> list[list[torch.Tensor]]:
    # parts of a tensor each, and the first bucket is the whole model
    return [
        trained(rank, world, topk, 10.0, by_streams, largest)[0] for largest in (coalescing.MAX_SEGMENT_ELEMENTS, 64)
    ]


@pytest.mark.parametrize("by_streams", [False, True])
def test_buckets_are_compressed_in_parts_to_the_same_bits(by_streams: bool) -> None:
    for whole, parts in processes(whole_and_in_parts, 2, by_streams):
        assert all(map(torch.equal, whole, parts))
