# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A kernel that writes values of selected chunks into tensors: the inverse of ``kernels.chunks.take``."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.kernels.layout import GRADIENT_DTYPES, on_device_of, require_flat
from gravac.compressors.kernels.tiles import MAX_TENSORS, pick, tiling


@triton.jit
def _decode(
    denses: tl.tuple,
    values: tl.tensor,
    chunk_indices: tl.tensor,
    elements: tl.tensor,
    selected_count: tl.tensor,
    k: tl.tensor,
    width: tl.tensor,
    alpha: tl.tensor,
    tensor_count: tl.constexpr,
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
    preceding_count = tl.zeros_like(chunk_number)
    for halving in tl.static_range(halvings):
        higher_count = preceding_count + (1 << (halvings - 1 - halving))
        more_precede = (
            tl.load(chunk_indices_of_tensor + higher_count - 1, mask=higher_count < selected_count, other=0)
            < chunk_number
        )
        preceding_count = tl.where((higher_count < selected_count) & more_precede, higher_count, preceding_count)
    has_same_number = (
        tl.load(chunk_indices_of_tensor + preceding_count, mask=preceding_count < selected_count, other=-1)
        == chunk_number
    )
    matches = (preceding_count < selected_count) & has_same_number
    is_last = tl.load(chunk_indices_of_tensor + selected_count - 1) == chunk_number
    slot = tl.where(is_last, selected_count - 1, preceding_count)
    dense = pick(denses, tensor_index, tensor_count)
    for first_column in range(0, chunk, columns):
        column = first_column + tl.arange(0, columns)
        target = chunk_number[:, None] * chunk + column[None, :]
        source = slot[:, None] * chunk + column[None, :]
        inside = (column < chunk)[None, :] & (target < elements)
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
        require_flat(denses[0].numel(), GRADIENT_DTYPES, dense=dense)
    for first_tensor in range(0, len(denses), MAX_TENSORS):
        launch_slice = slice(first_tensor, first_tensor + MAX_TENSORS)
        _decode_op(
            denses[launch_slice],
            values[launch_slice],
            chunk_indices[launch_slice].contiguous(),
            k,
            chunk,
            alpha,
        )


@triton_op("gravac::chunk_decode", mutates_args=("denses",))
def _decode_op(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None,
) -> None:
    tiles, (tensor_count, selected_count) = tiling(chunk), chunk_indices.shape
    elements = denses[0].numel()
    with on_device_of(values):
        wrap_triton(_decode)[(triton.cdiv(triton.cdiv(elements, chunk), tiles["rows"]), tensor_count)](
            tuple(denses),
            values,
            chunk_indices,
            elements,
            selected_count,
            k,
            values.shape[1],
            1.0 if alpha is None else float(alpha),
            tensor_count=tensor_count,
            halvings=(selected_count - 1).bit_length(),
            add=alpha is not None,
            chunk=chunk,
            **tiles,
            enable_fp_fusion=False,
        )


@_decode_op.register_fake
def _fake_decode(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None,
) -> None:
    return None
