# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Many tensors' rounds, run in lock step: the i-th yields of all become one collective per (kind, dtype).

The first collective of all also carries a flag: when any rank raised it, nothing more is exchanged.
"""

from collections.abc import Generator, Sequence
from typing import Any

import torch

from gravac.collectives import AllGather, AllReduce, Collective
from gravac.compressors.base import Reduced, Rounds

Requests = list[Collective]
Fused = Generator[Requests, list[Any], list[Reduced] | None]
"""Yields the collectives of a round, is resumed with their results; returns None when any rank raised the flag."""

ALIGNMENT = 8
"""Bytes a gathered row is padded to, so that every element type can be viewed in it."""


def fuse(rounds: Sequence[Rounds], finite: bool) -> Fused:
    """Run several tensors' rounds together.

    Args:
        rounds: of each tensor; the same number, in the same order, on every rank.
        finite: False raises the flag on all ranks.

    Returns:
        What each tensor's rounds returned, or None when the flag was up on any rank.
    """
    reduced: dict[int, Reduced] = {}
    asked: dict[int, Collective] = {}

    def advance(position: int, answer: Any) -> None:
        try:
            asked[position] = rounds[position].send(answer)
        except StopIteration as done:
            reduced[position] = done.value

    for position in range(len(rounds)):
        advance(position, None)
    first = True
    while asked:
        batches = _batches(asked)
        flag = _flag(batches[0], finite) if first else None
        answers = yield [batch.fused(flag if i == 0 else None) for i, batch in enumerate(batches)]
        if flag is not None and batches[0].raised(answers[0]):
            for generator in rounds:
                generator.close()
            return None
        first = False
        asked.clear()
        for batch, answer in zip(batches, answers, strict=True):
            for position, part in batch.split(answer):
                advance(position, part)
    return [reduced[position] for position in range(len(rounds))]


class _Sums:
    """All-reduces of one dtype as one."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, torch.Tensor]] = []

    def fused(self, flag: bool | None) -> AllReduce:
        pieces = [tensor.reshape(-1) for _, tensor in self.parts]
        if flag is not None:
            pieces.append(pieces[0].new_full((1,), int(flag)))
        return AllReduce(torch.cat(pieces))

    def raised(self, answer: torch.Tensor) -> bool:
        return bool(answer[-1] != 0)

    def finite(self) -> bool:
        """Whether narrow floats overflowed on the way to the wire."""
        return all(
            tensor.element_size() > 2 or not tensor.is_floating_point() or bool(tensor.isfinite().all())
            for _, tensor in self.parts
        )

    def split(self, answer: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        offset = 0
        answers = []
        for position, tensor in self.parts:
            answers.append((position, answer[offset : offset + tensor.numel()].view(tensor.shape)))
            offset += tensor.numel()
        return answers


class _Gathers:
    """All-gathers of any dtypes as one, of bytes: the widest element types first, so that all lie aligned."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, AllGather]] = []

    def _layout(self) -> tuple[list[tuple[int, int, torch.Tensor]], int]:
        """(position, byte offset, tensor) by falling width, and the number of bytes."""
        tensors = [(position, tensor) for position, gather in self.parts for tensor in gather.tensors]
        tensors.sort(key=lambda entry: -entry[1].element_size())
        laid, offset = [], 0
        for position, tensor in tensors:
            laid.append((position, offset, tensor))
            offset += tensor.numel() * tensor.element_size()
        return laid, offset

    def fused(self, flag: bool | None) -> AllGather:
        laid, size = self._layout()
        self._flag_at = size
        device = laid[0][2].device
        pieces = [tensor.contiguous().reshape(-1).view(torch.uint8) for _, _, tensor in laid]
        if flag is not None:
            pieces.append(torch.full((1,), int(flag), dtype=torch.uint8, device=device))
            size += 1
        pieces.append(torch.zeros(-size % ALIGNMENT, dtype=torch.uint8, device=device))
        return AllGather(torch.cat(pieces))

    def raised(self, answer: tuple[torch.Tensor]) -> bool:
        return bool(answer[0][:, self._flag_at].any())

    def finite(self) -> bool:
        return True

    def split(self, answer: tuple[torch.Tensor]) -> list[tuple[int, tuple[torch.Tensor, ...]]]:
        (rows,) = answer
        viewed: dict[int, torch.Tensor] = {}
        for _, offset, tensor in self._layout()[0]:
            size = tensor.numel() * tensor.element_size()
            cut = rows[:, offset : offset + size].view(tensor.dtype) if size else tensor.new_empty(len(rows), 0)
            viewed[id(tensor)] = cut.view(len(rows), *tensor.shape)
        return [(position, tuple(viewed[id(t)] for t in gather.tensors)) for position, gather in self.parts]


def _batches(asked: dict[int, Collective]) -> list[_Sums | _Gathers]:
    """One batch per (kind, dtype), sums first, each kind in order of first appearance."""
    sums: dict[torch.dtype, _Sums] = {}
    gathers: list[_Gathers] = []
    for position, collective in asked.items():
        if isinstance(collective, AllReduce):
            sums.setdefault(collective.tensor.dtype, _Sums()).parts.append((position, collective.tensor))
        else:
            if not gathers:
                gathers.append(_Gathers())
            gathers[0].parts.append((position, collective))
    return [*sums.values(), *gathers]


def _flag(batch: _Sums | _Gathers, finite: bool) -> bool:
    return not (finite and batch.finite())
