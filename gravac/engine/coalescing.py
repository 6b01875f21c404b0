# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange groups that are compressed together, because each by itself is small, or in parts, because it is large.

Coding starts with cold caches whenever backward ran in between, which costs some milliseconds whatever the size. So
groups wait for the next until they are worth it, or until the backward has no more. And it takes memory by the element,
so that a group that is large, as DDP's first one is, goes in parts: as many elements together as their compressor can
code in ``TEMPORARIES``, the one bound there is. What waits and what is cut depends on sizes, the device, the step's
plan, and on what the link was probed at: the same on all ranks. Dense groups never wait, and are never cut: nothing is
coded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from gravac.averaging.plan import Piece
from gravac.compressors.profile import CODING_BYTES
from gravac.exchange.executor import Verdict

LEAST = 1 << 20
"""Number of elements that are always worth being compressed by themselves."""

PARTS = 3
"""Number of parts that a small model is compressed in: later parts are coded while earlier ones travel."""

TEMPORARIES = 64 << 20
"""Bytes that coding tensors together may take beside gradients and what is kept, unless one alone takes more."""

LARGEST = TEMPORARIES // CODING_BYTES - LEAST
"""Most elements of a part, whatever the compressor: fewer than ``LEAST`` more may have waited for it."""

MOST = 8
"""Most parts, where the link is slow: it is busy sooner, and what is left when backward ends is less."""

WORTH = 0.008
"""Seconds on the link that make a part worth its calls."""


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """Tensors that a framework hands over together.

    Attributes:
        pieces: the tensors, in the order that all ranks have them in.
        buffer: the flat tensor that the pieces cover without gaps, in order, where there is one.
        done: called on the exchange thread when the pieces hold the mean.
        fail: told of the exception instead.
        known: whether all of the group, on this rank, is finite, as far as whoever hands it over knows.
        more: elements of the next part, where it is one of a larger group, of which that is about to come; else 0.
    """

    pieces: tuple[Piece, ...]
    buffer: torch.Tensor | None
    done: Callable[[], None]
    fail: Callable[[BaseException], None]
    known: Verdict = True
    more: int = 0


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

    def set_limits(self, coding_bytes: int, total: int, exchange_s: float = 0.0, on_cpu: bool = False) -> None:
        """Set how many elements are compressed together in the step that begins.

        Args:
            coding_bytes: bytes that averaging takes for each element; see ``Averager.coding_bytes``.
            total: elements of all the model's tensors.
            exchange_s: see ``enough``.
            on_cpu: whether the gradients lie where calls cost little, and a part is coded while others travel.
        """
        self.enough = enough(total, exchange_s)
        self.most = TEMPORARIES // (CODING_BYTES if on_cpu else coding_bytes)

    def take(self, group: ReadyGroup | None, at_once: bool) -> list[ReadyGroup]:
        """Return what goes now that a group has come, perhaps ``at_once``: all there are, or none.

        A part waits for the next one of its group where both may go together.
        """
        self.groups += [] if group is None else [group]
        so_far = elements(self.groups)
        for_more = group is not None and group.more and so_far + group.more <= self.most
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
    parts = in_parts(group.pieces, LARGEST)
    if len(parts) < 2:
        return [group]

    def done() -> None:
        join()
        group.done()

    sizes = [sum(piece.flat.numel() for piece in part) for part in parts]
    *first, last = (
        replace(group, pieces=tuple(part), buffer=None, done=lambda: None, more=following)
        for part, following in zip(parts, [*sizes[1:], 0], strict=True)
    )
    return [*first, replace(last, done=done)]


def in_parts(pieces: Sequence[Piece], most: int) -> list[list[Piece]]:
    """Pieces in parts of at most so many elements, or of a single piece, in order."""
    parts: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        size = piece.flat.numel()
        if not parts or size > room:
            parts.append([])
            room = most
        parts[-1].append(piece)
        room -= size
    return parts


def elements(groups: Sequence[ReadyGroup]) -> int:
    """Number of elements of all the groups' pieces."""
    return sum(piece.flat.numel() for group in groups for piece in group.pieces)


def exchanged(pieces: Sequence[Piece]) -> str:
    """Say in words which tensors travel together."""
    first, last, count = pieces[0].name, pieces[-1].name, len(pieces)
    names = f"tensor {first}" if count == 1 else f"{count} tensors from {first} to {last}"
    return f"{names} ({sum(piece.flat.numel() for piece in pieces):,} elements)"
