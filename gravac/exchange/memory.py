# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the results of collectives of N ranks in one process, without a network.

For tests and simulations with many ranks, also of a user's own compressor.
"""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch

from gravac.collectives import AllReduce, AllToAll, Broadcast, Collective, Ledger, tensors_of

T = TypeVar("T")


def run(ranks: Sequence[Generator[list[Collective], Any, T]], ledgers: Sequence[Ledger] = ()) -> list[T]:
    """Run one generator of collectives per rank to its end, computing the collectives' results in this process.

    Args:
        ranks: generators that yield lists of collectives, as ``fuse`` does, and are resumed with the list of results.
        ledgers: one ledger per rank, in which the bytes are counted; empty: bytes are not counted.

    Returns:
        The return value of each rank's generator, by rank.

    Raises:
        ValueError: the ranks do not yield the same collectives.

    Example:
        >>> def rank(number):
        ...     (total,) = yield [AllReduce(torch.full((2,), float(number)))]
        ...     return total.tolist()
        >>> run([rank(1), rank(2), rank(3)])
        [[6.0, 6.0], [6.0, 6.0], [6.0, 6.0]]
    """
    collectives_of_ranks: list[list[Collective]] = []  # collectives that each rank yielded last
    returned_by_rank: dict[int, T] = {}

    def advance(rank: int, results: list[Any] | None) -> None:
        """Resume a rank's generator with results; store its next collectives, or its return value."""
        try:
            collectives_of_ranks.append(ranks[rank].send(results))
        except StopIteration as done:
            returned_by_rank[rank] = done.value

    for rank in range(len(ranks)):
        advance(rank, None)
    while collectives_of_ranks:
        if returned_by_rank:
            raise ValueError(
                f"ranks {sorted(returned_by_rank)} ended while others still yield collectives; yield the same "
                "collectives on all ranks"
            )
        for rank, ledger in enumerate(ledgers):
            for collective in collectives_of_ranks[rank]:
                ledger.book(collective)
        results = [results_by_rank(collectives) for collectives in zip(*collectives_of_ranks, strict=True)]
        collectives_of_ranks.clear()
        for rank in range(len(ranks)):
            advance(rank, [result_of_ranks[rank] for result_of_ranks in results])
    return [returned_by_rank[rank] for rank in range(len(ranks))]


def results_by_rank(collectives_by_rank: Sequence[Collective]) -> list[Any]:
    """Compute a collective; return a list of its results, one for each rank, that share no memory.

    Args:
        collectives_by_rank: the collective as each rank starts it, by rank.

    Raises:
        ValueError: the ranks start different collectives.
    """
    signatures = {_signature(collective) for collective in collectives_by_rank}
    if len(signatures) > 1:
        raise ValueError(
            f"ranks ask for different collectives, {sorted(signatures)}; yield the same collectives on all ranks"
        )
    first_collective = collectives_by_rank[0]
    if isinstance(first_collective, AllReduce):
        reduced_sum = first_collective.tensor.clone()
        for other_collective in collectives_by_rank[1:]:
            reduced_sum += tensors_of(other_collective)[0]
        return [reduced_sum.clone() for _ in collectives_by_rank]
    if isinstance(first_collective, AllToAll):
        return [
            torch.stack([tensors_of(sender)[0][rank] for sender in collectives_by_rank])
            for rank in range(len(collectives_by_rank))
        ]
    if isinstance(first_collective, Broadcast):
        return [tensors_of(collectives_by_rank[first_collective.root])[0].clone() for _ in collectives_by_rank]
    gathered_tensors = tuple(
        torch.stack(tensors_of_ranks) for tensors_of_ranks in zip(*map(tensors_of, collectives_by_rank), strict=True)
    )
    return [tuple(tensor.clone() for tensor in gathered_tensors) for _ in collectives_by_rank]


def result_for_equal_ranks(collective: Collective, rank: int, world: int) -> Any:
    """Compute a collective as if all ``world`` ranks had given the same tensors; return the result on one rank."""
    if isinstance(collective, AllReduce):
        return collective.tensor * world
    if isinstance(collective, AllToAll):
        return torch.stack([collective.tensor[rank]] * world)
    if isinstance(collective, Broadcast):
        return collective.tensor.clone()
    return tuple(torch.stack([tensor] * world) for tensor in collective.tensors)


def _signature(collective: Collective) -> str:
    shapes_text = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors_of(collective))
    root_text = f" from {collective.root}" if isinstance(collective, Broadcast) else ""
    return f"{type(collective).__name__}({shapes_text}){root_text}"
