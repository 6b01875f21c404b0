# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step takes: compute, compression, and the part of the exchange that backward does not hide.

The network is alpha-beta: each message costs a latency and its bytes over the bandwidth. A step's exchange is cut into
equal buckets; all but the last may travel while backward still runs:

    step = compute + compression + max(0, (k-1) t - overlap * backward) + t        t: exchange of one of k buckets

Compression is never hidden, because it contends with backward for the same device. Sources: Agarwal et al., "On the
Utility of Gradient Compression in Distributed Training Systems", MLSys 2022 (the shape of the formula); Tyagi & Swany,
"Flexible Communication for Optimal Distributed Learning over Unpredictable Networks", 2023 (costs of collectives).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Kind, Traffic
from gravac.compressors import Compressor, Dense

Shape = tuple[int, ...]
Format = Literal["float32", "float16", "bfloat16"]
Costs = Mapping[str, Sequence[tuple[float, float, float]]]
"""By compressor: (CF, encode, decode at ``MEASURED_WORLD`` ranks), ascending by CF, in copies of the tensor."""

BUCKET_BYTES = 25 * 2**20
"""Gradient bytes of a bucket: DDP's default."""

BACKWARD = 2 / 3
"""Share of compute that is backward: it does two products where forward does one."""

MEASURED_WORLD = 2
"""Ranks at which ``COSTS`` was measured."""

SIXTEEN_BIT_COPIES = 2.02
"""Copies that converting to 16 bit and back costs; docs/measurements/compressors.json, ``torch fp16``."""

LOWEST, HIGHEST = 1e3, 1e13
"""Bandwidths between which ``break_even`` looks, bits per second."""

COSTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "topk": ((10, 10.75, 9.18), (100, 5.9, 3.46), (1000, 4.19, 1.65)),
    "topkc": ((10, 2.81, 3.84), (100, 2.74, 2.07), (1000, 2.67, 1.65)),
    "randomk": ((10, 20.1, 5.33), (100, 3.52, 3.53), (1000, 1.95, 1.7)),
    "scaled_randomk": ((10, 17.72, 2.62), (100, 2.64, 1.91), (1000, 1.41, 0.82)),
    "artopk": ((10, 8.52, 7.38), (100, 5.68, 3.82), (1000, 4.02, 1.72)),
    "dgc": ((10, 26.25, 13.49), (100, 15.27, 12.22), (1000, 11.24, 7.96)),
    "redsync": ((10, 116.8, 8.86), (100, 111.1, 3.83), (1000, 69.74, 1.53)),
    "sidco": ((10, 116.22, 9.48), (100, 140.84, 2.86), (1000, 162.91, 1.46)),
    "hard_threshold": ((10, 20.38, 8.97), (100, 14.35, 2.72), (1000, 13.37, 1.57)),
    "powersgd": ((10, 17.63, 70.06), (100, 5.73, 33.45), (1000, 3.25, 29.72)),
    "quantize": ((4, 8.32, 5.52), (8, 13.93, 7.79), (10.667, 16.83, 9.55), (16, 13.9, 6.78), (32, 6.23, 5.26)),
    "thc": ((8, 1.39, 23.29),),
    "qsgd": ((8, 74.93, 78.47),),
    "terngrad": ((16, 71, 36.52),),
    "natural": ((4, 103.85, 109.47),),
    "intsgd": ((4, 20.31, 62.23),),
    "signsgd": ((32, 7.9, 63.57),),
    "majority": ((32, 3.98, 8.09),),
    "ladder": (
        (2, 1.21, 0.86),  # to CF 28 as 16 bit and quantize
        (3.94, 8.32, 5.52),
        (7.76, 13.93, 7.79),
        (10.24, 16.83, 9.55),
        (15.06, 13.9, 6.78),
        (28.44, 6.23, 5.26),
        (113.78, 1.85, 5.39),
        (910.22, 1.6, 2.07),
    ),
}
"""Measured on a CPU: docs/measurements/compressors.json. What a GPU takes in copies of its own may differ much."""


@dataclass(frozen=True, slots=True)
class Network:
    """Every rank's link.

    Attributes:
        alpha: latency of a message, seconds.
        bandwidth: bits per second per rank, each way.
    """

    alpha: float
    bandwidth: float

    def __post_init__(self) -> None:
        _check("alpha", self.alpha, self.alpha >= 0, "seconds, 0 or more")
        _check("bandwidth", self.bandwidth, self.bandwidth > 0, "bits per second, above 0")


@dataclass(frozen=True, slots=True)
class Machine:
    """What compressing costs, and how much of an exchange can hide.

    Attributes:
        copy_bytes_per_s: bytes of a tensor over the seconds that copying it takes.
        overlap: share of backward behind which the exchange can hide, 0 to 1.
        costs: see ``Costs``; between CFs interpolated in log CF, beyond them the nearest.
        per_rank: whether the decode of an all-gather grows with the ranks, less what it costs at the highest CF
            measured (at most a copy and a half); otherwise costs are as given at any number of ranks.
    """

    copy_bytes_per_s: float
    overlap: float = 0.9
    costs: Costs = field(default_factory=lambda: COSTS)
    per_rank: bool = True

    def __post_init__(self) -> None:
        _check("copy_bytes_per_s", self.copy_bytes_per_s, self.copy_bytes_per_s > 0, "bytes per second, above 0")
        _check("overlap", self.overlap, 0 <= self.overlap <= 1, "a share, 0 to 1")

    def copies(self, compressor: str, cf: float, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """What encoding and decoding a tensor costs, in copies of it.

        Args:
            compressor: its name.
            cf: compression factor.
            world: ranks.
            gathered: whether every rank decodes what all ranks have sent.

        Raises:
            ValueError: there is no cost of that compressor.
        """
        rows = self.costs.get(compressor)
        if not rows:
            known = ", ".join(sorted(self.costs))
            raise ValueError(
                f"compressor: no measured cost of {compressor!r}; measured are {known}; give Machine(costs=...) its own"
            )
        at = np.log([row[0] for row in rows])
        encode = float(np.interp(math.log(cf), at, [row[1] for row in rows]))
        decode = float(np.interp(math.log(cf), at, [row[2] for row in rows]))
        if not gathered or not self.per_rank:
            return encode + decode
        fixed = min(1.5, rows[-1][2], decode)
        return encode + fixed + (decode - fixed) * world / MEASURED_WORLD


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step, in seconds.

    Attributes:
        step_s: all of it.
        compute_s: forward, backward and optimizer.
        compress_s: encode and decode.
        exchange_s: all collectives, one after the other.
        exposed_s: what of that backward does not hide.
        wire_bytes: bytes one rank sends.
    """

    step_s: float
    compute_s: float
    compress_s: float
    exchange_s: float
    exposed_s: float
    wire_bytes: int


def collective_seconds(kind: Kind, payload_bytes: float, world: int, network: Network, tree: bool = False) -> float:
    """Seconds of one collective.

    All-reduce: a ring, ``2(N-1)`` messages of ``B/N``; as a tree, up and down, ``2 ceil(log2 N)`` messages of ``B``.
    All-gather: a ring, ``N-1`` messages of ``B``. All-to-all: ``N-1`` messages of ``B/N``. Broadcast: a binomial tree,
    ``ceil(log2 N)`` messages of ``B``.

    Args:
        kind: the collective's class.
        payload_bytes: bytes one rank hands over.
        world: ranks.
        network: of every rank.
        tree: all-reduce by a tree.

    Raises:
        ValueError: a size is out of range; names it.
    """
    _check("payload_bytes", payload_bytes, payload_bytes >= 0, "bytes, 0 or more")
    _check("world", world, world >= 1, "ranks, 1 or more")
    messages, sent = _messages(kind, payload_bytes, world, tree)
    return messages * network.alpha + 8 * sent / network.bandwidth


def _messages(kind: Kind, payload: float, world: int, tree: bool = False) -> tuple[int, float]:
    """Messages one after the other, and the bytes in all of them."""
    depth = (world - 1).bit_length()
    if tree and kind is AllReduce:
        return 2 * depth, 2 * depth * payload
    if kind is AllReduce:
        return 2 * (world - 1), 2 * (world - 1) / world * payload
    if kind is AllGather:
        return world - 1, (world - 1) * payload
    if kind is AllToAll:
        return world - 1, (world - 1) / world * payload
    if kind is Broadcast:
        return depth, depth * payload
    raise ValueError(f"kind: {kind!r} is no collective; use AllReduce, AllGather, AllToAll or Broadcast")


@dataclass(frozen=True, slots=True)
class Load:
    """What a step puts on a machine and a network, whatever the network's figures: a prediction's first half.

    Attributes:
        compute_s: seconds.
        compress_s: seconds.
        messages: one after the other, in each bucket.
        bits: sent by one rank, in each bucket.
        buckets: number of them.
        wire_bytes: sent by one rank in all.
    """

    compute_s: float
    compress_s: float
    messages: int
    bits: float
    buckets: int
    wire_bytes: int

    def over(self, network: Network, overlap: float) -> Prediction:
        """The step over a network."""
        bucket = self.messages * network.alpha + self.bits / network.bandwidth
        exposed = max(0.0, (self.buckets - 1) * bucket - overlap * BACKWARD * self.compute_s) + bucket
        return Prediction(
            step_s=self.compute_s + self.compress_s + exposed,
            compute_s=self.compute_s,
            compress_s=self.compress_s,
            exchange_s=self.buckets * bucket,
            exposed_s=exposed,
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
    """See ``predict``, whose arguments these are."""
    _check("compute_s", compute_s, compute_s > 0, "seconds, above 0")
    _check("world", world, world >= 1, "ranks, 1 or more")
    _check("cf", cf, cf >= 1, "a compression factor, 1 or more")
    if not shapes:
        raise ValueError("shapes: none given (got []); give the shape of every parameter")
    elements = sum(math.prod(shape) for shape in shapes)
    if buckets is None:
        buckets = max(1, min(len(shapes), round(4 * elements / BUCKET_BYTES)))
    _check("buckets", buckets, buckets >= 1, "1 or more")
    if dense not in ("float32", "float16", "bfloat16"):
        raise ValueError(f"dense: {dense!r} is no number format; use float32, float16 or bfloat16")
    if isinstance(compressor, Dense):
        dense = compressor.dtype
        compressor = None
    number_format = Dense(dtype=dense)
    payloads: dict[tuple[int, Kind], int] = {}
    copied = 0.0
    for shape in shapes:
        size = math.prod(shape)
        if compressor is None or len(shape) < 2 or size < dense_below:
            traffic: tuple[Traffic, ...] = number_format.traffic(shape, number_format.cf, torch.float32, world)
            copies = 0.0 if dense == "float32" else SIXTEEN_BIT_COPIES
        else:
            traffic = compressor.traffic(shape, cf, torch.float32, world)
            gathered = any(sent.kind is AllGather for sent in traffic)
            copies = machine.copies(compressor.name, cf, world, gathered)
        copied += 4 * size * copies
        for turn, sent in enumerate(traffic):
            payloads[turn, sent.kind] = payloads.get((turn, sent.kind), 0) + sent.payload_bytes
    messages = sum(_messages(kind, 0, world)[0] for _, kind in payloads)
    sent_bytes = sum(_messages(kind, payload, world)[1] for (_, kind), payload in payloads.items())
    return Load(
        compute_s=compute_s,
        compress_s=copied / machine.copy_bytes_per_s,
        messages=messages,
        bits=8 * sent_bytes / buckets,
        buckets=buckets,
        wire_bytes=sum(kind.wire_bytes(payload, world) for (_, kind), payload in payloads.items()),
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
    """A step's time.

    Args:
        shapes: of the parameters.
        compressor: of the tensors that are large enough; ``None`` for none of them.
        cf: compression factor; of no meaning without a compressor.
        compute_s: forward, backward and optimizer, seconds.
        world: ranks.
        network: between them.
        machine: of each of them.
        buckets: into which the exchange is cut; ``None`` for one of each 25 MiB of gradients.
        dense: number format of what is not compressed.
        dense_below: tensors of fewer elements, and all of one dimension, are not compressed.

    Raises:
        ValueError: an argument is out of range, or the machine knows no cost of the compressor; names it.
    """
    held = load(shapes, compressor, cf, compute_s, world, machine, buckets, dense, dense_below)
    return held.over(network, machine.overlap)


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured step: the arguments of ``predict``, and what it took.

    Attributes:
        shapes: see ``predict``, as are the others.
        step_s: measured, seconds.
    """

    shapes: Sequence[Shape]
    compressor: Compressor | None
    cf: float
    compute_s: float
    world: int
    step_s: float
    buckets: int | None = None
    dense: Format = "bfloat16"
    dense_below: int = 1024

    def load(self, machine: Machine) -> Load:
        """What it put on a machine and a network."""
        return load(
            self.shapes,
            self.compressor,
            self.cf,
            self.compute_s,
            self.world,
            machine,
            self.buckets,
            self.dense,
            self.dense_below,
        )


def fit(observations: Sequence[Observation], machine: Machine | None = None) -> tuple[Network, Machine]:
    """Latency, bandwidth and overlap that explain measured steps best.

    Least squares of the errors relative to the steps measured. For a given overlap, and given which exchanges stick
    out of backward, the step is linear in latency and 1 / bandwidth; the overlap is searched.

    Args:
        observations: of more than one rank, at least three; to tell the three apart they must differ in bytes, in
            buckets or ranks, and some must be partly hidden.
        machine: its speed and costs are taken as they are; default: what ``COSTS`` was measured on.

    Raises:
        ValueError: too few observations, or no bandwidth explains them.
    """
    machine = machine or Machine(14e9)
    rows = [observation for observation in observations if observation.world > 1]
    if len(rows) < 3:
        raise ValueError(f"observations: {len(rows)} of more than one rank, fewer than 3; measure more steps")
    for row in rows:
        _check("step_s", row.step_s, row.step_s > 0, "seconds, above 0")
    loads = [row.load(machine) for row in rows]
    measured = np.array([row.step_s for row in rows])
    spent = np.array([held.compute_s + held.compress_s for held in loads])
    hideable = BACKWARD * np.array([held.compute_s for held in loads])
    buckets = np.array([held.buckets for held in loads], dtype=float)
    # in gigabits, so that the columns are of like size
    columns = np.array([[held.messages, held.bits * 1e-9] for held in loads])

    def solve(overlap: float) -> tuple[float, npt.NDArray[np.float64]]:
        """The error left, and (alpha, seconds per gigabit)."""
        best = (math.inf, np.zeros(2))
        for start in (np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)):
            exposed = start
            for _ in range(30):
                times = np.where(exposed, buckets, 1.0)
                wanted = measured - spent + np.where(exposed, overlap * hideable, 0.0)
                answer = _not_negative(columns * (times / measured)[:, None], wanted / measured)
                bucket = columns @ answer
                step = spent + np.maximum(0.0, (buckets - 1) * bucket - overlap * hideable) + bucket
                left = float((((step - measured) / measured) ** 2).sum())
                if left < best[0]:
                    best = (left, answer)
                now = (buckets - 1) * bucket > overlap * hideable
                if bool((now == exposed).all()):
                    break
                exposed = now
        return best

    span, width = np.linspace(0, 1, 51), 0.02
    found = min(span, key=lambda overlap: solve(float(overlap))[0])
    for _ in range(4):
        span = np.clip(np.linspace(found - width, found + width, 21), 0, 1)
        found = min(span, key=lambda overlap: solve(float(overlap))[0])
        width /= 10
    alpha, per_gigabit = solve(float(found))[1]
    if per_gigabit <= 0:
        raise ValueError(
            "observations: steps do not take longer with more bytes, so no bandwidth explains them; measure over a "
            "slower link, or steps that send more"
        )
    return (
        Network(float(alpha), 1e9 / float(per_gigabit)),
        Machine(machine.copy_bytes_per_s, float(found), machine.costs, machine.per_rank),
    )


def _not_negative(columns: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares of two columns with no answer below 0."""
    both = np.linalg.lstsq(columns, wanted, rcond=None)[0]
    if (both >= 0).all():
        return np.asarray(both)
    answers = []
    for one in range(2):
        answer = np.zeros(2)
        square = float(columns[:, one] @ columns[:, one])
        answer[one] = max(0.0, float(columns[:, one] @ wanted) / square) if square else 0.0
        answers.append(answer)
    return min(answers, key=lambda answer: float(((columns @ answer - wanted) ** 2).sum()))


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
    """The bandwidth below which a step with the compressor is shorter than one in 16 bit; bits per second.

    ``None`` where it is so at no bandwidth between ``LOWEST`` and ``HIGHEST``, or at all of them.

    Args:
        shapes: of the parameters.
        compressor: of the tensors that are large enough.
        cf: compression factor.
        compute_s: forward, backward and optimizer, seconds.
        world: ranks.
        machine: of each of them.
        alpha: latency of a message, seconds.
        buckets: see ``predict``.
        dense: the 16-bit format, or whatever else it is to be compared with; see ``predict``.
        dense_below: see ``predict``.

    Raises:
        ValueError: see ``predict``.
    """
    sixteen = load(shapes, None, 1, compute_s, world, machine, buckets, dense, dense_below)
    other = load(shapes, compressor, cf, compute_s, world, machine, buckets, dense, dense_below)

    def wins(bandwidth: float) -> bool:
        network = Network(alpha, bandwidth)
        return other.over(network, machine.overlap).step_s < sixteen.over(network, machine.overlap).step_s

    low, high = LOWEST, HIGHEST
    if not wins(low) or wins(high):
        return None
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if wins(middle) else (low, middle)
    return math.sqrt(low * high)


def _check(name: str, value: float, right: bool, allowed: str) -> None:
    if not right or not math.isfinite(value):
        raise ValueError(f"{name}: {value!r} is out of range; give {allowed}")
