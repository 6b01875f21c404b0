# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that all ranks have the same settings, versions and parameters, before gradients are exchanged.

Ranks whose settings differ would train different weights without an error, or start different collectives, which hang
or abort.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gravac.exchange.failures import ExchangeError
from gravac.exchange.group import check_initialized
from gravac.settings import SettingsError

MISSING_TEXT = "none"
"""Text that an error message shows for ranks that lack the field which differs."""

MAX_SHOWN = 3
"""Largest number of ranks, of different texts of a field, and of further fields that an error message lists."""

T = TypeVar("T")


def check_alike(texts: Mapping[str, str], device: torch.device, group: dist.ProcessGroup | None) -> None:
    """Check that all ranks have the same texts. Called on every rank, before anything is exchanged.

    Args:
        texts: texts that describe settings, versions and parameters, by field name, which an error message shows.
        device: device of the gradients, on which NCCL exchanges the texts; other backends exchange them on the CPU.
        group: ranks whose texts are compared; ``None``: the default group.

    Raises:
        SettingsError: a text differs. The message is the same on all ranks, and has the field's name, its different
            texts, and the ranks that have each text.
        ExchangeError: a rank did not answer.
        RuntimeError: the default process group is not initialized.
    """
    check_initialized()
    world = dist.get_world_size(group)
    if world == 1:
        return
    digest = hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()
    try:
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            if len(set(gather_objects(digest, group))) == 1:
                return
            texts_by_rank = gather_objects(dict(texts), group)
    except RuntimeError as failure:
        raise ExchangeError(
            f"rank {dist.get_rank(group)} of {world} got no answer while ranks compared their settings: another "
            f"rank has failed, or has not called attach: {failure}"
        ) from failure
    raise SettingsError(difference(texts_by_rank))


def gather_objects(local: T, group: dist.ProcessGroup | None) -> list[T]:
    """Gather an object from each rank of a group (``None``: the default group); return the objects, by rank."""
    objects: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, local, group=group)
    return objects


def largest_shapes(shapes: Mapping[str, tuple[int, ...]], group: dist.ProcessGroup) -> dict[str, tuple[int, ...]]:
    """Return a shape for each parameter: in each dimension the largest size over the ranks. Called on every rank.

    Args:
        shapes: shapes of this rank's parameters, by name.
        group: process group of ranks that hold different parts of one model, and make the same decisions.

    Raises:
        SettingsError: ranks have parameters of different names, or of different numbers of dimensions.
    """
    shapes_of_ranks = gather_objects(dict(shapes), group)
    dimensions_by_rank = [{name: len(shape) for name, shape in rank_shapes.items()} for rank_shapes in shapes_of_ranks]
    for rank, dimensions in enumerate(dimensions_by_rank):
        if differing_parameters := sorted(dimensions.items() ^ dimensions_by_rank[0].items()):
            name, dimension_count = differing_parameters[0]
            raise SettingsError(
                f"agree_group: ranks 0 and {rank} of the group do not both have a parameter {name} with "
                f"{dimension_count} dimensions, so they train different models; give a group of ranks that hold parts "
                "of the same parameters (in a pipeline, a group for each stage)"
            )
    return {
        name: tuple(max(sizes) for sizes in zip(*(rank_shapes[name] for rank_shapes in shapes_of_ranks), strict=True))
        for name in shapes
    }


def difference(texts_by_rank: Sequence[Mapping[str, str]]) -> str:
    """Return an error message: the first field that differs, its text on each rank, and other fields that differ.

    Args:
        texts_by_rank: each rank's texts by field name, in the order of the ranks; at least one text differs.

    Example:
        >>> difference([{"base": "topk", "seed": "0"}, {"base": "topk", "seed": "1"}, {"base": "topk", "seed": "0"}])
        'seed: ranks 0, 2 have 0, rank 1 has 1; give every rank the same'
    """
    fields = dict.fromkeys(field for texts in texts_by_rank for field in texts)
    first_field, *further_fields = [field for field in fields if len({texts.get(field) for texts in texts_by_rank}) > 1]
    ranks_by_text: dict[str | None, list[int]] = {}
    for rank, texts in enumerate(texts_by_rank):
        ranks_by_text.setdefault(texts.get(first_field), []).append(rank)
    clauses = [
        f"{_subject_and_verb(ranks)} {MISSING_TEXT if text is None else text}"
        for text, ranks in list(ranks_by_text.items())[:MAX_SHOWN]
    ]
    clauses += [f"and {len(ranks_by_text) - MAX_SHOWN} other values"] * (len(ranks_by_text) > MAX_SHOWN)
    more_fields_text = ", ".join(further_fields[:MAX_SHOWN]) + f" and {len(further_fields) - MAX_SHOWN} more" * (
        len(further_fields) > MAX_SHOWN
    )
    return f"{first_field}: {', '.join(clauses)}; give every rank the same" + (
        f" (these differ, too: {more_fields_text})" if further_fields else ""
    )


def texts_of_tensors(tensors: Mapping[str, torch.Tensor], kind: str = "parameter") -> dict[str, str]:
    """Return a text for each tensor, with name, shape and dtype; if not contiguous, also its dimensions' memory order.

    Args:
        tensors: tensors of any shape, by name.
        kind: what the tensors are. The key of a tensor's text is ``kind`` and the tensor's position, counted from 0.

    Example:
        >>> texts_of_tensors({"weight": torch.zeros(3, 2)})
        {'parameter 0': 'weight [3, 2] float32'}
    """
    return {f"{kind} {n}": f"{name} {_shape_text(tensor)}" for n, (name, tensor) in enumerate(tensors.items())}


def _shape_text(tensor: torch.Tensor) -> str:
    """Return a text with a tensor's shape and dtype; if not contiguous, also the order of its dimensions in memory."""
    shape_and_dtype = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return shape_and_dtype
    strides = tensor.stride()
    return (
        f"{shape_and_dtype}, dimensions in memory {sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))}"
    )


def _subject_and_verb(ranks: Sequence[int]) -> str:
    """Return the subject and verb of a message's clause: ``"rank 1 has"``, ``"ranks 0, 2 have"``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    if len(ranks) > MAX_SHOWN:
        return f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}, have"
    return f"ranks {', '.join(map(str, ranks))} have"
