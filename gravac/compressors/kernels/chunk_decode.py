# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A kernel that writes values of selected chunks into tensors: the inverse of ``kernels.chunks.take``."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.kernels.layout import GRADIENTS, on_device_of, require_flat
from gravac.compressors.kernels.tiles import MAX_TENSORS, pick, tiling


@triton.jit
def _decode(
    denses: tl.tuple,
    values: tl.tensor,
    chunk_indices: tl.tensor,
    numbers: tl.tensor,
    selected_count: tl.tensor,
    k: tl.tensor,
    width: tl.tensor,
    alpha: tl.tensor,
    count: tl.constexpr,
    halvings: tl.constexpr,
    add: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    tensor_index = tl.program_id(1)
    chunk_number = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    chunk_indices_of_tensor = chunk_indices + tensor_index.to(tl.int64) * selected_count
    # all selected chunks except the last ascend: count those before this chunk by binary search
    preceding = tl.zeros_like(chunk_number)
    for halving in tl.static_range(halvings):
        probe = preceding + (1 << (halvings - 1 - halving))
        precedes = tl.load(chunk_indices_of_tensor + probe - 1, mask=probe < selected_count, other=0) < chunk_number
        preceding = tl.where((probe < selected_count) & precedes, probe, preceding)
    same_number = (
        tl.load(chunk_indices_of_tensor + preceding, mask=preceding < selected_count, other=-1) == chunk_number
    )
    matches = (preceding < selected_count) & same_number
    is_last = tl.load(chunk_indices_of_tensor + selected_count - 1) == chunk_number
    slot = tl.where(is_last, selected_count - 1, preceding)
    dense = pick(denses, tensor_index, count)
    for start in range(0, chunk, columns):
        column = start + tl.arange(0, columns)
        target = chunk_number[:, None] * chunk + column[None, :]
        source = slot[:, None] * chunk + column[None, :]
        inside = (column < chunk)[None, :] & (target < numbers)
        is_sent = inside & (matches | is_last)[:, None] & (source < k)
        mean = tl.load(values + tensor_index.to(tl.int64) * width + source, mask=is_sent, other=0).to(tl.float32)
        if add:
            mean = tl.load(dense + target, mask=is_sent, other=0).to(tl.float32) + mean * alpha
            tl.store(dense + target, mean.to(dense.dtype.element_ty), mask=is_sent)
        else:
            tl.store(dense + target, mean.to(dense.dtype.element_ty), mask=inside)


def decode(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None = None,
) -> None:
    """Write the values of selected chunks into tensors, and zeros elsewhere; or add the values to the tensors.

    Each launch changes up to ``MAX_TENSORS`` tensors.

    Args:
        denses: equally long tensors, each flat, ``[elements]``, contiguous: float32, float16 or bfloat16; changed.
        values: values of each tensor's selected chunks, as ``take`` returns them: a row per tensor, contiguous, any
            dtype. Only the first k values of a row are used.
        chunk_indices: indices of each tensor's selected chunks, in the order of the values: int64, a row per tensor. A
            row ascends, except that its last index may be any.
        k: number of values per tensor.
        chunk: elements per chunk.
        alpha: number by which values are multiplied before they are added; ``None``: values replace all numbers.

    Raises:
        ValueError: a tensor in ``denses`` has another shape or dtype, or is not contiguous.
    """
    for dense in denses:
        require_flat(denses[0].numel(), GRADIENTS, dense=dense)
    for start in range(0, len(denses), MAX_TENSORS):
        launch = slice(start, start + MAX_TENSORS)
        _decode_op(denses[launch], values[launch], chunk_indices[launch].contiguous(), k, chunk, alpha)


@triton_op("gravac::chunk_decode", mutates_args=("denses",))
def _decode_op(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None,
) -> None:
    tiles, (count, selected_count) = tiling(chunk), chunk_indices.shape
    numbers = denses[0].numel()
    with on_device_of(values):
        wrap_triton(_decode)[(triton.cdiv(triton.cdiv(numbers, chunk), tiles["rows"]), count)](
            tuple(denses),
            values,
            chunk_indices,
            numbers,
            selected_count,
            k,
            values.shape[1],
            1.0 if alpha is None else float(alpha),
            count=count,
            halvings=(selected_count - 1).bit_length(),
            add=alpha is not None,
            chunk=chunk,
            **tiles,
            enable_fp_fusion=False,
        )


@_decode_op.register_fake
def _decodes_in_place(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None,
) -> None:
    return None
