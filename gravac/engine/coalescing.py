# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Joins small exchange groups, to compress them in one job, and cuts large groups into segments.

An exchange group is a set of tensors whose gradients become ready together, such as a bucket of DDP. Coding (encode and
decode) starts with cold caches if backward ran before, which costs some milliseconds at any size. So a group waits for
further groups until they are large enough together, or until backward ends. Coding also takes memory for each element.
So a large group, such as DDP's first group, is cut into segments: a job has at most as many elements as its compressor
can code in ``MAX_CODING_BYTES`` bytes.

Which groups wait, and which are cut, depends on sizes, the device, the step's plan and the link's speed. All of these
are the same on all ranks. Dense groups never wait and are never cut, since they are not coded.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch

from gravac.averaging.plan import Piece
from gravac.compressors.profile import CODING_BYTES_PER_ELEMENT
from gravac.engine.handle import Averaged
from gravac.exchange.executor import Executor
from gravac.exchange.reading import Finite, both

ALWAYS_ENOUGH = 1 << 20
"""Number of elements at which waiting groups stop waiting and are compressed, however slow or fast the link is."""

ALWAYS_ENOUGH_ON_CPU = 4 << 20
"""The same on a CPU, where jobs and training compete for cores and caches: a job costs more than its calls."""

CODING_BYTES_PER_ELEMENT_ON_CPU = 8
"""Most memory that coding takes on a CPU, in bytes per element: tensors are coded one by one, or piece by piece."""

FEWEST_JOBS = 3
"""Smallest number of jobs that a step's gradients are divided into: a job is coded while another is in flight."""

MAX_CODING_BYTES = 64 << 20
"""Bytes that the coding of a job may take besides gradients and residuals; a single tensor may take more."""

MAX_SEGMENT_ELEMENTS = MAX_CODING_BYTES // CODING_BYTES_PER_ELEMENT - ALWAYS_ENOUGH
"""Largest number of elements of a segment, which is a part of an exchange group.

A job has room for a segment and for groups that waited, which have fewer than ``ALWAYS_ENOUGH`` elements together.
"""

MAX_SEGMENT_ELEMENTS_ON_CPU = MAX_CODING_BYTES // CODING_BYTES_PER_ELEMENT_ON_CPU - ALWAYS_ENOUGH_ON_CPU
"""The same on a CPU: a job has room for a bucket of DDP's, of 25 MiB."""

MOST_JOBS = 8
"""Largest number of jobs that a step's gradients are divided into, on a slow link.

The more jobs, the earlier the first job is in flight, but the more the jobs' calls cost.
"""

MIN_JOB_SECONDS = 0.008
"""Smallest exchange time of a job, in seconds, that is worth the cost of the job's calls."""


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """An exchange group (tensors that are handed over together) with ready gradients, or a segment of such a group.

    Attributes:
        pieces: the tensors, in the same order on all ranks.
        buffer: the flat tensor of which the pieces are consecutive views without gaps; ``None`` if there is none.
        averaged: future that is completed when the tensors of the whole group hold their mean over the ranks.
        finite: whether all gradients of the group are finite on this rank.
        next_segment_elements: number of elements of the group's next segment; 0 if no segment follows.
        means_finite: whether the means of the group's segments so far are finite; shared by all segments.
        cut_from: the group of which this is a segment; ``None``: this is a whole group.
        is_final: whether this is the last segment of its group, or a whole group.
    """

    pieces: tuple[Piece, ...]
    buffer: torch.Tensor | None
    averaged: Averaged = field(default_factory=Future)
    finite: Finite = None
    next_segment_elements: int = 0
    means_finite: list[torch.Tensor] = field(default_factory=list)
    cut_from: "ReadyGroup | None" = None
    is_final: bool = True

    @property
    def whole(self) -> "ReadyGroup | None":
        """The whole group if this is its last segment, or the group itself; otherwise ``None``."""
        return (self.cut_from or self) if self.is_final else None

    def add_mean(self, finite: Finite, executor: Executor) -> None:
        """Record that the tensors hold their mean; complete ``averaged`` with the group's last segment.

        Args:
            finite: whether the mean is finite.
            executor: executor that runs the present job; earlier segments may have run on another stream.
        """
        if finite is not None:
            self.means_finite.append(finite)
        if not self.is_final or self.averaged.done():
            return
        if self.cut_from is not None:
            executor.join()
        self.averaged.set_result(self.means_finite)


class Waiting:
    """Exchange groups that wait until they have enough elements together to be compressed in one job.

    Attributes:
        groups: the waiting groups, in order.
        enough_elements: number of elements at which the groups stop waiting and are compressed.
        max_elements: largest number of elements of a job; a job of a single tensor may have more.
    """

    def __init__(self) -> None:
        self.groups: list[ReadyGroup] = []
        self.enough_elements = self.max_elements = 0

    def set_limits(
        self, coding_bytes_per_element: int, model_elements: int, exchange_s: float = 0.0, on_cpu: bool = False
    ) -> None:
        """Set how many elements are compressed in one job of the step that begins.

        Args:
            coding_bytes_per_element: largest memory that averaging takes besides gradients and residuals, in bytes per
                element.
            model_elements: number of elements of all the model's tensors.
            exchange_s: seconds that exchanging all tensors in one job would take on the link; 0: not known.
            on_cpu: whether the gradients are on a CPU, on which calls cost little, and a job is coded while others are
                in flight.
        """
        always_enough = ALWAYS_ENOUGH_ON_CPU if on_cpu else ALWAYS_ENOUGH
        self.enough_elements = elements_per_job(model_elements, exchange_s, always_enough)
        bytes_per_element = CODING_BYTES_PER_ELEMENT_ON_CPU if on_cpu else coding_bytes_per_element
        self.max_elements = MAX_CODING_BYTES // bytes_per_element

    def take(self, group: ReadyGroup | None, at_once: bool) -> list[ReadyGroup]:
        """Add a group; return the groups to compress now, in one job: either all waiting groups, or none.

        None are returned in two cases: the waiting groups have fewer than ``enough_elements`` elements together, or the
        next segment of the same group still fits into the job. Returned groups no longer wait.

        Args:
            group: group, or segment of a group, to add; ``None``: nothing is added.
            at_once: whether to return all groups in any case.
        """
        self.groups += [] if group is None else [group]
        waiting_elements = elements(self.groups)
        next_segment_fits = group is not None and (
            0 < group.next_segment_elements <= self.max_elements - waiting_elements
        )
        if not at_once and (waiting_elements < self.enough_elements or next_segment_fits):
            return []
        groups_to_compress, self.groups = self.groups, []
        return groups_to_compress


def elements_per_job(model_elements: int, exchange_s: float = 0.0, always_enough: int = ALWAYS_ENOUGH) -> int:
    """Return the number of elements at which waiting groups stop waiting for further groups, and are compressed.

    Args:
        model_elements: number of elements of all the model's tensors.
        exchange_s: predicted seconds of a step's exchange; 0: not known, or only one job may be in flight at a time.
        always_enough: largest result.
    """
    job_count = min(MOST_JOBS, max(FEWEST_JOBS, int(exchange_s / MIN_JOB_SECONDS)))
    return min(always_enough, -(-model_elements // job_count))


def cut(group: ReadyGroup, on_cpu: bool = False) -> list[ReadyGroup]:
    """Cut an exchange group into segments of at most ``MAX_SEGMENT_ELEMENTS`` (``..._ON_CPU``) elements.

    A larger tensor is a segment by itself.

    Args:
        group: the group. Its future is completed when all segments hold their mean.
        on_cpu: whether the gradients are on a CPU.

    Returns:
        The segments, in order; only the group itself if it is small enough.
    """
    segments = split(group.pieces, MAX_SEGMENT_ELEMENTS_ON_CPU if on_cpu else MAX_SEGMENT_ELEMENTS)
    if len(segments) < 2:
        return [group]

    segment_sizes = [sum(piece.flat.numel() for piece in segment) for segment in segments]
    return [
        replace(
            group,
            pieces=tuple(segment),
            buffer=None,
            next_segment_elements=next_elements,
            cut_from=group,
            is_final=segment is segments[-1],
        )
        for segment, next_elements in zip(segments, [*segment_sizes[1:], 0], strict=True)
    ]


def split(pieces: Sequence[Piece], max_elements: int) -> list[list[Piece]]:
    """Split tensors, in order, into lists of at most ``max_elements`` elements; a larger tensor is a list by itself."""
    segments: list[list[Piece]] = []
    free_elements = 0
    for piece in pieces:
        piece_elements = piece.flat.numel()
        if not segments or piece_elements > free_elements:
            segments.append([])
            free_elements = max_elements
        segments[-1].append(piece)
        free_elements -= piece_elements
    return segments


def elements(groups: Sequence[ReadyGroup]) -> int:
    """Return the number of elements of all the groups' tensors."""
    return sum(piece.flat.numel() for group in groups for piece in group.pieces)


def finite_of(groups: Sequence[ReadyGroup]) -> Finite:
    """Return whether all gradients of some groups are finite on this rank."""
    return functools.reduce(both, (group.finite for group in groups), None)


def describe(pieces: Sequence[Piece]) -> str:
    """Return a text for error messages: how many tensors a job exchanges, their first and last name, their elements."""
    first_name, final_name, tensor_count = pieces[0].name, pieces[-1].name, len(pieces)
    names_text = (
        f"tensor {first_name}" if tensor_count == 1 else f"{tensor_count} tensors from {first_name} to {final_name}"
    )
    return f"{names_text} ({sum(piece.flat.numel() for piece in pieces):,} elements)"
