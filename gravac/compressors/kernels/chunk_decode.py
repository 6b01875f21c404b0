# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Values of chosen chunks put back where they were taken by ``gravac.compressors.kernels.chunks``, by a kernel."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.kernels.layout import GRADIENTS, on_device_of, require_flat
from gravac.compressors.kernels.tiles import MOST, pick, tiling


@triton.jit
def _decode(
    denses: tl.tuple,
    values: tl.tensor,
    order: tl.tensor,
    numbers: tl.tensor,
    chosen: tl.tensor,
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
    which = tl.program_id(1)
    number = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    own = order + which.to(tl.int64) * chosen
    # all but the last ascend: how many of these come before a chunk
    before = tl.zeros_like(number)
    for halving in tl.static_range(halvings):
        upto = before + (1 << (halvings - 1 - halving))
        less = tl.load(own + upto - 1, mask=upto < chosen, other=0) < number
        before = tl.where((upto < chosen) & less, upto, before)
    found = (before < chosen) & (tl.load(own + before, mask=before < chosen, other=-1) == number)
    last = tl.load(own + chosen - 1) == number
    place = tl.where(last, chosen - 1, before)
    dense = pick(denses, which, count)
    for start in range(0, chunk, columns):
        column = start + tl.arange(0, columns)
        at = number[:, None] * chunk + column[None, :]
        of = place[:, None] * chunk + column[None, :]
        inside = (column < chunk)[None, :] & (at < numbers)
        sent = inside & (found | last)[:, None] & (of < k)
        mean = tl.load(values + which.to(tl.int64) * width + of, mask=sent, other=0).to(tl.float32)
        if add:
            mean = tl.load(dense + at, mask=sent, other=0).to(tl.float32) + mean * alpha
            tl.store(dense + at, mean.to(dense.dtype.element_ty), mask=sent)
        else:
            tl.store(dense + at, mean.to(dense.dtype.element_ty), mask=inside)


def decode(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    order: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None = None,
) -> None:
    """Put values of chosen chunks into tensors, zeros elsewhere, or add them: one launch for every ``MOST`` tensors.

    Args:
        denses: equally long tensors, each flat, ``[elements]``, contiguous: float32, float16 or bfloat16; changed.
        values: ``[count, width]``, of which the first k are taken, contiguous; as ``take`` gave them, in any dtype.
        order: chunk numbers of each, as ``take`` was given them; all but the last ascending: int64, ``[count, m]``.
        k: numbers of each tensor.
        chunk: numbers per chunk.
        alpha: what values are multiplied by before they are added; ``None``: they replace what was there.

    Raises:
        ValueError: a tensor is not as described.
    """
    for dense in denses:
        require_flat(denses[0].numel(), GRADIENTS, dense=dense)
    for start in range(0, len(denses), MOST):
        some = slice(start, start + MOST)
        _decode_op(denses[some], values[some], order[some].contiguous(), k, chunk, alpha)


@triton_op("gravac::chunk_decode", mutates_args=("denses",))
def _decode_op(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    order: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None,
) -> None:
    tiles, (count, chosen) = tiling(chunk), order.shape
    numbers = denses[0].numel()
    with on_device_of(values):
        wrap_triton(_decode)[(triton.cdiv(triton.cdiv(numbers, chunk), tiles["rows"]), count)](
            tuple(denses),
            values,
            order,
            numbers,
            chosen,
            k,
            values.shape[1],
            1.0 if alpha is None else float(alpha),
            count=count,
            halvings=(chosen - 1).bit_length(),
            add=alpha is not None,
            chunk=chunk,
            **tiles,
            enable_fp_fusion=False,
        )


@_decode_op.register_fake
def _decodes_in_place(
    denses: Sequence[torch.Tensor],
    values: torch.Tensor,
    order: torch.Tensor,
    k: int,
    chunk: int,
    alpha: float | None,
) -> None:
    return None
