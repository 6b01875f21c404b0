# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chunks of consecutive numbers by kernels: their energies, and the values of those chosen; ``chunk_decode`` ends it.

Each takes a whole group: several tensors, equally long, each where it lies. What it does to them is what
``compressors/topkc.py`` does by PyTorch's operators, number by number in the same order; energies are summed in
another. Products must not be fused with sums (``enable_fp_fusion``): what was sent is rounded before it is taken off.

Source: Han et al., HotNets 2024 (arXiv 2407.01378), section 3.1.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.kernels.codes import narrowed, widened
from gravac.compressors.kernels.layout import GRADIENTS, RESIDUALS, on_device_of, require_flat
from gravac.compressors.kernels.tiles import MOST, pick, tiling
from gravac.compressors.squares import MOST as MOST_TOLD

UP, DOWN, UNDO_UP, UNDO_DOWN = (tl.constexpr(2.0**power) for power in (84, -70, -168, 140))
"""Powers of two by which numbers are multiplied before they are squared, and what undoes that for the squares."""

FEW = tl.constexpr(2.0**-80)
"""Sum of squares below which squares may have vanished."""

TOLD = tl.constexpr(MOST_TOLD)
"""Largest energy that travels."""


@triton.jit
def energy_of(squares: tl.tensor, large: tl.tensor, small: tl.tensor) -> tl.tensor:
    """Energy of each row, float64, ``[rows]``: the first of three sums of squares that neither overflowed nor vanished.

    Args:
        squares: sums of squares of the numbers themselves, ``[rows, columns]``, float32.
        large: those of numbers times ``DOWN``, likewise.
        small: those of numbers times ``UP``, likewise.
    """
    plain = tl.sum(squares, axis=1)
    overflowed = tl.sum(large, axis=1).to(tl.float64) * UNDO_DOWN
    vanished = tl.sum(small, axis=1).to(tl.float64) * UNDO_UP
    return tl.where(plain < FEW, vanished, tl.where(plain < float("inf"), plain.to(tl.float64), overflowed))


@triton.jit
def _energies(
    gradients: tl.tuple,
    residuals: tl.tuple | None,
    folded: tl.tensor,
    energies: tl.tensor,
    wire: tl.tensor,
    numbers: tl.tensor,
    chunks: tl.tensor,
    world: tl.tensor,
    count: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    which = tl.program_id(1)
    row = tl.arange(0, rows)
    first = tl.program_id(0).to(tl.int64) * rows
    within = tl.minimum(numbers - first * chunk, rows * chunk).to(tl.int32)
    gradient = pick(gradients, which, count) + first * chunk
    into = which.to(tl.int64) * numbers + first * chunk
    squares = tl.zeros([rows, columns], tl.float32)
    large = tl.zeros([rows, columns], tl.float32)
    small = tl.zeros([rows, columns], tl.float32)
    for start in range(0, chunk, columns):
        column = start + tl.arange(0, columns)
        at = row[:, None] * chunk + column[None, :]
        there = (column < chunk)[None, :] & (at < within)
        x = tl.load(gradient + at, mask=there, other=0).to(tl.float32)
        if residuals is not None:
            residual = pick(residuals, which, count) + first * chunk
            x = tl.load(residual + at, mask=there, other=0).to(tl.float32) + x
        if folded is not None:
            tl.store(folded + into + at, x, mask=there)
        squares += x * x
        large += (x * DOWN) * (x * DOWN)
        small += (x * UP) * (x * UP)
    energy = energy_of(squares, large, small)
    mine = which.to(tl.int64) * chunks + first + row
    tl.store(energies + mine, energy, mask=row * chunk < within)
    if wire is not None:
        told = tl.minimum(energy, TOLD).to(tl.float32)
        share = tl.where(energy < float("inf"), tl.div_rn(told, tl.zeros_like(told) + world), 0.0)
        tl.store(wire + mine, narrowed(share, up=False).to(tl.int16), mask=row * chunk < within)


@triton.jit
def _take(
    x: tl.tensor,
    energies: tl.tensor,
    order: tl.tensor,
    values: tl.tensor,
    numbers: tl.tensor,
    chunks: tl.tensor,
    chosen: tl.tensor,
    k: tl.tensor,
    width: tl.tensor,
    world: tl.tensor,
    form: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    which = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    number = tl.load(order + which * chosen + place, mask=place < chosen, other=0)
    squares = tl.zeros([rows, columns], tl.float32)
    large = tl.zeros([rows, columns], tl.float32)
    small = tl.zeros([rows, columns], tl.float32)
    for start in range(0, chunk, columns):
        column = start + tl.arange(0, columns)
        at = number[:, None] * chunk + column[None, :]
        to = place[:, None] * chunk + column[None, :]
        there = (place < chosen)[:, None] & (column < chunk)[None, :]
        before = tl.load(x + which * numbers + at, mask=there & (at < numbers), other=0)
        share = tl.div_rn(before, tl.zeros_like(before) + world)
        if form == "bfloat16":
            narrow = narrowed(share, up=False).to(tl.int16)
            sent = widened(narrow.to(tl.int32))
        elif form == "float16":
            narrow = tl.minimum(tl.maximum(share, -65504.0), 65504.0).to(tl.float16)
            sent = narrow.to(tl.float32)
        else:
            narrow = share
            sent = share
        tl.store(values + which * width + to, narrow, mask=there & (to < k))
        left = tl.where(to < k, before - sent * world, before)
        tl.store(x + which * numbers + at, left, mask=there & (at < numbers) & (to < k))
        squares += left * left
        large += (left * DOWN) * (left * DOWN)
        small += (left * UP) * (left * UP)
    tl.store(energies + which * chunks + number, energy_of(squares, large, small), mask=place < chosen)


def energies(
    gradients: Sequence[torch.Tensor],
    chunk: int,
    *,
    residuals: Sequence[torch.Tensor] = (),
    folded: torch.Tensor | None = None,
    world: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of squares of each chunk of ``residual + gradient``: one launch for every ``MOST`` tensors.

    Args:
        gradients: equally long tensors, each flat, ``[elements]``, contiguous: float32, float16 or bfloat16. Several
            are of whole chunks.
        chunk: numbers per chunk; the last of a single tensor may have fewer.
        residuals: one for each, float32 or bfloat16, likewise; none: zeros.
        folded: float32, ``[count * elements]``, and may be a residual; overwritten with the sums. ``None``: those are
            not kept.
        world: number of ranks; ``None``: nothing is to travel.

    Returns:
        float64, ``[count * chunks]``, not finite where a number of the chunk is not; and what travels of them, each
        ``squares.MOST`` at most and divided by ``world``: bfloat16, ``[count * chunks]``, zeros where not finite; empty
        where nothing is to.

    Raises:
        ValueError: a tensor is not as described.
    """
    elements = gradients[0].numel()
    for gradient in gradients:
        require_flat(elements, GRADIENTS, gradient=gradient)
    for residual in residuals:
        require_flat(elements, RESIDUALS, residual=residual)
    require_flat(len(gradients) * elements, folded=folded)
    if len(gradients) > 1 and elements % chunk:
        raise ValueError(f"chunk: {chunk} numbers of tensors of {elements}; several tensors are of whole chunks")
    made: list[tuple[torch.Tensor, torch.Tensor]] = []
    for start in range(0, len(gradients), MOST):
        some = gradients[start : start + MOST]
        part = None if folded is None else folded[start * elements : (start + len(some)) * elements]
        made.append(_energies_op(some, residuals[start : start + MOST], part, chunk, world or 0))
    if len(made) == 1:
        return made[0]
    return torch.cat([one for one, _ in made]), torch.cat([one for _, one in made])


@triton_op("gravac::chunk_energies", mutates_args=("folded",))
def _energies_op(
    gradients: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    folded: torch.Tensor | None,
    chunk: int,
    world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    energies, wire = _outputs(gradients, residuals, folded, chunk, world)
    if len(energies):
        tiles, chunks = tiling(chunk), len(energies) // len(gradients)
        with on_device_of(gradients[0]):
            wrap_triton(_energies)[(triton.cdiv(chunks, tiles["rows"]), len(gradients))](
                tuple(gradients),
                tuple(residuals) or None,
                folded,
                energies,
                wire.view(torch.int16) if world else None,
                gradients[0].numel(),
                chunks,
                float(world),
                count=len(gradients),
                chunk=chunk,
                **tiles,
                enable_fp_fusion=False,
            )
    return energies, wire


@_energies_op.register_fake
def _outputs(
    gradients: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    folded: torch.Tensor | None,
    chunk: int,
    world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    first, chunks = gradients[0], len(gradients) * -(-gradients[0].numel() // chunk)
    return first.new_empty(chunks, dtype=torch.float64), first.new_empty(chunks if world else 0, dtype=torch.bfloat16)


def take(
    x: torch.Tensor,
    energies: torch.Tensor,
    order: torch.Tensor,
    k: int,
    chunk: int,
    dtype: torch.dtype,
    world: int = 1,
    multiple: int = 1,
) -> torch.Tensor:
    """Take what travels of the chosen chunks out of tensors, so that what is not sent is left there: one launch.

    Args:
        x: the tensors side by side: float32, ``[count * elements]``; lessened by ``world`` times what travels.
        energies: sums of squares of their chunks: float64, ``[count * chunks]``; overwritten at those chosen with
            what is left of them.
        order: chunk numbers of each tensor, none twice, in the order in which they travel: int64, ``[count, m]``.
        k: numbers that travel of each; those beyond a tensor's end are zeros.
        chunk: numbers per chunk.
        dtype: float32, float16 or bfloat16, in which they travel.
        world: number of ranks, by which they are divided before.
        multiple: number of which the numbers of a tensor are a multiple, filled up with zeros.

    Returns:
        Of that dtype, ``[count, k]``, k rounded up to the multiple.

    Raises:
        ValueError: a tensor is not as described.
    """
    require_flat(x.numel(), x=x)
    require_flat(energies.numel(), (torch.float64,), energies=energies)
    if dtype not in GRADIENTS:
        raise ValueError(f"dtype: {dtype}; kernels take {', '.join(map(str, GRADIENTS))}")
    values: torch.Tensor = _take_op(
        x, energies, order.contiguous(), k, -(-k // multiple) * multiple, chunk, dtype, world
    )
    return values


@triton_op("gravac::chunk_take", mutates_args=("x", "energies"))
def _take_op(
    x: torch.Tensor,
    energies: torch.Tensor,
    order: torch.Tensor,
    k: int,
    width: int,
    chunk: int,
    dtype: torch.dtype,
    world: int,
) -> torch.Tensor:
    count, chosen = order.shape
    values = x.new_zeros(count, width, dtype=dtype) if width > k else x.new_empty(count, width, dtype=dtype)
    tiles = tiling(chunk)
    with on_device_of(x):
        wrap_triton(_take)[(triton.cdiv(chosen, tiles["rows"]), count)](
            x,
            energies,
            order,
            values.view(torch.int16) if dtype == torch.bfloat16 else values,
            x.numel() // count,
            energies.numel() // count,
            chosen,
            k,
            width,
            float(world),
            form=str(dtype).removeprefix("torch."),
            chunk=chunk,
            **tiles,
            enable_fp_fusion=False,
        )
    return values


@_take_op.register_fake
def _values(
    x: torch.Tensor,
    energies: torch.Tensor,
    order: torch.Tensor,
    k: int,
    width: int,
    chunk: int,
    dtype: torch.dtype,
    world: int,
) -> torch.Tensor:
    return x.new_empty(len(order), width, dtype=dtype)
