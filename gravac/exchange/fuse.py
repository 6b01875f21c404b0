# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Joins the collectives of many tensors: the tensors' i-th collectives become one collective per kind and dtype.

The first of these collectives also contains a flag, which a rank sets if one of its gradients is not finite. If a rank
set the flag, the ranks exchange nothing more of these tensors. If the host must not read the flag, the exchange
continues instead, and the device uses ``Outcome.finite``.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, tensors_of
from gravac.exchange.executor import Job, Round
from gravac.exchange.reading import AT_ONCE, Finite, Reads, both

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """Return values of several tensors' generators of collectives, which ``fuse`` ran together.

    Attributes:
        reduced: return value of each generator, in the order of the generators, such as the ``Reduced`` of a
            compressor's ``rounds``.
        finite: whether the gradients of all ranks were finite; ``None`` if the generators yielded nothing.
    """

    reduced: list[T]
    finite: Finite


ALIGNMENT = 8
"""Rows of bytes are padded to a multiple of this number of bytes, so that they can be viewed as any dtype."""

FLAG = -1
"""Key of the flag's collective in a dict of collectives. The other keys are the positions, from 0, of the generators.

A rank sets the flag if one of its gradients is not finite."""


def fuse(
    rounds: Sequence[Generator[Collective, Any, T]],
    finite: Finite = None,
    reads: Reads = AT_ONCE,
    one_round: bool = False,
) -> Job[Outcome[T] | None]:
    """Run several tensors' generators of collectives together, with one collective for each kind and dtype.

    1. Run every generator to its next collective.
    2. Join these into one collective per kind and dtype. The first time, also join a flag, which a rank sets if one of
       its gradients is not finite.
    3. Yield the joined collectives, and be resumed with their results.
    4. Stop if any rank set the flag; else split the results, resume every generator with its own, and continue with 1.

    Args:
        rounds: generators of collectives, one for each tensor or batch of tensors; as many, in the same order, on every
            rank.
        finite: whether this rank's gradients are finite.
        reads: when the host may read the flag. If it must not, all generators run to their ends, even if a rank set the
            flag.
        one_round: whether each generator yields only once.

    Returns:
        ``Outcome`` with the return value of each generator; ``None`` if the host has read that a rank set the flag.

    Example:
        >>> from gravac.collectives import Ledger
        >>> from gravac.compressors import Context, topk
        >>> from gravac.exchange import memory
        >>> def ranks(finite):
        ...     x = [torch.ones(20), torch.ones(30)]
        ...     rounds = [[topk.rounds(tensor, 10, Context(rank=n, world=2)) for tensor in x] for n in range(2)]
        ...     return [fuse(rounds[0]), fuse(rounds[1], torch.tensor(finite))]
        >>> ledgers = [Ledger(2), Ledger(2)]
        >>> len(memory.run(ranks(finite=True), ledgers)[0].reduced)  # two tensors, in a single gather
        2
        >>> ledgers[0].calls
        {'AllGather': 1}
        >>> memory.run(ranks(finite=False))  # one rank's gradients were not finite: no rank decodes
        [None, None]
    """
    all_finite: Finite = None
    reduced: dict[int, T] = {}
    requests: dict[int, Collective] = {}

    def advance(position: int, result: Any) -> None:
        """Resume a generator with a result; store its next collective, or its return value."""
        try:
            requests[position] = rounds[position].send(result)
        except StopIteration as done:
            reduced[position] = done.value

    for position in range(len(rounds)):
        advance(position, None)
    if requests:
        requests[FLAG] = _flag(list(requests.values()), finite)
    while requests:
        joined_groups = _batches(requests)
        requests.clear()
        joined_results = yield Round([joined_group.fused() for joined_group in joined_groups], last=one_round)
        result_by_position = dict(
            position_and_result
            for joined_group, joined_result in zip(joined_groups, joined_results, strict=True)
            for position_and_result in joined_group.split(joined_result)
        )
        if FLAG in result_by_position:
            all_finite = _flags_are_zero(result_by_position.pop(FLAG))
            if reads.known(all_finite) is False:
                for generator in rounds:
                    generator.close()
                return None
        for position, result in result_by_position.items():
            advance(position, result)
    return Outcome([reduced[position] for position in range(len(rounds))], all_finite)


def _flag(requests: Sequence[Collective], finite: Finite) -> Collective:
    """Return a collective that sends this rank's flag to all ranks: 1 if a gradient is not finite, else 0.

    The collective has the kind of one of the requests, so that ``fuse`` joins the two. If all requests are broadcasts,
    the collective is an all-reduce, since a broadcast would send only the root's flag.

    If the first all-reduce is in 16 bit, this rank's tensors for the all-reduces of that dtype are checked, too:
    numbers may have overflowed in the conversion to 16 bit. The flag is also 1 if an element is not finite. Tensors for
    all-gathers are not checked here, but when they are decoded.

    Args:
        requests: first collectives of the tensors.
        finite: whether this rank's gradients are finite.
    """
    reduce_tensors = [request.tensor for request in requests if isinstance(request, AllReduce)]
    if reduce_tensors:
        first_tensor = reduce_tensors[0]
        same_dtype_tensors = [
            tensor for tensor in reduce_tensors if tensor.dtype == first_tensor.dtype and tensor.numel()
        ]
        if same_dtype_tensors and first_tensor.element_size() <= 2 and first_tensor.is_floating_point():
            finite = both(finite, _all_elements_finite(same_dtype_tensors))
        return AllReduce(_flag_tensor(finite, first_tensor, first_tensor.dtype, (1,)))
    for request in requests:
        if isinstance(request, AllGather):
            return AllGather(_flag_tensor(finite, request.tensors[0], torch.uint8, (1,)))
    for request in requests:
        if isinstance(request, AllToAll):
            return AllToAll(_flag_tensor(finite, request.tensor, torch.uint8, (len(request.tensor), 1)))
    return AllReduce(_flag_tensor(finite, tensors_of(requests[0])[0], torch.float32, (1,)))


def _all_elements_finite(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return whether all elements of the tensors are finite, as a 0-d bool tensor."""
    largest_magnitudes = torch._foreach_norm([*tensors], torch.inf)
    return (
        largest_magnitudes[0] < torch.inf
        if len(largest_magnitudes) == 1
        else (torch.stack([*largest_magnitudes]) < torch.inf).all()
    )


def _flag_tensor(finite: Finite, like: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of a shape and dtype, on the device of ``like``, filled with 0 if ``finite``, else with 1."""
    if finite is None:
        return torch.zeros(shape, dtype=dtype, device=like.device)
    return (~finite).to(dtype).expand(shape)


def _flags_are_zero(flags_result: torch.Tensor | tuple[torch.Tensor]) -> torch.Tensor:
    """Return whether the flags of all ranks are 0, as a 0-d bool tensor, given the result of the flags' collective."""
    flags = flags_result[0] if isinstance(flags_result, tuple) else flags_result
    return (flags == 0).view(()) if flags.numel() == 1 else (flags == 0).all()


class _Sums:
    """Several generators' all-reduces of one dtype, which are run as a single all-reduce.

    Attributes:
        members: for each all-reduce, the position of its generator, and the tensor to sum.
    """

    def __init__(self) -> None:
        self.members: list[tuple[int, torch.Tensor]] = []

    def fused(self) -> AllReduce:
        """Return the single all-reduce: of all members' tensors, one after the other in a flat tensor."""
        return AllReduce(torch.cat([tensor.reshape(-1) for _, tensor in self.members]))

    def split(self, joined_result: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Cut the result of the single all-reduce; return each generator's position and its part of the result."""
        result_parts = torch.split(joined_result, [tensor.numel() for _, tensor in self.members])
        return [
            (position, result_part.view(tensor.shape))
            for (position, tensor), result_part in zip(self.members, result_parts, strict=True)
        ]


class _Rows:
    """Several generators' all-gathers (or all-to-alls) of any dtypes, which are run as a single collective of bytes.

    An all-gather sends the same row of bytes to all ranks, an all-to-all sends row r to rank r. From each rank, one row
    arrives. A row has the bytes of all members' tensors, the widest dtype first, for alignment.

    Attributes:
        members: for each collective, the position of its generator, and the collective itself.
    """

    def __init__(self) -> None:
        self.members: list[tuple[int, AllGather | AllToAll]] = []
        self._tensors_widest_first: list[torch.Tensor] = []
        self._is_all_to_all = False

    def fused(self) -> AllGather | AllToAll:
        """Return the single collective: of the bytes (uint8) of all members' tensors."""
        self._is_all_to_all = isinstance(self.members[0][1], AllToAll)
        tensors = [tensor for _, request in self.members for tensor in tensors_of(request)]
        self._tensors_widest_first = sorted(tensors, key=lambda tensor: -tensor.element_size())
        widest_tensor = self._tensors_widest_first[0]
        row_count = len(widest_tensor) if self._is_all_to_all else 1
        byte_rows = [tensor.contiguous().view(row_count, -1).view(torch.uint8) for tensor in self._tensors_widest_first]
        row_bytes = sum(byte_row.shape[1] for byte_row in byte_rows)
        byte_rows.append(torch.zeros(row_count, -row_bytes % ALIGNMENT, dtype=torch.uint8, device=widest_tensor.device))
        joined_rows = torch.cat(byte_rows, dim=1)
        return AllToAll(joined_rows) if self._is_all_to_all else AllGather(joined_rows[0])

    def split(self, joined_result: Any) -> Sequence[tuple[int, Any]]:
        """Cut the result of the single collective; return each generator's position and its part of the result."""
        received_rows = joined_result if self._is_all_to_all else joined_result[0]
        received_by_id: dict[int, torch.Tensor] = {}
        offset = 0
        for tensor in self._tensors_widest_first:
            shape = tensor.shape[1:] if self._is_all_to_all else tensor.shape
            tensor_bytes = shape.numel() * tensor.element_size()
            received = (
                received_rows[:, offset : offset + tensor_bytes].view(tensor.dtype)
                if tensor_bytes
                else tensor.new_empty(len(received_rows), 0)
            )
            received_by_id[id(tensor)] = received.view(len(received_rows), *shape)
            offset += tensor_bytes
        positions_and_results = [
            (position, tuple(received_by_id[id(tensor)] for tensor in tensors_of(request)))
            for position, request in self.members
        ]
        return (
            [(position, tensors[0]) for position, tensors in positions_and_results]
            if self._is_all_to_all
            else positions_and_results
        )


class _Broadcasts:
    """Several generators' broadcasts from one root, which are run as a single broadcast of bytes.

    Attributes:
        members: for each broadcast, the position of its generator, and the broadcast itself.
    """

    def __init__(self) -> None:
        self.members: list[tuple[int, Broadcast]] = []

    def fused(self) -> Broadcast:
        """Return the single broadcast: of the bytes (uint8) of all members' tensors."""
        members_widest_first = self._members_widest_first()
        all_bytes = torch.cat([request.tensor.reshape(-1).view(torch.uint8) for _, request in members_widest_first])
        return Broadcast(all_bytes, members_widest_first[0][1].root)

    def split(self, joined_result: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Cut the result of the single broadcast; return each generator's position and its part of the result."""
        members_widest_first = self._members_widest_first()
        result_parts = torch.split(joined_result, [request.payload_bytes for _, request in members_widest_first])
        positions_and_results = [
            (position, result_part.view(request.tensor.dtype).view(request.tensor.shape))
            for (position, request), result_part in zip(members_widest_first, result_parts, strict=True)
        ]
        return sorted(positions_and_results, key=lambda result: result[0])

    def _members_widest_first(self) -> list[tuple[int, Broadcast]]:
        """Return the members, those with the widest dtype first, so that each tensor is aligned in the joined bytes."""
        return sorted(self.members, key=lambda member: -member[1].tensor.element_size())


_JoinedCollectives = _Sums | _Rows | _Broadcasts


def _batches(requests: dict[int, Collective]) -> list[_JoinedCollectives]:
    """Sort collectives into batches, each of which is run as a single collective; return the batches.

    There is a batch of all-reduces for each dtype, a batch of all all-gathers, a batch of all all-to-alls, and a batch
    of broadcasts for each root.

    Args:
        requests: each generator's collective, by the generator's position, and the flag's collective, by ``FLAG``.
    """
    sums_by_dtype: dict[torch.dtype, _Sums] = {}
    gathers, all_to_alls = _Rows(), _Rows()
    broadcasts_by_root: dict[int, _Broadcasts] = {}
    for position, collective in requests.items():
        if isinstance(collective, AllReduce):
            sums_by_dtype.setdefault(collective.tensor.dtype, _Sums()).members.append((position, collective.tensor))
        elif isinstance(collective, AllGather):
            gathers.members.append((position, collective))
        elif isinstance(collective, AllToAll):
            all_to_alls.members.append((position, collective))
        else:
            broadcasts_by_root.setdefault(collective.root, _Broadcasts()).members.append((position, collective))
    joined_rows = [joined_group for joined_group in (gathers, all_to_alls) if joined_group.members]
    return [*sums_by_dtype.values(), *joined_rows, *broadcasts_by_root.values()]
