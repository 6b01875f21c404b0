# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange groups that are compressed together, because each by itself is small, or in parts, because it is large.

Coding starts with cold caches whenever backward ran in between, which costs some milliseconds whatever the size. So
groups wait for the next until they are worth it, or until the backward has no more. And it takes memory by the element,
so that a group that is large, as DDP's first one is, goes in parts. What waits and what is cut depends on sizes and the
step's plan, and on what the link was probed at: the same on all ranks. Dense groups never wait, and are never cut:
nothing is coded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from gravac.averaging.plan import Piece, Plan
from gravac.compressors.profile import CODING_BYTES

LEAST = 1 << 20
"""Number of elements that are always worth being compressed by themselves."""

PARTS = 3
"""Number of parts that a small model is compressed in: later parts are coded while earlier ones travel."""

TEMPORARIES = 64 << 20
"""Bytes that coding tensors together may take beside gradients and what is kept, unless one alone takes more."""

LARGEST = TEMPORARIES // CODING_BYTES - LEAST
"""Most elements of a part: fewer than ``LEAST`` more may have waited for it, whatever the compressor."""

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
        more: whether it is a part of a larger group, of which more is about to come.
    """

    pieces: tuple[Piece, ...]
    whole: torch.Tensor | None
    done: Callable[[], None]
    fail: Callable[[BaseException], None]
    more: bool = False


class Waiting:
    """Groups that wait for the next.

    Attributes:
        groups: those that do.
        enough: number of elements that go without waiting.
        most: number of elements that may go together, unless it is a single tensor.
    """

    def __init__(self) -> None:
        self.groups: list[ReadyGroup] = []
        self.enough = self.most = 0

    def begin(self, plan: Plan, total: int, exchange_s: float = 0.0) -> None:
        """A step begins.

        Args:
            plan: its plan.
            total: elements of all the model's tensors.
            exchange_s: see ``enough``.
        """
        self.enough = enough(total, exchange_s)
        self.most = TEMPORARIES // max(choice.profile.coding_bytes for choice in plan.choices)

    def take(self, group: ReadyGroup | None, at_once: bool) -> list[ReadyGroup]:
        """Return what goes now that a group has come, perhaps ``at_once``: all there are, or none.

        A part waits for the next one of its group where both may go together.
        """
        self.groups += [] if group is None else [group]
        so_far = elements(self.groups)
        for_more = group is not None and group.more and so_far + LARGEST <= self.most
        if not at_once and (so_far < self.enough or for_more):
            return []
        going, self.groups = self.groups, []
        return going


def enough(total: int, exchange_s: float = 0.0) -> int:
    """Elements after which groups of such a model do not wait any longer.

    Args:
        total: elements of all its tensors.
        exchange_s: seconds that a step's bytes are expected to take, if parts may follow each other closely.
    """
    parts = min(MOST, max(PARTS, int(exchange_s / WORTH)))
    return min(LEAST, -(-total // parts))


def cut(group: ReadyGroup, join: Callable[[], None]) -> list[ReadyGroup]:
    """A group in parts of at most ``LARGEST`` elements, or of a single tensor; itself, where that is one part.

    Args:
        group: tensors in order; told when all parts hold the mean, by the last one.
        join: has what comes then follow all earlier parts.
    """
    parts: list[list[Piece]] = []
    room = 0
    for piece in group.pieces:
        size = piece.flat.numel()
        if not parts or size > room:
            parts.append([])
            room = LARGEST
        parts[-1].append(piece)
        room -= size
    if len(parts) < 2:
        return [group]

    def done() -> None:
        join()
        group.done()

    *first, last = (replace(group, pieces=tuple(part), whole=None, done=lambda: None, more=True) for part in parts)
    return [*first, replace(last, done=done, more=False)]


def elements(groups: Sequence[ReadyGroup]) -> int:
    """Number of elements of all the groups' pieces."""
    return sum(piece.flat.numel() for group in groups for piece in group.pieces)


def exchanged(pieces: Sequence[Piece]) -> str:
    """Say in words which tensors travel together."""
    first, last, count = pieces[0].name, pieces[-1].name, len(pieces)
    names = f"tensor {first}" if count == 1 else f"{count} tensors from {first} to {last}"
    return f"{names} ({sum(piece.flat.numel() for piece in pieces):,} elements)"
