# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Joins the collectives of many tensors: the tensors' i-th collectives become one collective per kind and dtype.

With two ranks, tensors to be summed are gathered instead, if others are gathered: that sends as many bytes.

The first of these collectives also contains a flag, which a rank sets if one of its gradients is not finite. If a rank
set the flag, the ranks exchange nothing more of these tensors. If the host must not read the flag, the exchange
continues instead, and the device uses ``Outcome.finite``.
"""

from collections.abc import Callable, Generator, Sequence
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

KINDS: tuple[type, ...] = (AllReduce, AllGather, AllToAll, Broadcast)
"""Kinds of collectives, in the order in which they start."""

Split = Callable[[Any], dict[int, Any]]
"""Function that takes the result of joined collectives, and returns each generator's part, by its position."""

FLAG = -1
"""Key of the flag's collective in a dict of collectives. The other keys are the positions, from 0, of the generators.

A rank sets the flag if one of its gradients is not finite."""


def fuse(
    rounds: Sequence[Generator[Collective, Any, T]],
    finite: Finite = None,
    reads: Reads = AT_ONCE,
    one_round: bool = False,
    rank: int = 0,
    world: int | None = None,
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
        rank: number of this rank.
        world: number of ranks; ``None``: not known.

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
        splits: list[Split] = []
        # nothing here refers to a collective in flight, so that its tensors are freed as early as possible
        joined_results = yield Round(_take_joined(requests, splits, rank, world), last=one_round)
        result_by_position: dict[int, Any] = {}
        for split, joined_result in zip(splits, joined_results, strict=True):
            result_by_position |= split(joined_result)
        if FLAG in result_by_position:
            all_finite = _flags_are_zero(result_by_position.pop(FLAG))
            if reads.known(all_finite) is False:
                for generator in rounds:
                    generator.close()
                return None
        del joined_results
        for position in [*result_by_position]:
            advance(position, result_by_position.pop(position))
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
    return (~finite).to(dtype).view(1).expand(shape)


def _flags_are_zero(flags_result: torch.Tensor | tuple[torch.Tensor]) -> torch.Tensor:
    """Return whether the flags of all ranks are 0, as a 0-d bool tensor, given the result of the flags' collective."""
    flags = flags_result[0] if isinstance(flags_result, tuple) else flags_result
    return (flags == 0).view(()) if flags.numel() == 1 else (flags == 0).all()


def _groups(requests: dict[int, Collective], world: int | None) -> list[dict[int, Collective]]:
    """Divide collectives into groups, each of which is run as a single collective.

    There is a group of all-reduces for each dtype, a group of all all-gathers, a group of all all-to-alls, and a group
    of broadcasts for each root. With two ranks, all-reduces join the all-gathers, if there are any.

    Args:
        requests: each generator's collective, by the generator's position, and the flag's collective, by ``FLAG``.
        world: number of ranks; ``None``: not known.
    """
    gathers_sums = world == 2 and any(isinstance(collective, AllGather) for collective in requests.values())
    groups: dict[tuple[int, Any], dict[int, Collective]] = {}
    for position, collective in requests.items():
        key: tuple[int, Any] = (KINDS.index(type(collective)), None)
        if isinstance(collective, AllReduce):
            key = (KINDS.index(AllGather), None) if gathers_sums else (key[0], collective.tensor.dtype)
        elif isinstance(collective, Broadcast):
            key = (key[0], collective.root)
        groups.setdefault(key, {})[position] = collective
    return [groups[key] for key in sorted(groups, key=lambda key: key[0])]


def _take_joined(
    requests: dict[int, Collective], splits: list[Split], rank: int, world: int | None
) -> list[Collective]:
    """Return the single collective of each group, and clear ``requests``.

    Args:
        requests: each generator's collective, by the generator's position, and the flag's collective, by ``FLAG``.
        splits: output: for each collective, the function that splits its result is appended.
        rank: number of this rank.
        world: number of ranks; ``None``: not known.
    """
    joined_collectives = []
    for group in _groups(requests, world):
        joined_collective, split = _joined(group, rank, world)
        joined_collectives.append(joined_collective)
        splits.append(split)
    requests.clear()
    return joined_collectives


def _joined(requests: dict[int, Collective], rank: int, world: int | None) -> tuple[Collective, Split]:
    """Return the single collective of a group, and the function that splits its result."""
    if all(isinstance(request, AllReduce) for request in requests.values()):
        return _joined_sum(requests)
    return _joined_rows(requests, rank, world)


def _joined_sum(requests: dict[int, Collective]) -> tuple[Collective, Split]:
    """Join all-reduces of one dtype: their tensors, one after the other in a flat tensor."""
    positions = [*requests]
    tensors = [tensor for request in requests.values() for tensor in tensors_of(request)]
    shapes = [tensor.shape for tensor in tensors]

    def split(result: torch.Tensor) -> dict[int, Any]:
        parts = torch.split(result, [shape.numel() for shape in shapes])
        return {position: part.view(shape) for position, part, shape in zip(positions, parts, shapes, strict=True)}

    return AllReduce(torch.cat([tensor.reshape(-1) for tensor in tensors])), split


def _joined_rows(requests: dict[int, Collective], rank: int, world: int | None) -> tuple[Collective, Split]:
    """Join all-gathers, all-to-alls, or broadcasts from one root, of any dtypes, to a single collective of bytes.

    An all-gather and a broadcast send one row of bytes, an all-to-all sends row r to rank r. A row has the bytes of all
    tensors, the widest dtype first, for alignment. All-reduces among all-gathers are gathered, and their rows summed.
    """
    kind_by_position = {position: type(request) for position, request in requests.items()}
    first_request = next(request for request in requests.values() if not isinstance(request, AllReduce))
    is_all_to_all = isinstance(first_request, AllToAll)
    tensor_by_key = {
        (position, index): tensor
        for position, request in requests.items()
        for index, tensor in enumerate(tensors_of(request))
    }
    keys = sorted(tensor_by_key, key=lambda key: -tensor_by_key[key].element_size())
    tensors = [tensor_by_key[key] for key in keys]
    form_by_key = {
        key: (tensor.shape[1:] if is_all_to_all else tensor.shape, tensor.dtype)
        for key, tensor in tensor_by_key.items()
    }
    tensor_counts = {position: len(tensors_of(request)) for position, request in requests.items()}
    row_count = len(tensors[0]) if is_all_to_all else 1
    byte_rows = [tensor.contiguous().view(row_count, -1).view(torch.uint8) for tensor in tensors]
    sizes = [byte_row.shape[1] for byte_row in byte_rows]
    padding = -sum(sizes) % ALIGNMENT
    byte_rows.append(byte_rows[0].new_zeros(row_count, padding))

    def split(result: Any) -> dict[int, Any]:
        rows = result[0] if isinstance(result, tuple) else result if is_all_to_all else result.unsqueeze(0)
        parts = torch.split(rows, [*sizes, padding], dim=1)
        part_by_key = dict(zip(keys, parts[:-1], strict=True))
        results: dict[int, Any] = {}
        for position, tensor_count in tensor_counts.items():
            received = tuple(
                _viewed(part_by_key[position, index], *form_by_key[position, index]) for index in range(tensor_count)
            )
            if kind_by_position[position] is AllGather:
                results[position] = received
            elif kind_by_position[position] is AllReduce:
                results[position] = received[0][0] + received[0][1]
            else:
                results[position] = received[0] if is_all_to_all else received[0][0]
        return results

    if isinstance(first_request, AllGather) and world is not None:  # no copy of this rank's row is needed
        all_rows = byte_rows[0].new_empty(world, sum(sizes) + padding)
        torch.cat(byte_rows, dim=1, out=all_rows[rank : rank + 1])
        return AllGather(all_rows[rank], rows=all_rows), split
    joined_rows = torch.cat(byte_rows, dim=1)
    if isinstance(first_request, Broadcast):
        return Broadcast(joined_rows[0], first_request.root), split
    return AllToAll(joined_rows) if is_all_to_all else AllGather(joined_rows[0]), split


def _viewed(byte_rows: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return rows of bytes, ``[rows, bytes]``, as tensors of a shape and dtype, ``[rows, *shape]``."""
    rows = byte_rows.view(dtype) if byte_rows.shape[1] else byte_rows.new_empty(len(byte_rows), 0, dtype=dtype)
    return rows.view(len(byte_rows), *shape)
