# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tensors that a compressor averages together on a GPU, where a launch costs more than what it computes of one.

Which do follows from what all ranks know: shapes, compression factors and what a compressor says of them. Nothing is
remembered of a batch: what a tensor leaves lies under its name. On a processor each goes by itself, while it is in a
cache.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gravac.averaging.fused_tensors import Part
from gravac.collectives import Collective
from gravac.compressors.base import Context, Reduced

LARGEST = 1 << 26
"""Bytes of the tensors of a batch, at most, where there are several: so much may lie side by side for a while."""


@dataclass(slots=True)
class Batch:
    """Tensors averaged together, or one by itself.

    Attributes:
        parts: the tensors; at least one.
        contexts: what their compressor may know about each.
        nbytes: bytes of the tensors.
    """

    parts: list[Part] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    nbytes: int = 0

    def rounds(self) -> Generator[Collective, Any, list[Reduced]]:
        """Return their compressor's rounds: a generator that returns a ``Reduced`` for each of the parts."""
        choice, xs = self.parts[0].tensors.choice, [part.x for part in self.parts]
        if len(xs) == 1:
            return [(yield from choice.compressor.rounds(xs[0], choice.cf, self.contexts[0]))]
        return (yield from choice.compressor.rounds_together(xs, choice.cf, self.contexts))


def batched(parts: Sequence[Part], contexts: Sequence[Context]) -> list[Batch]:
    """Put together what may be averaged together: the same on all ranks, if they have the same parts.

    Args:
        parts: the tensors, in the order that all ranks have them in.
        contexts: what the compressor may know about each of them.
    """
    batches: list[Batch] = []
    filling: dict[object, Batch] = {}
    for part, context in zip(parts, contexts, strict=True):
        key = _key(part, context)
        batch = filling.get(key)
        if key is None or batch is None or batch.nbytes + part.x.nbytes > LARGEST:
            batch = filling[key] = Batch()
            batches.append(batch)
        batch.parts.append(part)
        batch.contexts.append(context)
        batch.nbytes += part.x.nbytes
    return batches


def goes_alone(x: torch.Tensor) -> bool:
    """Tell whether a tensor lies where each is best averaged by itself."""
    return x.is_cpu


def _key(part: Part, context: Context) -> object:
    """What tensors that go together have in common; ``None`` for one that goes alone."""
    choice = part.tensors.choice
    if goes_alone(part.x) or len(part.tensors.pieces) > 1:
        return None
    key = choice.compressor.batch_key(choice.cf, context)
    return None if key is None else (choice.compresses, choice.cf, part.x.dtype, key)
