# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the time of a step: compute, compression, and the part of the exchange that backward does not hide.

The network follows the alpha-beta model: a message takes latency + bytes / bandwidth. The exchange of a step is cut
into k equal buckets. All buckets but the last may be in flight while backward still runs:

    step = compute + compression + max(0, (k-1) t - overlap * backward) + t        t: exchange of one of k buckets

The time of compression is given as a number of copies of the bucket (``Machine.copies``). In addition, each round of
collectives of a bucket takes a fixed time (``Machine.start_s``). Backward never hides compression, because both need
the same device.

Sources: Agarwal et al., "On the Utility of Gradient Compression in Distributed Training Systems", MLSys 2022 (the shape
of the formula); Tyagi & Swany, "Flexible Communication for Optimal Distributed Learning over Unpredictable Networks",
2023 (costs of collectives).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gravac.collectives import AllGather, Kind
from gravac.compressors import Compressor, Dense
from gravac.costmodel.machine import Machine
from gravac.costmodel.network import Network, check, messages_of

Shape = tuple[int, ...]
"""Shape of a parameter."""


Format = Literal["float32", "float16", "bfloat16"]
"""Number format of tensors that are not compressed."""


BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients in a bucket; DDP's default."""


BACKWARD_FRACTION = 2 / 3
"""Fraction of a step's compute time that backward takes, since backward computes two matrix products for each matrix
product of forward."""


LOWEST_BANDWIDTH_BPS, HIGHEST_BANDWIDTH_BPS = 1e3, 1e13
"""Lowest and highest bandwidth between which ``break_even`` and ``crossing`` search, bits per second."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of a step, in seconds, and the bytes that each rank sends in the step.

    Attributes:
        step_s: time of the whole step.
        compute_s: time of forward, backward and optimizer.
        compress_s: time of encode and decode.
        exchange_s: total time of all collectives, hidden behind backward or not.
        exposed_s: part of ``exchange_s`` that backward does not hide.
        wire_bytes: bytes that one rank sends.
    """

    step_s: float
    compute_s: float
    compress_s: float
    exchange_s: float
    exposed_s: float
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """Work of a step: bytes to copy and to send, independent of the speed of machine and network.

    Attributes:
        compute_s: time of forward, backward and optimizer, seconds.
        copied_bytes: bytes whose copying takes as long as encode and decode of all tensors.
        starts: number of buckets, times the number of rounds of collectives in a bucket; 0 if nothing is compressed. A
            compressor has several rounds if a collective depends on the result of an earlier collective.
        messages: number of messages that one rank sends for a bucket, one after the other.
        bits: bits that one rank sends for a bucket.
        buckets: number of buckets.
        wire_bytes: bytes that one rank sends for all buckets.
    """

    compute_s: float
    copied_bytes: float
    starts: int
    messages: int
    bits: float
    buckets: int
    wire_bytes: int

    def over(self, network: Network, machine: Machine) -> Prediction:
        """Return the predicted times of a step with this work on a machine, over a network."""
        compress_s = self.copied_bytes / machine.copy_bytes_per_s + self.starts * machine.start_s
        bucket_s = self.messages * network.alpha + self.bits / network.bandwidth
        hideable_s = machine.overlap * BACKWARD_FRACTION * self.compute_s
        exposed_s = max(0.0, (self.buckets - 1) * bucket_s - hideable_s) + bucket_s
        return Prediction(
            step_s=self.compute_s + compress_s + exposed_s,
            compute_s=self.compute_s,
            compress_s=compress_s,
            exchange_s=self.buckets * bucket_s,
            exposed_s=exposed_s,
            wire_bytes=self.wire_bytes,
        )


def load(
    shapes: Sequence[Shape],
    compressor: Compressor | None,
    cf: float,
    compute_s: float,
    world: int,
    machine: Machine,
    buckets: int | None = None,
    dense: Format = "bfloat16",
    dense_below: int = 1024,
) -> Load:
    """Return the work of a step: bytes to copy and to send. ``predict`` explains arguments and exceptions."""
    check("compute_s", compute_s, compute_s > 0, "seconds, above 0")
    check("world", world, world >= 1, "ranks, 1 or more")
    check("cf", cf, cf >= 1, "a compression factor, 1 or more")
    if not shapes:
        raise ValueError("shapes: none are given; give the shape of every parameter")
    elements = sum(math.prod(shape) for shape in shapes)
    if buckets is None:
        buckets = max(1, min(len(shapes), round(4 * elements / BUCKET_BYTES)))
    check("buckets", buckets, buckets >= 1, "1 or more")
    if dense not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"dense: {dense!r} is not a number format; use float32, float16 or bfloat16")
    number_format = Dense(dtype=dense)
    payload_bytes: dict[tuple[int, Kind], int] = {}  # by round of collectives and kind
    copied_bytes, rounds = 0.0, 0
    for shape in shapes:
        size = math.prod(shape)
        is_small = compressor is None or (compressor.compresses and (len(shape) < 2 or size < dense_below))
        sender, sender_cf = (number_format, number_format.cf) if compressor is None or is_small else (compressor, cf)
        traffic = sender.traffic(shape, sender_cf, torch.float32, world)
        gathered = any(collective.kind is AllGather for collective in traffic)
        copied_bytes += 4 * size * machine.copies(sender, sender_cf, world, gathered)
        if sender.compresses:
            rounds = max(rounds, len(traffic))
        for round_index, collective in enumerate(traffic):
            payload_bytes[round_index, collective.kind] = (
                payload_bytes.get((round_index, collective.kind), 0) + collective.payload_bytes
            )
    messages_and_bytes = [messages_of(kind, payload, world) for (_, kind), payload in payload_bytes.items()]
    return Load(
        compute_s=compute_s,
        copied_bytes=copied_bytes,
        starts=buckets * rounds,
        messages=sum(messages for messages, _ in messages_and_bytes),
        bits=8 * sum(sent_bytes for _, sent_bytes in messages_and_bytes) / buckets,
        buckets=buckets,
        wire_bytes=sum(kind.wire_bytes(payload, world) for (_, kind), payload in payload_bytes.items()),
    )


def predict(
    shapes: Sequence[Shape],
    compressor: Compressor | None,
    cf: float,
    compute_s: float,
    world: int,
    network: Network,
    machine: Machine,
    buckets: int | None = None,
    dense: Format = "bfloat16",
    dense_below: int = 1024,
) -> Prediction:
    """Return the predicted times of a step, and the bytes that each rank sends in the step.

    Args:
        shapes: shapes of the parameters.
        compressor: compressor of the tensors that are large enough; ``None``: no tensor is compressed.
        cf: compression factor; ignored without a compressor.
        compute_s: time of forward, backward and optimizer, seconds.
        world: number of ranks.
        network: latency and bandwidth of each rank's link.
        machine: constants of each rank's machine, such as the costs of compression.
        buckets: number of buckets that the exchange is cut into; ``None``: a bucket for each 25 MiB of gradients.
        dense: number format of tensors that are not compressed.
        dense_below: number of elements below which a tensor is not compressed. A tensor of one dimension is never
            compressed.

    Raises:
        ValueError: an argument is out of range, or ``machine`` has no cost of the compressor; the message names it.
    """
    work = load(shapes, compressor, cf, compute_s, world, machine, buckets, dense, dense_below)
    return work.over(network, machine)


def break_even(
    shapes: Sequence[Shape],
    compressor: Compressor,
    cf: float,
    compute_s: float,
    world: int,
    machine: Machine,
    alpha: float = 50e-6,
    buckets: int | None = None,
    dense: Format = "bfloat16",
    dense_below: int = 1024,
) -> float | None:
    """Return the bandwidth, bits per second, below which compressed steps are shorter than dense steps.

    The search covers bandwidths from ``LOWEST_BANDWIDTH_BPS`` to ``HIGHEST_BANDWIDTH_BPS``. ``None`` if compressed
    steps are shorter at all of these bandwidths, or at none.

    Args:
        shapes: shapes of the parameters.
        compressor: compressor of the tensors that are large enough.
        cf: compression factor.
        compute_s: time of forward, backward and optimizer, seconds.
        world: number of ranks.
        machine: constants of each rank's machine, such as the costs of compression.
        alpha: latency of a message, seconds.
        buckets: number of buckets that the exchange is cut into; ``None``: a bucket for each 25 MiB of gradients.
        dense: number format of tensors that are not compressed; dense steps send all tensors in this format.
        dense_below: number of elements below which a tensor is not compressed. A tensor of one dimension is never
            compressed.

    Raises:
        ValueError: an argument is out of range, or ``machine`` has no cost of the compressor; the message names it.
    """
    dense_load = load(shapes, None, 1, compute_s, world, machine, buckets, dense, dense_below)
    compressed_load = load(shapes, compressor, cf, compute_s, world, machine, buckets, dense, dense_below)

    def is_shorter(bandwidth: float) -> bool:
        network = Network(alpha, bandwidth)
        return compressed_load.over(network, machine).step_s < dense_load.over(network, machine).step_s

    return crossing(is_shorter)


def crossing(wins: Callable[[float], bool]) -> float | None:
    """Return the bandwidth, bits per second, at which ``wins`` turns from true to false, found by bisection.

    The search covers bandwidths from ``LOWEST_BANDWIDTH_BPS`` to ``HIGHEST_BANDWIDTH_BPS``. ``None`` if ``wins`` is
    true at both ends, or false at the lower end.

    Args:
        wins: function of a bandwidth in bits per second; true below some bandwidth, and false above.
    """
    lower_bps, higher_bps = LOWEST_BANDWIDTH_BPS, HIGHEST_BANDWIDTH_BPS
    if not wins(lower_bps) or wins(higher_bps):
        return None
    while higher_bps / lower_bps > 1.0001:
        middle_bps = math.sqrt(lower_bps * higher_bps)
        lower_bps, higher_bps = (middle_bps, higher_bps) if wins(middle_bps) else (lower_bps, middle_bps)
    return math.sqrt(lower_bps * higher_bps)
