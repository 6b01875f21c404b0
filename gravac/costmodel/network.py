# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Seconds of collectives in the alpha-beta model: a message takes a latency, plus its bytes / the bandwidth."""

import math
from dataclasses import dataclass

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Kind


@dataclass(frozen=True, slots=True)
class Network:
    """The speed of the network, the same for every rank.

    Attributes:
        alpha: latency of a message, seconds.
        bandwidth: bits per second per rank, each way.
    """

    alpha: float
    bandwidth: float

    def __post_init__(self) -> None:
        check("alpha", self.alpha, self.alpha >= 0, "seconds, 0 or more")
        check("bandwidth", self.bandwidth, self.bandwidth > 0, "bits per second, above 0")


def collective_seconds(kind: Kind, payload_bytes: float, world: int, network: Network, tree: bool = False) -> float:
    """Return the seconds that one collective takes.

    All-reduce: a ring, ``2(N-1)`` messages of ``B/N``; as a tree, up and down, ``2 ceil(log2 N)`` messages of ``B``.
    All-gather: a ring, ``N-1`` messages of ``B``. All-to-all: ``N-1`` messages of ``B/N``. Broadcast: a binomial tree,
    ``ceil(log2 N)`` messages of ``B``.

    Args:
        kind: the collective's class.
        payload_bytes: bytes that one rank hands to the collective.
        world: number of ranks.
        network: the link of every rank.
        tree: whether an all-reduce uses a tree, instead of a ring.

    Raises:
        ValueError: ``payload_bytes`` or ``world`` is out of range; the message names which.
    """
    check("payload_bytes", payload_bytes, payload_bytes >= 0, "bytes, 0 or more")
    check("world", world, world >= 1, "ranks, 1 or more")
    messages, sent_bytes = messages_of(kind, payload_bytes, world, tree)
    return messages * network.alpha + 8 * sent_bytes / network.bandwidth


def messages_of(kind: Kind, payload_bytes: float, world: int, tree: bool = False) -> tuple[int, float]:
    """Return the number of messages that one rank sends in a collective, one after the other, and the bytes of all.

    Arguments are those of ``collective_seconds``.
    """
    depth = (world - 1).bit_length()
    if tree and kind is AllReduce:
        return 2 * depth, 2 * depth * payload_bytes
    if kind is AllReduce:
        return 2 * (world - 1), 2 * (world - 1) / world * payload_bytes
    if kind is AllGather:
        return world - 1, (world - 1) * payload_bytes
    if kind is AllToAll:
        return world - 1, (world - 1) / world * payload_bytes
    if kind is Broadcast:
        return depth, depth * payload_bytes
    raise ValueError(f"kind: {kind!r} is no collective; use AllReduce, AllGather, AllToAll or Broadcast")


def check(name: str, number: float, in_range: bool, allowed: str) -> None:
    """Check that a number is in its range and finite.

    Args:
        name: name of the argument, for the message.
        number: content of the argument.
        in_range: whether the number is in the allowed range.
        allowed: the allowed range as text, for the message.

    Raises:
        ValueError: the number is not ``in_range``, or not finite.
    """
    if not in_range or not math.isfinite(number):
        raise ValueError(f"{name}: {number!r} is out of range; give {allowed}")
