# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Energies of chunks of consecutive numbers as one kernel, with the residual added on the way.

Source: ``compressors/chunks.py``, and Han et al., HotNets 2024 (arXiv 2407.01378), section 3.1, for what they choose.
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.kernels.layout import GRADIENTS, RESIDUALS, on_device_of, require_flat

TILE = 2048
"""Numbers that a program holds at once."""


@triton.jit
def _energies(
    gradient: tl.tensor,
    residual: tl.tensor,
    folded: tl.tensor,
    energies: tl.tensor,
    numbers: tl.tensor,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    row = tl.arange(0, rows)
    first = tl.program_id(0).to(tl.int64) * rows
    within = tl.minimum(numbers - first * chunk, rows * chunk).to(tl.int32)
    squares = tl.zeros([rows, columns], tl.float32)
    for start in range(0, chunk, columns):
        column = start + tl.arange(0, columns)
        at = row[:, None] * chunk + column[None, :]
        there = (column < chunk)[None, :] & (at < within)
        x = tl.load(gradient + first * chunk + at, mask=there, other=0).to(tl.float32)
        if residual is not None:
            x = tl.load(residual + first * chunk + at, mask=there, other=0).to(tl.float32) + x
        if folded is not None:
            tl.store(folded + first * chunk + at, x, mask=there)
        squares += x * x
    tl.store(energies + first + row, tl.sum(squares, axis=1), mask=row * chunk < within)


def chunk_energies(
    gradient: torch.Tensor,
    chunk: int,
    *,
    residual: torch.Tensor | None = None,
    folded: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum of squares of each chunk of ``residual + gradient``, in float32: one launch.

    Args:
        gradient: flat, ``[elements]``, contiguous: float32, float16 or bfloat16.
        chunk: numbers per chunk; the last may have fewer.
        residual: float32 or bfloat16, flat, ``[elements]``, contiguous; ``None``: zeros.
        folded: float32, likewise, and may be the residual; overwritten with the sum. ``None``: that is not kept.

    Returns:
        float32, ``[ceil(elements / chunk)]``; not finite where a number of the chunk is not.

    Raises:
        ValueError: a tensor is not as described.
    """
    require_flat(gradient.numel(), GRADIENTS, gradient=gradient)
    require_flat(gradient.numel(), RESIDUALS, residual=residual)
    require_flat(gradient.numel(), folded=folded)
    energies: torch.Tensor = _energies_op(gradient, residual, folded, chunk)
    return energies


@triton_op("gravac::chunk_energies", mutates_args=("folded",))
def _energies_op(
    gradient: torch.Tensor, residual: torch.Tensor | None, folded: torch.Tensor | None, chunk: int
) -> torch.Tensor:
    energies: torch.Tensor = _output(gradient, residual, folded, chunk)
    if len(energies):
        columns = min(TILE, triton.next_power_of_2(chunk))
        rows = TILE // columns
        programs = triton.cdiv(len(energies), rows)
        with on_device_of(gradient):
            wrap_triton(_energies)[(programs,)](
                gradient, residual, folded, energies, gradient.numel(), chunk=chunk, rows=rows, columns=columns
            )
    return energies


@_energies_op.register_fake
def _output(
    gradient: torch.Tensor, residual: torch.Tensor | None, folded: torch.Tensor | None, chunk: int
) -> torch.Tensor:
    return gradient.new_empty(-(-gradient.numel() // chunk), dtype=torch.float32)
