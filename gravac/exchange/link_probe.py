# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures, in a fraction of a second, the speed of the link and of memory copies before the first step.

The link probe times a copy and a few all-reduces. A larger all-reduce is timed only if the smaller one was quick. With
these times, the controller starts its search near the best candidate. All speeds are measured again during training.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from gravac.collectives import AllReduce
from gravac.exchange.group import CPU, GroupTransport

ALL_REDUCE_BYTES = (65_536, 1_048_576, 8_388_608)
"""Sizes of the all-reduces to time, in bytes, smallest first. After an all-reduce that takes longer than
``LONG_SECONDS``, the larger ones are left out."""

LONG_SECONDS = 0.01
"""Duration of an all-reduce, in seconds: after one that takes longer, no larger all-reduce is timed."""

COPIED_BYTES = 8_388_608
"""Bytes of the tensor whose copy is timed."""


ALL_REDUCE_BYTES_ON_GPU, COPIED_BYTES_ON_GPU = (*ALL_REDUCE_BYTES, 33_554_432, 134_217_728), 268_435_456
"""Values that replace ``ALL_REDUCE_BYTES`` and ``COPIED_BYTES`` if gradients are on a GPU, in bytes."""


class LinkProbe(NamedTuple):
    """Measured speed of the link between ranks and of memory copies; the same numbers on every rank.

    Attributes:
        latency: seconds that a message of a few bytes takes from rank to rank.
        bandwidth: bits per second that a rank can send.
        copy_bytes_per_s: bytes per second at which a tensor is copied on the gradients' device.
    """

    latency: float
    bandwidth: float
    copy_bytes_per_s: float


def probe_link(
    transport: GroupTransport, device: torch.device = CPU, agreement: GroupTransport | None = None
) -> LinkProbe | None:
    """Measure the speed of the link; return ``None`` for a single rank. Called on every rank at the same point.

    1. Time an all-reduce of four bytes, for the latency.
    2. Time larger and larger all-reduces, until one takes longer than ``LONG_SECONDS`` (mean over ranks). The last one
       gives the bandwidth.
    3. Time a copy on each rank, and take the mean over ranks.
    4. If more ranks agree on decisions than average (HSDP), take the mean over all ranks that agree. Candidates and the
       order of exchanges depend on these numbers, and must be the same on all of these ranks.

    Args:
        transport: runs collectives over the ranks that average; no other collective may be in flight on it.
        device: device of the gradients. On a GPU, whose caches are large, more bytes are sent and copied.
        agreement: runs collectives over the ranks that agree, with no other collective in flight; ``None``: these are
            the ranks that average.
    """
    if transport.world == 1:
        return None
    sizes_to_time, copied_bytes = (
        (ALL_REDUCE_BYTES, COPIED_BYTES) if device.type == "cpu" else (ALL_REDUCE_BYTES_ON_GPU, COPIED_BYTES_ON_GPU)
    )

    def all_reduce_seconds(reduce_bytes: int, repeats: int = 1) -> float:
        """Return the shortest duration, in seconds, of ``repeats`` all-reduces of ``reduce_bytes`` bytes.

        An all-reduce that does not count comes first. It makes the ranks start together, and uses up the bytes that a
        link may send faster in a burst.
        """
        tensor = torch.zeros(reduce_bytes // 4, dtype=torch.float32, device=device)
        seconds = [
            _timed(lambda: transport.finish(transport.launch([AllReduce(tensor)])), device) for _ in range(1 + repeats)
        ]
        return min(seconds[1:])

    def mean_over_ranks(seconds: float, over_transport: GroupTransport = transport) -> float:
        (seconds_sum,) = over_transport.finish(
            over_transport.launch([AllReduce(torch.tensor([seconds], dtype=torch.float32, device=device))])
        )
        return float(seconds_sum) / over_transport.world

    smallest_reduce_s = mean_over_ranks(all_reduce_seconds(4, repeats=3))
    for reduce_bytes in sizes_to_time:
        seconds = mean_over_ranks(all_reduce_seconds(reduce_bytes))
        if seconds > LONG_SECONDS:
            break
    copy_source = torch.ones(copied_bytes // 4, dtype=torch.float32, device=device)
    copy_target = torch.ones_like(copy_source)
    copy_s = mean_over_ranks(min(_timed(lambda: copy_target.copy_(copy_source), device) for _ in range(3)))
    sent_bytes = AllReduce.wire_bytes(reduce_bytes, transport.world)
    # a time for ``reduce_bytes`` bytes, which may differ by group
    sending_s = max(seconds - smallest_reduce_s, seconds / 2, 1e-9)
    if agreement is not None:
        smallest_reduce_s, copy_s = mean_over_ranks(smallest_reduce_s, agreement), mean_over_ranks(copy_s, agreement)
        sending_s = sent_bytes * mean_over_ranks(sending_s / sent_bytes, agreement)
    return LinkProbe(
        latency=smallest_reduce_s / (2 * (transport.world - 1)),
        bandwidth=8 * sent_bytes / sending_s,
        copy_bytes_per_s=copied_bytes / max(copy_s, 1e-9),
    )


def _timed(timed_function: Callable[[], object], device: torch.device) -> float:
    """Call a function; return the seconds until it has returned and the device has finished its work."""
    began_s = time.perf_counter()
    timed_function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began_s
