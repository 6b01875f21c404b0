# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compares tensors that should be the same on all ranks with those of rank 0, and says by how much they differ.

``differences_from_first`` is a job: a generator that yields collectives, see ``Engine.run_between_steps``.

1. Ranks exchange the names, shapes and number formats of their tensors, and compare those that all ranks have.
2. Rank 0 sends its tensors, some megabytes at a time. Each rank computes how far its own tensors are from them.
3. Ranks exchange what they found. All of them come to the same ``Verdict``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gravac.collectives import Broadcast
from gravac.exchange.executor import Job
from gravac.modes.checksum import bytes_of
from gravac.modes.equalizing import CHUNK_BYTES, gather_texts


@dataclass(frozen=True, slots=True)
class ReplicatedTensor:
    """A parameter, or a tensor of its optimizer state, that should be the same on all ranks.

    Attributes:
        tensor: this rank's tensor, of any shape, detached.
        parameter_name: name of the parameter.
        is_trained: whether the parameter requires a gradient, or once did.
        optimizer_class: name of the optimizer's class; empty for a parameter.
        belongs_to_torch: whether the optimizer's class is one of torch's, whose states are the same on all ranks if
            gradients are.
    """

    tensor: torch.Tensor
    parameter_name: str
    is_trained: bool = True
    optimizer_class: str = ""
    belongs_to_torch: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """How a tensor differs from rank 0's.

    Attributes:
        label: text that names the tensor.
        parameter_name: name of the parameter, if the tensor is one, or of the parameter whose state the tensor is.
        distance: largest difference of two elements.
        magnitude: largest absolute element.
        ranks: ranks whose tensor differs from rank 0's.
        further_tensors: largest number of further tensors that differ by more than rounding on one of these ranks.
    """

    label: str
    parameter_name: str
    distance: float
    magnitude: float
    ranks: tuple[int, ...]
    further_tensors: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ranks that hold the same tensors found; the same on all of them.

    Attributes:
        ends: whether a tensor differs by so much that the run must end.
        is_rounding: whether tensors differ, but by no more than rounding.
        has_differences: whether any tensor that all ranks have differs in any bit that is not a NaN's.
        first: the first tensor that differs by more than rounding, or else the first that differs by rounding; ``None``
            if no tensor differs.
        uncompared_classes: names of optimizer classes whose states ranks need not hold alike.
    """

    ends: bool
    is_rounding: bool
    has_differences: bool
    first: Difference | None
    uncompared_classes: frozenset[str]


@dataclass(slots=True)
class _RankFindings:
    """What one rank found: the first difference of each kind, if any.

    Attributes:
        beyond_rounding: first tensor that must end the run: position, distance, magnitude.
        tensors_beyond_rounding: number of tensors that must end the run.
        rounding: first tensor that differs by no more than rounding: position, distance, magnitude.
        uncompared_classes: names of optimizer classes whose states differ, and may do so.
    """

    beyond_rounding: tuple[int, float, float] | None = None
    tensors_beyond_rounding: int = 0
    rounding: tuple[int, float, float] | None = None
    uncompared_classes: list[str] = field(default_factory=list)


def allowed_distance(dtype: torch.dtype, magnitude: float, steps: int) -> float:
    """Return the largest difference of elements that processors of different types may cause by rounding.

    In each step all ranks get the same gradient, and round the optimizer's update in their own way. Such errors of one
    unit in the last place add up like a random walk. In a format of 16 bits or fewer a result differs only if it lies
    close to the middle between two numbers, so that hardly any element differs by more than a few units.

    Args:
        dtype: number format of the tensor.
        magnitude: largest absolute element.
        steps: number of training steps since the tensors were the same.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    units = 4.0 if dtype.itemsize <= 2 else 16.0 + 4.0 * steps**0.5
    return torch.finfo(dtype).eps * magnitude * units


def differences_from_first(tensors: Mapping[str, ReplicatedTensor], device: torch.device, steps: int) -> Job[Verdict]:
    """Compare tensors with rank 0's, and return what all ranks found.

    Tensors are compared if all ranks have them, and at least one rank trains them. An optimizer's state that only some
    ranks have is not compared: optimizers that divide their work among the ranks keep such states.

    Args:
        tensors: this rank's tensors by a text that names each.
        device: device of the tensors that ranks exchange.
        steps: number of training steps since the tensors were the same.
    """
    layouts = {
        label: [str(entry.tensor.dtype), list(entry.tensor.shape), entry.optimizer_class, entry.is_trained]
        for label, entry in tensors.items()
    }
    layout_texts = yield from gather_texts(json.dumps(layouts), device)
    layouts_by_rank: list[dict[str, list[Any]]] = [json.loads(text) for text in layout_texts]
    common_labels = {
        label
        for label, layout in layouts.items()
        if all(rank_layouts.get(label, [])[:3] == layout[:3] for rank_layouts in layouts_by_rank)
    }
    unshared_classes = {
        layout[2]
        for rank_layouts in layouts_by_rank
        for label, layout in rank_layouts.items()
        if label not in common_labels and layout[2]
    }
    labels = [
        label
        for label, layout in layouts_by_rank[0].items()
        if label in common_labels
        and layout[2] not in unshared_classes
        and any(rank_layouts[label][3] for rank_layouts in layouts_by_rank)
    ]
    entries = [tensors[label] for label in labels]
    distances = yield from _distances([entry.tensor for entry in entries], device)
    findings_texts = yield from gather_texts(json.dumps(asdict(_findings(entries, distances, steps))), device)
    findings_by_rank = [_RankFindings(**json.loads(text)) for text in findings_texts]
    return _verdict(labels, entries, findings_by_rank, unshared_classes)


@dataclass(slots=True)
class _Distance:
    """How far a tensor is from rank 0's.

    Attributes:
        distance: largest difference of two elements; 0 if all elements are the same, or NaN in both tensors.
        magnitude: largest absolute element.
    """

    distance: float = 0.0
    magnitude: float = 0.0


def _distances(tensors: Sequence[torch.Tensor], device: torch.device) -> Job[list[_Distance]]:
    """Return how far this rank's tensors are from rank 0's; rank 0 sends its tensors."""
    distances = [_Distance() for _ in tensors]
    for pieces in _cut(tensors):
        own_bytes = [bytes_of(piece).to(device) for _, piece in pieces]
        (first_bytes,) = yield [Broadcast(torch.cat(own_bytes), 0)]
        byte_counts = [piece_bytes.numel() for piece_bytes in own_bytes]
        for (position, piece), piece_bytes in zip(pieces, torch.split(first_bytes, byte_counts), strict=True):
            distance, magnitude = _distance(piece.to(device), piece_bytes.clone().view(piece.dtype))
            distances[position].distance = max(distances[position].distance, distance)
            distances[position].magnitude = max(distances[position].magnitude, magnitude)
    return distances


def _cut(tensors: Iterable[torch.Tensor]) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Yield the tensors, in order, as lists of flat pieces of at most ``CHUNK_BYTES`` together.

    Each piece is a pair: position of the tensor, and elements of the tensor.
    """
    pieces: list[tuple[int, torch.Tensor]] = []
    used_bytes = 0
    for position, tensor in enumerate(tensors):
        for piece in torch.split(tensor.contiguous().reshape(-1), CHUNK_BYTES // tensor.element_size()):
            piece_bytes = piece.numel() * piece.element_size()
            if pieces and used_bytes + piece_bytes > CHUNK_BYTES:
                yield pieces
                pieces, used_bytes = [], 0
            if piece_bytes:
                pieces.append((position, piece))
                used_bytes += piece_bytes
    if pieces:
        yield pieces


def _distance(tensor: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of two tensors' elements, and their largest absolute finite element.

    Args:
        tensor: tensor of any shape, with at least one element.
        other: tensor of the same shape and number format.
    """
    wide_dtype = torch.complex128 if tensor.dtype.is_complex else torch.float64
    wide_tensor, wide_other = tensor.to(wide_dtype), other.to(wide_dtype)
    differs = (wide_tensor != wide_other) & ~(wide_tensor.isnan() & wide_other.isnan())
    distance = (wide_tensor - wide_other).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))[differs]
    magnitudes = torch.stack([wide_tensor.abs(), wide_other.abs()]).nan_to_num(nan=0.0, posinf=0.0)
    return float(distance.max()) if distance.numel() else 0.0, float(magnitudes.max())


def _findings(entries: Sequence[ReplicatedTensor], distances: Sequence[_Distance], steps: int) -> _RankFindings:
    """Return what this rank found.

    Args:
        entries: the compared tensors.
        distances: how far each tensor is from rank 0's.
        steps: number of training steps since the tensors were the same.
    """
    findings = _RankFindings()
    for position, (entry, tensor_distance) in enumerate(zip(entries, distances, strict=True)):
        distance, magnitude = tensor_distance.distance, tensor_distance.magnitude
        if not distance:
            continue
        if distance <= allowed_distance(entry.tensor.dtype, magnitude, steps):
            findings.rounding = findings.rounding or (position, distance, magnitude)
        elif entry.belongs_to_torch or not entry.optimizer_class:
            findings.beyond_rounding = findings.beyond_rounding or (position, distance, magnitude)
            findings.tensors_beyond_rounding += 1
        else:
            findings.uncompared_classes.append(entry.optimizer_class)
    findings.uncompared_classes = sorted(set(findings.uncompared_classes))
    return findings


def _verdict(
    labels: Sequence[str],
    entries: Sequence[ReplicatedTensor],
    findings_by_rank: Sequence[_RankFindings],
    unshared_classes: set[str],
) -> Verdict:
    """Return what all ranks found.

    Args:
        labels: texts that name the compared tensors.
        entries: the compared tensors.
        findings_by_rank: what each rank found.
        unshared_classes: names of optimizer classes of which ranks have different states.
    """
    beyond_by_rank = {
        rank: findings.beyond_rounding for rank, findings in enumerate(findings_by_rank) if findings.beyond_rounding
    }
    rounding_by_rank = {rank: findings.rounding for rank, findings in enumerate(findings_by_rank) if findings.rounding}
    uncompared_classes = unshared_classes.union(*(findings.uncompared_classes for findings in findings_by_rank))
    first: Difference | None = None
    if worst_by_rank := beyond_by_rank or rounding_by_rank:
        first_position = min(position for position, _, _ in worst_by_rank.values())
        at_position = {rank: worst for rank, worst in worst_by_rank.items() if worst[0] == first_position}
        first = Difference(
            label=labels[first_position],
            parameter_name=entries[first_position].parameter_name,
            distance=max(distance for _, distance, _ in at_position.values()),
            magnitude=max(magnitude for _, _, magnitude in at_position.values()),
            ranks=tuple(at_position),
            further_tensors=max(0, max(findings_by_rank[rank].tensors_beyond_rounding for rank in at_position) - 1),
        )
    return Verdict(
        ends=bool(beyond_by_rank),
        is_rounding=bool(rounding_by_rank),
        has_differences=bool(first or uncompared_classes),
        first=first,
        uncompared_classes=frozenset(uncompared_classes),
    )
