# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The collectives that a compressor may request, the bytes that each of them sends, and totals of these bytes.

A compressor is a generator: it yields a collective, and is resumed with the collective's result.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Request to sum a tensor over the ranks. The result is the sum, of the shape and dtype of ``tensor``.

    ``rounds`` of a compressor gets a new tensor, and ``tensor`` stays as it is. A transport that gets an ``AllReduce``
    directly may overwrite ``tensor`` with the sum.

    Attributes:
        tensor: tensor that this rank adds to the sum, of any shape; of the same shape and dtype on every rank.

    Example:
        >>> AllReduce(torch.zeros(1000)).payload_bytes
        4000
        >>> AllReduce.wire_bytes(4000, world=4)  # each rank sends all but its own quarter, twice
        6000
    """

    tensor: torch.Tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes that this rank hands to the collective."""
        return self.tensor.numel() * self.tensor.element_size()

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Return the bytes that one rank sends in a ring all-reduce over N ranks, ``2(N-1)/N * B``."""
        return round(2 * (world - 1) / world * payload_bytes)


@dataclass(frozen=True, slots=True, init=False)
class AllGather:
    """Request to send every rank's tensors to every rank.

    The result is a tuple with one tensor ``[world, *shape]`` for each of ``tensors``, whose row r is from rank r.

    Attributes:
        tensors: this rank's tensors, of any shapes; of the same shapes and dtypes on every rank.
        rows: memory for the result, ``[world, *shape]``, if there is only one tensor, and that is a view of this rank's
            row; ``None``: new memory.

    Example:
        >>> AllGather(torch.zeros(10), torch.zeros(10, dtype=torch.int32)).payload_bytes
        80
        >>> AllGather.wire_bytes(80, world=4)  # to each of three other ranks
        240
    """

    tensors: tuple[torch.Tensor, ...]
    rows: torch.Tensor | None

    def __init__(self, *tensors: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        object.__setattr__(self, "tensors", tensors)
        object.__setattr__(self, "rows", rows)

    @property
    def payload_bytes(self) -> int:
        """Bytes that this rank hands to the collective."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Return the bytes that one rank sends to N-1 others, ``(N-1) * B``."""
        return (world - 1) * payload_bytes


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Request to send row r of a tensor to rank r. The result is ``[world, *shape]``; its row r comes from rank r.

    Attributes:
        tensor: rows for the ranks, ``[world, *shape]``; of the same shape and dtype on every rank.

    Example:
        >>> AllToAll(torch.zeros(4, 10)).payload_bytes
        160
        >>> AllToAll.wire_bytes(160, world=4)  # a rank does not send the row for itself
        120
    """

    tensor: torch.Tensor

    @property
    def payload_bytes(self) -> int:
        """Bytes that this rank hands to the collective, including the row for itself."""
        return self.tensor.numel() * self.tensor.element_size()

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Return the bytes that one rank sends: all rows but its own, ``(N-1)/N * B``."""
        return round((world - 1) / world * payload_bytes)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Request to send one rank's tensor, the root's, to all ranks. The result is the root's tensor, on every rank.

    Attributes:
        tensor: the root's tensor, of any shape; of tensors of other ranks, only shape and dtype are used.
        root: the rank that sends.

    Example:
        >>> Broadcast.wire_bytes(1000, world=8)  # three rounds of a binomial tree
        3000
    """

    tensor: torch.Tensor
    root: int

    @property
    def payload_bytes(self) -> int:
        """Bytes that the root hands to the collective."""
        return self.tensor.numel() * self.tensor.element_size()

    @staticmethod
    def wire_bytes(payload_bytes: int, world: int) -> int:
        """Return the bytes that the root sends in a binomial tree, ``ceil(log2 N) * B``; other ranks send no more."""
        return (world - 1).bit_length() * payload_bytes


Collective = AllReduce | AllGather | AllToAll | Broadcast
"""Any collective that a compressor may request."""


def tensors_of(collective: Collective) -> tuple[torch.Tensor, ...]:
    """Return the tensors, of any shapes, that this rank hands to a collective: one, or several for an ``AllGather``."""
    return collective.tensors if isinstance(collective, AllGather) else (collective.tensor,)


def map_tensors(collective: Collective, transform: Callable[[torch.Tensor], torch.Tensor]) -> Collective:
    """Return the same collective with other tensors.

    Args:
        collective: the collective.
        transform: function that gets each tensor of the collective, of any shape, and returns its replacement.
    """
    if isinstance(collective, AllGather):
        return AllGather(*map(transform, collective.tensors))
    return replace(collective, tensor=transform(collective.tensor))


Kind = type[AllReduce] | type[AllGather] | type[AllToAll] | type[Broadcast]
"""Class of a collective, such as ``AllReduce``."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Kind and size of a collective, to predict its bytes and time.

    Attributes:
        kind: class of the collective, such as ``AllReduce``.
        payload_bytes: bytes that one rank hands to the collective.

    Example:
        >>> Traffic(AllGather, 100).wire_bytes(world=3)
        200
    """

    kind: Kind
    payload_bytes: int

    def wire_bytes(self, world: int) -> int:
        """Return the bytes that one rank sends if ``world`` ranks take part."""
        return self.kind.wire_bytes(self.payload_bytes, world)


def wire_ratio(dense_bytes: float, sent_bytes: float) -> float:
    """Return the wire bytes of a dense float32 all-reduce / the wire bytes sent; 1 if nothing was sent.

    Example:
        >>> wire_ratio(dense_bytes=4000, sent_bytes=250)
        16.0
    """
    return dense_bytes / sent_bytes if sent_bytes else 1.0


@dataclass(slots=True)
class Ledger:
    """Total of the bytes that one rank handed to collectives, and of the bytes that it sent.

    Attributes:
        world: number of ranks.
        payload_bytes: bytes handed to collectives.
        wire_bytes: bytes sent, by each collective's formula.
        calls: number of collectives, by the name of their class.

    Example:
        >>> ledger = Ledger(world=2)
        >>> ledger.book(AllReduce(torch.zeros(1000)))
        4000
        >>> ledger.calls
        {'AllReduce': 1}
    """

    world: int = 1
    payload_bytes: int = 0
    wire_bytes: int = 0
    calls: dict[str, int] = field(default_factory=dict)

    def book(self, collective: Collective) -> int:
        """Add the bytes of one collective to the totals; return its wire bytes."""
        payload_bytes = collective.payload_bytes
        wire_bytes = collective.wire_bytes(payload_bytes, self.world)
        self.payload_bytes += payload_bytes
        self.wire_bytes += wire_bytes
        class_name = type(collective).__name__
        self.calls[class_name] = self.calls.get(class_name, 0) + 1
        return wire_bytes
