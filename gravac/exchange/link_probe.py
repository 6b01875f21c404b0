# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Speed of link and machine, measured in a moment before the first step.

A few all-reduces, larger ones only while they are quick, and a copy. It tells a slow link from a fast one, which is
enough to know where a search should start; whatever depends on it is measured again while training.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from gravac.collectives import AllReduce
from gravac.exchange.group import CPU, GroupTransport

SIZES = (65_536, 1_048_576, 8_388_608)
"""Bytes of the all-reduces that are timed, smallest first; one that takes longer than ``LONG`` is the last."""

LONG = 0.01
"""Seconds of an all-reduce above which no larger one is tried."""

COPIED = 8_388_608
"""Bytes of the tensor whose copy is timed."""


SIZES_ON_GPU, COPIED_ON_GPU = (*SIZES, 33_554_432, 134_217_728), 268_435_456
"""The same on a GPU."""


class LinkProbe(NamedTuple):
    """Measured speed of link and machine, the same on every rank.

    Attributes:
        latency: seconds that a message takes, however small.
        bandwidth: bits per second that a rank's link carries.
        copy_bytes_per_s: bytes of a tensor over the seconds that copying it takes.
    """

    latency: float
    bandwidth: float
    copy_bytes_per_s: float


def probe_link(
    transport: GroupTransport, device: torch.device = CPU, agreement: GroupTransport | None = None
) -> LinkProbe | None:
    """Measure how fast the link is; ``None`` where there is one rank. Called on every rank at the same point.

    1. Time an all-reduce of four bytes: the latency.
    2. Time larger ones while they are quick; all ranks go by the mean over ranks. The last one gives the bandwidth.
    3. Time a copy on each rank, and take the mean over ranks.
    4. Where more ranks agree than average (HSDP), take the mean of their groups' seconds: what candidates there are,
       and what waits for what, follows from it.

    Args:
        transport: transport over the ranks that average; nothing else may be under way on it.
        device: where the gradients lie; on a GPU, whose caches are large, more is sent and copied.
        agreement: transport over the ranks that agree, likewise; ``None``: they are the same.
    """
    if transport.world == 1:
        return None
    sizes, copied = (SIZES, COPIED) if device.type == "cpu" else (SIZES_ON_GPU, COPIED_ON_GPU)

    def reduced(size: int, times: int = 1) -> float:
        """Return the seconds of an all-reduce, after one that lines up the ranks and uses up what a link has saved."""
        tensor = torch.zeros(size // 4, device=device)
        taken = [
            _timed(lambda: transport.finish(transport.launch([AllReduce(tensor)])), device) for _ in range(1 + times)
        ]
        return min(taken[1:])

    def mean_over_ranks(seconds: float, over: GroupTransport = transport) -> float:
        (total,) = over.finish(over.launch([AllReduce(torch.tensor([seconds], device=device))]))
        return float(total) / over.world

    least = mean_over_ranks(reduced(4, times=3))
    for size in sizes:
        seconds = mean_over_ranks(reduced(size))
        if seconds > LONG:
            break
    source = torch.ones(copied // 4, device=device)
    target = torch.ones_like(source)
    copying = mean_over_ranks(min(_timed(lambda: target.copy_(source), device) for _ in range(3)))
    sent = AllReduce.wire_bytes(size, transport.world)
    travelling = max(seconds - least, seconds / 2, 1e-9)  # of a size of its own in each group
    if agreement is not None:
        least, copying = mean_over_ranks(least, agreement), mean_over_ranks(copying, agreement)
        travelling = sent * mean_over_ranks(travelling / sent, agreement)
    return LinkProbe(
        latency=least / (2 * (transport.world - 1)),
        bandwidth=8 * sent / travelling,
        copy_bytes_per_s=copied / max(copying, 1e-9),
    )


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
