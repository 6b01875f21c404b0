# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the speed of link and machine, before the first step, in a fraction of a second.

The link probe times a copy and a few all-reduces, larger ones only if the smaller were quick. These times distinguish
slow links from fast links, so that the controller's search starts near the best candidate. Training measures all
numbers again.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from gravac.collectives import AllReduce
from gravac.exchange.group import CPU, GroupTransport

ALL_REDUCE_BYTES = (65_536, 1_048_576, 8_388_608)
"""Bytes of the timed all-reduces, smallest first; none follows one that takes longer than ``LONG_SECONDS``."""

LONG_SECONDS = 0.01
"""Seconds of an all-reduce above which no larger all-reduce is tried."""

COPIED_BYTES = 8_388_608
"""Bytes of the tensor whose copy is timed."""


ALL_REDUCE_BYTES_ON_GPU, COPIED_BYTES_ON_GPU = (*ALL_REDUCE_BYTES, 33_554_432, 134_217_728), 268_435_456
"""``ALL_REDUCE_BYTES`` and ``COPIED_BYTES`` on a GPU."""


class LinkProbe(NamedTuple):
    """Measured speed of link and machine, the same on every rank.

    Attributes:
        latency: seconds that the smallest message takes.
        bandwidth: bits per second that a rank's link carries.
        copy_bytes_per_s: bytes per second at which a tensor is copied.
    """

    latency: float
    bandwidth: float
    copy_bytes_per_s: float


def probe_link(
    transport: GroupTransport, device: torch.device = CPU, agreement: GroupTransport | None = None
) -> LinkProbe | None:
    """Measure the speed of the link; return ``None`` for a single rank. Called on every rank at the same point.

    1. Time an all-reduce of four bytes, for the latency.
    2. Time larger all-reduces until one is slow, by the mean over ranks. The last all-reduce gives the bandwidth.
    3. Time a copy on each rank, and take the mean over ranks.
    4. If more ranks agree than average (HSDP), take the mean of their groups' seconds: candidates, and the order of
       exchanges, depend on these numbers and must be the same on all ranks that agree.

    Args:
        transport: transport over the ranks that average; nothing else may be in flight on it.
        device: device of the gradients. On a GPU, whose caches are large, more bytes are sent and copied.
        agreement: transport over the ranks that agree, with nothing else in flight; ``None``: the ranks that average.
    """
    if transport.world == 1:
        return None
    sizes, copied = (
        (ALL_REDUCE_BYTES, COPIED_BYTES) if device.type == "cpu" else (ALL_REDUCE_BYTES_ON_GPU, COPIED_BYTES_ON_GPU)
    )

    def reduced(size: int, times: int = 1) -> float:
        """Return the seconds of an all-reduce, after an untimed one that aligns the ranks and uses up a burst."""
        tensor = torch.zeros(size // 4, device=device)
        seconds = [
            _timed(lambda: transport.finish(transport.launch([AllReduce(tensor)])), device) for _ in range(1 + times)
        ]
        return min(seconds[1:])

    def mean_over_ranks(seconds: float, over: GroupTransport = transport) -> float:
        (total,) = over.finish(over.launch([AllReduce(torch.tensor([seconds], device=device))]))
        return float(total) / over.world

    smallest = mean_over_ranks(reduced(4, times=3))
    for size in sizes:
        seconds = mean_over_ranks(reduced(size))
        if seconds > LONG_SECONDS:
            break
    source = torch.ones(copied // 4, device=device)
    target = torch.ones_like(source)
    copying = mean_over_ranks(min(_timed(lambda: target.copy_(source), device) for _ in range(3)))
    sent = AllReduce.wire_bytes(size, transport.world)
    sending = max(seconds - smallest, seconds / 2, 1e-9)  # groups may have ended with different sizes
    if agreement is not None:
        smallest, copying = mean_over_ranks(smallest, agreement), mean_over_ranks(copying, agreement)
        sending = sent * mean_over_ranks(sending / sent, agreement)
    return LinkProbe(
        latency=smallest / (2 * (transport.world - 1)),
        bandwidth=8 * sent / sending,
        copy_bytes_per_s=copied / max(copying, 1e-9),
    )


def _timed(work: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
