# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the seconds of collectives by the alpha-beta model: a message takes latency + bytes / bandwidth."""

import math
from dataclasses import dataclass

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Kind


@dataclass(frozen=True, slots=True)
class Network:
    """The speed of the network, the same for every rank.

    Attributes:
        alpha: latency of a message, seconds.
        bandwidth: bits per second that each rank can send, and at the same time receive.
    """

    alpha: float
    bandwidth: float

    def __post_init__(self) -> None:
        check("alpha", self.alpha, self.alpha >= 0, "seconds, 0 or more")
        check("bandwidth", self.bandwidth, self.bandwidth > 0, "bits per second, above 0")


def collective_seconds(kind: Kind, payload_bytes: float, world: int, network: Network, tree: bool = False) -> float:
    """Return the seconds that one collective takes.

    With N ranks, and B bytes per rank (``payload_bytes``), a rank sends these messages, one after the other. Ring
    all-reduce: ``2(N-1)`` messages of ``B/N`` bytes; tree all-reduce: ``2 ceil(log2 N)`` messages of ``B``. All-gather:
    ``N-1`` messages of ``B``. All-to-all: ``N-1`` messages of ``B/N``. Broadcast, by a binomial tree:
    ``ceil(log2 N)`` messages of ``B``.

    Args:
        kind: class of the collective: ``AllReduce``, ``AllGather``, ``AllToAll`` or ``Broadcast``.
        payload_bytes: bytes that one rank hands to the collective.
        world: number of ranks.
        network: latency and bandwidth of each rank's link.
        tree: whether an all-reduce uses a tree, instead of a ring.

    Raises:
        ValueError: ``payload_bytes`` or ``world`` is out of range, or ``kind`` is no collective; the message names it.
    """
    check("payload_bytes", payload_bytes, payload_bytes >= 0, "bytes, 0 or more")
    check("world", world, world >= 1, "ranks, 1 or more")
    messages, sent_bytes = messages_of(kind, payload_bytes, world, tree)
    return messages * network.alpha + 8 * sent_bytes / network.bandwidth


def messages_of(kind: Kind, payload_bytes: float, world: int, tree: bool = False) -> tuple[int, float]:
    """Return the number of messages that one rank sends in a collective, and the total bytes of these messages.

    The rank sends the messages one after the other. ``collective_seconds`` explains the arguments.
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
    raise ValueError(f"kind: {kind!r} is not a collective; use AllReduce, AllGather, AllToAll or Broadcast")


def check(name: str, number: float, in_range: bool, allowed: str) -> None:
    """Raise ``ValueError`` if an argument is out of its range or not finite.

    Args:
        name: name of the argument, for the error message.
        number: number that the caller passed as the argument.
        in_range: whether the number is in the allowed range; the caller tests it.
        allowed: the allowed range as text, for the error message.

    Raises:
        ValueError: ``in_range`` is false, or the number is not finite.
    """
    if not in_range or not math.isfinite(number):
        raise ValueError(f"{name}: {number!r} is out of range; give {allowed}")
