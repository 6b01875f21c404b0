# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Many tensors' rounds, run in lock step: the i-th yields of all become one collective per (kind, dtype).

The first collective of all also carries a flag: when any rank raised it, nothing more is exchanged.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Collective, tensors_of
from gravac.compressors.base import Fold
from gravac.compressors.squares import all_finite
from gravac.exchange.executor import Verdict, both

Requests = list[Collective]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What fused rounds came to.

    Attributes:
        reduced: what each tensor's rounds returned, or each batch's.
        finite: True, or where the host must not look, a 0-d bool tensor: whether no rank raised the flag.
    """

    reduced: list[T]
    finite: Verdict


Fused = Generator[Requests, list[Any], Outcome[T] | None]
"""Yields the collectives of a round, is resumed with their results; returns None when any rank raised the flag."""

ALIGNMENT = 8
"""Bytes of which the size of a gathered row is a multiple, so that every element type can be viewed in it."""

FLAG = -1
"""Where the flag stands among what tensors ask for, by their positions."""


def fuse(
    rounds: Sequence[Generator[Collective, Any, T]],
    finite: Verdict,
    judge: Callable[[torch.Tensor], Verdict] = bool,
    folds: Sequence[Fold] = (),
) -> Fused[T]:
    """Run several tensors' rounds together.

    1. Advance every tensor's rounds to its next collective.
    2. Fuse these into one collective per kind and dtype; in the first round, the flag is in the first of them.
    3. Yield the fused collectives, and be resumed with their results.
    4. Stop when the flag was raised; else split the results, answer every tensor's rounds, and go on with 1.

    Args:
        rounds: rounds of each tensor, or of several together; the same number, in the same order, on every rank.
        finite: whether this rank's gradients are finite, apart from ``folds``; if not, the flag is raised on all ranks.
        judge: looks at a bool scalar (0-d tensor), where the host may; where it may not, all rounds run, flag or not.
        folds: what some of the rounds fold; their energies, set before the first collective, are judged with it.

    Returns:
        What each tensor's rounds returned, or ``None`` when the flag was up on any rank and the host knows it.

    Example:
        >>> from gravac.collectives import Ledger
        >>> from gravac.compressors import Context, topk
        >>> from gravac.exchange import memory
        >>> def ranks(finite):
        ...     x = [torch.ones(20), torch.ones(30)]
        ...     rounds = [[topk.rounds(one, 10, Context(rank=r, world=2)) for one in x] for r in range(2)]
        ...     return [fuse(rounds[0], True), fuse(rounds[1], finite)]
        >>> ledgers = [Ledger(2), Ledger(2)]
        >>> len(memory.run(ranks(finite=True), ledgers)[0].reduced)  # two tensors, in a single gather
        2
        >>> ledgers[0].calls
        {'AllGather': 1}
        >>> memory.run(ranks(finite=False))  # one rank's gradients were not finite: nothing is decoded on any
        [None, None]
    """
    verdict: Verdict = True
    reduced: dict[int, T] = {}
    asked: dict[int, Collective] = {}

    def advance(position: int, answer: Any) -> None:
        try:
            asked[position] = rounds[position].send(answer)
        except StopIteration as done:
            reduced[position] = done.value

    for position in range(len(rounds)):
        advance(position, None)
    energies = [fold.energy for fold in folds if fold.energy is not None]
    if energies:
        finite = both(finite, judge(all_finite(energies)))
    if asked:
        asked[FLAG] = _flag(list(asked.values()), finite, judge)
    while asked:
        batches = _batches(asked)
        asked.clear()
        answers = yield [batch.fused() for batch in batches]
        parts = dict(part for batch, answer in zip(batches, answers, strict=True) for part in batch.split(answer))
        if FLAG in parts:
            verdict = judge(_unraised(parts.pop(FLAG)))
            if verdict is False:
                for generator in rounds:
                    generator.close()
                return None
        for position, part in parts.items():
            advance(position, part)
    return Outcome([reduced[position] for position in range(len(rounds))], verdict)


def _flag(asked: Sequence[Collective], finite: Verdict, judge: Callable[[torch.Tensor], Verdict]) -> Collective:
    """The flag, of the kind and dtype that come first of what is asked for: 1 where something is not finite, else 0.

    A sum's flag is up too where a gradient is not finite in the narrow floats of the wire. What is gathered is not
    summed, so it is looked at where it is decoded. A broadcast tells the root's flag alone, so a sum goes beside it.
    """
    sums = [one.tensor for one in asked if isinstance(one, AllReduce)]
    if sums:
        like = sums[0]
        some = [one for one in sums if one.dtype == like.dtype and one.numel()]
        if some and finite is not False and like.element_size() <= 2 and like.is_floating_point():
            fits = judge(_all_fit(some))
            finite = fits if isinstance(finite, bool) else finite & fits
        return AllReduce(_raised(finite, like, like.dtype, (1,)))
    for one in asked:
        if isinstance(one, AllGather):
            return AllGather(_raised(finite, one.tensors[0], torch.uint8, (1,)))
    for one in asked:
        if isinstance(one, AllToAll):
            return AllToAll(_raised(finite, one.tensor, torch.uint8, (len(one.tensor), 1)))
    return AllReduce(_raised(finite, torch.empty(0), torch.float32, (1,)))


def _all_fit(sums: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether all numbers of some tensors are finite, 0-d: the largest magnitudes tell."""
    largest = torch._foreach_norm([*sums], torch.inf)
    return largest[0] < torch.inf if len(largest) == 1 else (torch.stack([*largest]) < torch.inf).all()


def _raised(finite: Verdict, like: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A flag of some shape and dtype, on the device of a tensor."""
    if isinstance(finite, bool):
        return torch.full(shape, int(not finite), dtype=dtype, device=like.device)
    return (~finite).to(dtype).expand(shape)


def _unraised(answer: torch.Tensor | tuple[torch.Tensor]) -> torch.Tensor:
    """Whether no rank raised the flag, by what came of it."""
    flags = answer[0] if isinstance(answer, tuple) else answer
    return (flags == 0).view(()) if flags.numel() == 1 else (flags == 0).all()


class _Sums:
    """All-reduces of one dtype, run as one."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, torch.Tensor]] = []

    def fused(self) -> AllReduce:
        return AllReduce(torch.cat([tensor.reshape(-1) for _, tensor in self.parts]))

    def split(self, answer: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        cuts = torch.split(answer, [tensor.numel() for _, tensor in self.parts])
        return [(position, cut.view(tensor.shape)) for (position, tensor), cut in zip(self.parts, cuts, strict=True)]


class _Rows:
    """All-gathers, or all-to-alls, of any dtypes, run as one of bytes: widest element types first, so all lie aligned.

    A gather sends one row to everyone, an all-to-all row r to rank r; both bring one row from every rank.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[int, AllGather | AllToAll]] = []
        self._ordered: list[torch.Tensor] = []
        self._scatters = False

    def fused(self) -> AllGather | AllToAll:
        self._scatters = isinstance(self.parts[0][1], AllToAll)
        tensors = [tensor for _, asked in self.parts for tensor in tensors_of(asked)]
        self._ordered = sorted(tensors, key=lambda tensor: -tensor.element_size())
        first = self._ordered[0]
        rows = len(first) if self._scatters else 1
        pieces = [tensor.contiguous().view(rows, -1).view(torch.uint8) for tensor in self._ordered]
        size = sum(piece.shape[1] for piece in pieces)
        pieces.append(torch.zeros(rows, -size % ALIGNMENT, dtype=torch.uint8, device=first.device))
        whole = torch.cat(pieces, dim=1)
        return AllToAll(whole) if self._scatters else AllGather(whole[0])

    def split(self, answer: Any) -> Sequence[tuple[int, Any]]:
        rows = answer if self._scatters else answer[0]
        viewed: dict[int, torch.Tensor] = {}
        offset = 0
        for tensor in self._ordered:
            shape = tensor.shape[1:] if self._scatters else tensor.shape
            size = shape.numel() * tensor.element_size()
            cut = rows[:, offset : offset + size].view(tensor.dtype) if size else tensor.new_empty(len(rows), 0)
            viewed[id(tensor)] = cut.view(len(rows), *shape)
            offset += size
        answers = [(position, tuple(viewed[id(one)] for one in tensors_of(asked))) for position, asked in self.parts]
        return [(position, found[0]) for position, found in answers] if self._scatters else answers


class _Broadcasts:
    """Broadcasts from one root, run as one of bytes."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Broadcast]] = []

    def fused(self) -> Broadcast:
        ordered = self._ordered()
        return Broadcast(torch.cat([b.tensor.reshape(-1).view(torch.uint8) for _, b in ordered]), ordered[0][1].root)

    def split(self, answer: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        ordered = self._ordered()
        cuts = torch.split(answer, [asked.payload_bytes for _, asked in ordered])
        answers = [
            (position, cut.view(asked.tensor.dtype).view(asked.tensor.shape))
            for (position, asked), cut in zip(ordered, cuts, strict=True)
        ]
        return sorted(answers, key=lambda answer: answer[0])

    def _ordered(self) -> list[tuple[int, Broadcast]]:
        return sorted(self.parts, key=lambda part: -part[1].tensor.element_size())


_Batch = _Sums | _Rows | _Broadcasts


def _batches(asked: dict[int, Collective]) -> list[_Batch]:
    """Sort collectives into a batch per kind, and dtype or root: sums, then gathers, all-to-alls and broadcasts."""
    sums: dict[torch.dtype, _Sums] = {}
    gathers, scatters = _Rows(), _Rows()
    broadcasts: dict[int, _Broadcasts] = {}
    for position, collective in asked.items():
        if isinstance(collective, AllReduce):
            sums.setdefault(collective.tensor.dtype, _Sums()).parts.append((position, collective.tensor))
        elif isinstance(collective, AllGather):
            gathers.parts.append((position, collective))
        elif isinstance(collective, AllToAll):
            scatters.parts.append((position, collective))
        else:
            broadcasts.setdefault(collective.root, _Broadcasts()).parts.append((position, collective))
    rows = [batch for batch in (gathers, scatters) if batch.parts]
    return [*sums.values(), *rows, *broadcasts.values()]
