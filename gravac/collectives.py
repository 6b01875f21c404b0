# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The collectives a compressor may ask for, what each puts on the wire, and the ledger that books it."""

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum over ranks. Resumed with the sum, same shape and dtype as ``tensor``.

    A driver may sum in place: only ``fuse``'s fresh buffers, and tensors that the sum may overwrite, reach one.
    """

    tensor: torch.Tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes this rank hands over."""
        return self.tensor.numel() * self.tensor.element_size()

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Bytes one rank sends: ring all-reduce, ``2(N-1)/N * B``."""
        return round(2 * (world - 1) / world * payload_bytes)


@dataclass(frozen=True, slots=True, init=False)
class AllGather:
    """Everyone's tensors, side by side. Resumed with a tuple: each tensor as ``[world, *shape]``, by rank.

    The tensors must have the same shapes and dtypes on every rank.
    """

    tensors: tuple[torch.Tensor, ...]

    def __init__(self, *tensors: torch.Tensor) -> None:
        object.__setattr__(self, "tensors", tensors)

    @property
    def payload_bytes(self) -> int:
        """Bytes this rank hands over."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Bytes one rank sends: ``(N-1) * B``."""
        return (world - 1) * payload_bytes


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Row r goes to rank r. Resumed with ``[world, *shape]``: row r is what rank r had for this one.

    ``tensor`` is ``[world, *shape]``, of the same shape and dtype on every rank.
    """

    tensor: torch.Tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes this rank hands over, the row it keeps included."""
        return self.tensor.numel() * self.tensor.element_size()

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Bytes one rank sends: ``(N-1)/N * B``."""
        return round((world - 1) / world * payload_bytes)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Rank ``root``'s tensor, for all. Resumed with it; the others' ``tensor`` gives shape and dtype only."""

    tensor: torch.Tensor
    root: int

    @property
    def payload_bytes(self) -> int:
        """Bytes the root hands over."""
        return self.tensor.numel() * self.tensor.element_size()

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Bytes the root sends down a binomial tree, ``ceil(log2 N) * B``; no rank sends more."""
        return (world - 1).bit_length() * payload_bytes


Collective = AllReduce | AllGather | AllToAll | Broadcast

Kind = type[AllReduce] | type[AllGather] | type[AllToAll] | type[Broadcast]


@dataclass(frozen=True, slots=True)
class Traffic:
    """A collective by kind and size, for predictions.

    Attributes:
        kind: the collective's class.
        payload_bytes: bytes one rank hands over.
    """

    kind: Kind
    payload_bytes: int

    def wire_bytes(self, world: int) -> int:
        """Bytes one rank sends over ``world`` ranks."""
        return self.kind.wire_bytes(self.payload_bytes, world)


def wire_ratio(dense: float, sent: float) -> float:
    """Wire bytes of a dense float32 all-reduce over those sent; 1 where nothing was."""
    return dense / sent if sent else 1.0


@dataclass(slots=True)
class Ledger:
    """What one rank handed to collectives, and what that makes on the wire.

    Attributes:
        world: ranks.
        payload_bytes: sum of what was handed over.
        wire_bytes: sum of what was sent, by each collective's formula.
        calls: number of collectives by kind.
    """

    world: int = 1
    payload_bytes: int = 0
    wire_bytes: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def book(self, collective: Collective) -> int:
        """Enter one collective; returns its wire bytes."""
        payload = collective.payload_bytes
        wire = collective.wire_bytes(payload, self.world)
        self.payload_bytes += payload
        self.wire_bytes += wire
        kind = type(collective).__name__
        self.calls[kind] = self.calls.get(kind, 0) + 1
        return wire
