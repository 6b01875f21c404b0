# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""N ranks in one process, stepped in lock step: the same compressor code without a network.

For unit tests, property tests and scale studies, also of a user's own compressor.
"""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import torch

from gravac.collectives import AllReduce, Collective, Ledger

T = TypeVar("T")


def run(ranks: Sequence[Generator[list[Collective], list[Any], T]], ledgers: Sequence[Ledger] = ()) -> list[T]:
    """Run one generator per rank to its end, answering their collectives.

    Args:
        ranks: each yields lists of collectives (as ``fuse`` does) and is resumed with the list of results.
        ledgers: one per rank, or none.

    Returns:
        What each rank returned.

    Raises:
        ValueError: the ranks do not ask for the same collectives.
    """
    asked: list[list[Collective]] = []
    returned: dict[int, T] = {}

    def advance(rank: int, answers: list[Any] | None) -> None:
        try:
            asked.append(next(ranks[rank]) if answers is None else ranks[rank].send(answers))
        except StopIteration as done:
            returned[rank] = done.value

    for rank in range(len(ranks)):
        advance(rank, None)
    while asked:
        if returned:
            raise ValueError(f"ranks {sorted(returned)} ended while others still ask for collectives")
        for rank, ledger in enumerate(ledgers):
            for collective in asked[rank]:
                ledger.book(collective)
        answers = [_answers(together) for together in zip(*asked, strict=True)]
        asked.clear()
        for rank in range(len(ranks)):
            advance(rank, [per_rank[rank] for per_rank in answers])
    return [returned[rank] for rank in range(len(ranks))]


def _answers(together: Sequence[Collective]) -> list[Any]:
    """What each rank gets of one collective, everyone's own copy."""
    signatures = {_signature(collective) for collective in together}
    if len(signatures) > 1:
        raise ValueError(f"ranks ask for different collectives: {sorted(signatures)}")
    if isinstance(together[0], AllReduce):
        tensors = [collective.tensor for collective in together if isinstance(collective, AllReduce)]
        total = tensors[0].clone()
        for tensor in tensors[1:]:
            total += tensor
        return [total.clone() for _ in together]
    columns = zip(*(c.tensors for c in together if not isinstance(c, AllReduce)), strict=True)
    gathered = tuple(torch.stack(column) for column in columns)
    return [tuple(tensor.clone() for tensor in gathered) for _ in together]


def _signature(collective: Collective) -> str:
    tensors = (collective.tensor,) if isinstance(collective, AllReduce) else collective.tensors
    shapes = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors)
    return f"{type(collective).__name__}({shapes})"
