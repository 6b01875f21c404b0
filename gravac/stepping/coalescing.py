# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange groups that are compressed together, because each by itself is small.

Coding starts with cold caches whenever backward ran in between, which costs some milliseconds whatever the size. So
groups wait for the next until they are worth it, or until the backward has no more. What waits depends on sizes and the
step's plan, and on what the link was probed at: the same on all ranks. Dense groups never wait: nothing is coded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gravac.averaging.plan import Piece

LEAST = 1 << 20
"""Number of elements that are always worth being compressed by themselves."""

PARTS = 3
"""Number of parts that a small model is compressed in: later parts are coded while earlier ones travel."""

MOST = 8
"""Most parts, where the link is slow: it is busy sooner, and what is left when backward ends is less."""

WORTH = 0.008
"""Seconds on the link that make a part worth its calls."""


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """Tensors that a framework hands over together.

    Attributes:
        pieces: the tensors, in the order that all ranks have them in.
        whole: the flat tensor that the pieces cover without gaps, in order, where there is one.
        done: called on the exchange thread when the pieces hold the mean.
        fail: told of the exception instead.
    """

    pieces: tuple[Piece, ...]
    whole: torch.Tensor | None
    done: Callable[[], None]
    fail: Callable[[BaseException], None]


def enough(total: int, exchange_s: float = 0.0) -> int:
    """Elements after which groups of such a model do not wait any longer.

    Args:
        total: elements of all its tensors.
        exchange_s: seconds that a step's bytes are expected to take, if parts may follow each other closely.
    """
    parts = min(MOST, max(PARTS, int(exchange_s / WORTH)))
    return min(LEAST, -(-total // parts))


def elements(groups: Sequence[ReadyGroup]) -> int:
    """Number of elements of all the groups' pieces."""
    return sum(piece.flat.numel() for group in groups for piece in group.pieces)


def exchanged(pieces: Sequence[Piece]) -> str:
    """Say in words which tensors travel together."""
    first, last, count = pieces[0].name, pieces[-1].name, len(pieces)
    names = f"tensor {first}" if count == 1 else f"{count} tensors from {first} to {last}"
    return f"{names} ({sum(piece.flat.numel() for piece in pieces):,} elements)"
