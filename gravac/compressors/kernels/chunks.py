# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels for chunks of consecutive numbers: chunks' sums of squares, and the values of selected chunks.

``chunk_decode`` has the kernel that writes such values back.

Each launch processes several tensors of equal length, each in its own memory. The kernels compute the same as PyTorch's
operators in ``compressors/topkc.py``, number by number in the same order; only energies are summed in another order.
Products must not be fused with sums (``enable_fp_fusion``): sent numbers are rounded before they are subtracted.

Source: Han et al., HotNets 2024 (arXiv 2407.01378), section 3.1.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.kernels.codes import from_bfloat16_bits, to_bfloat16_bits
from gravac.compressors.kernels.layout import GRADIENT_DTYPES, RESIDUAL_DTYPES, on_device_of, require_flat
from gravac.compressors.kernels.tiles import MAX_TENSORS, pick, tiling
from gravac.compressors.squares import MAX_SENT_ENERGY

SCALE_UP, SCALE_DOWN, UNDO_SCALE_UP, UNDO_SCALE_DOWN = (tl.constexpr(2.0**power) for power in (84, -70, -168, 140))
"""Powers of two that keep squares in float32's range.

Small numbers are multiplied by ``SCALE_UP`` before they are squared, and the sum of squares by ``UNDO_SCALE_UP``; large
numbers by ``SCALE_DOWN``, and the sum by ``UNDO_SCALE_DOWN``.
"""

MIN_SAFE_ENERGY = tl.constexpr(2.0**-80)
"""If the sum of squares of unscaled numbers is below this limit, some squares may have underflowed."""

MAX_WIRE_ENERGY = tl.constexpr(MAX_SENT_ENERGY)
"""Largest energy (sum of squares) that is sent; larger energies are clamped."""


@triton.jit
def energy_of(squares: tl.tensor, large_squares: tl.tensor, small_squares: tl.tensor) -> tl.tensor:
    """Return the sum of squares of each chunk: float64, ``[rows]``; a row is a chunk.

    Each argument has partial sums of squares, which are added along the columns. The result is the total that neither
    overflowed nor underflowed.

    Args:
        squares: partial sums of squares of the numbers themselves, ``[rows, columns]``, float32.
        large_squares: partial sums of squares of the numbers times ``SCALE_DOWN``, ``[rows, columns]``, float32.
        small_squares: partial sums of squares of the numbers times ``SCALE_UP``, ``[rows, columns]``, float32.
    """
    energy_unscaled = tl.sum(squares, axis=1)
    energy_of_large = tl.sum(large_squares, axis=1).to(tl.float64) * UNDO_SCALE_DOWN
    energy_of_small = tl.sum(small_squares, axis=1).to(tl.float64) * UNDO_SCALE_UP
    is_finite = energy_unscaled < float("inf")
    return tl.where(
        energy_unscaled < MIN_SAFE_ENERGY,
        energy_of_small,
        tl.where(is_finite, energy_unscaled.to(tl.float64), energy_of_large),
    )


@triton.jit
def _energies(
    gradients: tl.tuple,
    residuals: tl.tuple | None,
    sums_out: tl.tensor,
    energies: tl.tensor,
    wire_energies: tl.tensor,
    elements: tl.tensor,
    chunk_count: tl.tensor,
    world: tl.tensor,
    tensor_count: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    tensor_index = tl.program_id(1)
    row = tl.arange(0, rows)
    first_chunk = tl.program_id(0).to(tl.int64) * rows
    remaining_numbers = tl.minimum(elements - first_chunk * chunk, rows * chunk).to(tl.int32)
    gradient = pick(gradients, tensor_index, tensor_count) + first_chunk * chunk
    sums_start = tensor_index.to(tl.int64) * elements + first_chunk * chunk
    squares = tl.zeros([rows, columns], tl.float32)
    large_squares = tl.zeros([rows, columns], tl.float32)
    small_squares = tl.zeros([rows, columns], tl.float32)
    for first_column in range(0, chunk, columns):
        column = first_column + tl.arange(0, columns)
        offset_in_program = row[:, None] * chunk + column[None, :]
        inside = (column < chunk)[None, :] & (offset_in_program < remaining_numbers)
        x = tl.load(gradient + offset_in_program, mask=inside, other=0).to(tl.float32)
        if residuals is not None:
            residual = pick(residuals, tensor_index, tensor_count) + first_chunk * chunk
            x = tl.load(residual + offset_in_program, mask=inside, other=0).to(tl.float32) + x
        if sums_out is not None:
            tl.store(sums_out + sums_start + offset_in_program, x, mask=inside)
        squares += x * x
        large_squares += (x * SCALE_DOWN) * (x * SCALE_DOWN)
        small_squares += (x * SCALE_UP) * (x * SCALE_UP)
    energy = energy_of(squares, large_squares, small_squares)
    energy_offset = tensor_index.to(tl.int64) * chunk_count + first_chunk + row
    tl.store(energies + energy_offset, energy, mask=row * chunk < remaining_numbers)
    if wire_energies is not None:
        clamped = tl.minimum(energy, MAX_WIRE_ENERGY).to(tl.float32)
        divided = tl.where(energy < float("inf"), tl.div_rn(clamped, tl.zeros_like(clamped) + world), 0.0)
        tl.store(
            wire_energies + energy_offset,
            to_bfloat16_bits(divided, away_from_zero=False).to(tl.int16),
            mask=row * chunk < remaining_numbers,
        )


@triton.jit
def _take(
    x: tl.tensor,
    energies: tl.tensor,
    chunk_indices: tl.tensor,
    values: tl.tensor,
    elements: tl.tensor,
    chunk_count: tl.tensor,
    selected_count: tl.tensor,
    k: tl.tensor,
    width: tl.tensor,
    world: tl.tensor,
    wire_format: tl.constexpr,
    chunk: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    tensor_index = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    chunk_number = tl.load(chunk_indices + tensor_index * selected_count + slot, mask=slot < selected_count, other=0)
    squares = tl.zeros([rows, columns], tl.float32)
    large_squares = tl.zeros([rows, columns], tl.float32)
    small_squares = tl.zeros([rows, columns], tl.float32)
    for first_column in range(0, chunk, columns):
        column = first_column + tl.arange(0, columns)
        source = chunk_number[:, None] * chunk + column[None, :]
        target = slot[:, None] * chunk + column[None, :]
        inside = (slot < selected_count)[:, None] & (column < chunk)[None, :]
        previous_x = tl.load(x + tensor_index * elements + source, mask=inside & (source < elements), other=0)
        divided = tl.div_rn(previous_x, tl.zeros_like(previous_x) + world)
        if wire_format == "bfloat16":
            wire_value = to_bfloat16_bits(divided, away_from_zero=False).to(tl.int16)
            sent = from_bfloat16_bits(wire_value.to(tl.int32))
        elif wire_format == "float16":
            wire_value = tl.minimum(tl.maximum(divided, -65504.0), 65504.0).to(tl.float16)
            sent = wire_value.to(tl.float32)
        else:
            wire_value = divided
            sent = divided
        tl.store(values + tensor_index * width + target, wire_value, mask=inside & (target < k))
        rest = tl.where(target < k, previous_x - sent * world, previous_x)
        tl.store(x + tensor_index * elements + source, rest, mask=inside & (source < elements) & (target < k))
        squares += rest * rest
        large_squares += (rest * SCALE_DOWN) * (rest * SCALE_DOWN)
        small_squares += (rest * SCALE_UP) * (rest * SCALE_UP)
    tl.store(
        energies + tensor_index * chunk_count + chunk_number,
        energy_of(squares, large_squares, small_squares),
        mask=slot < selected_count,
    )


def energies(
    gradients: Sequence[torch.Tensor],
    chunk: int,
    *,
    residuals: Sequence[torch.Tensor] = (),
    sums_out: torch.Tensor | None = None,
    world: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of squares of each chunk of ``residual + gradient``, by a launch per ``MAX_TENSORS`` tensors.

    Args:
        gradients: equally long tensors, each flat, ``[elements]``, contiguous: float32, float16 or bfloat16. If there
            are several, their length must be a multiple of ``chunk``.
        chunk: numbers per chunk; the last chunk of a single tensor may have fewer.
        residuals: a residual for each gradient, flat, ``[elements]``, contiguous: float32 or bfloat16; empty: zeros.
        sums_out: memory for ``residual + gradient`` of all tensors, concatenated: float32, flat; may be the memory of a
            residual. ``None``: sums are not stored.
        world: number of ranks, by which energies are divided before they are sent; ``None``: energies are not sent.

    Returns:
        The energies (sums of squares), one per chunk, one tensor after another: float64, flat. An energy is not finite
        if the chunk contains a number that is not finite. And the energies to send, clamped to
        ``squares.MAX_SENT_ENERGY`` and divided by ``world``: bfloat16, of the same shape, 0 for energies that are not
        finite; empty if ``world`` is ``None``.

    Raises:
        ValueError: a tensor has another shape or dtype, or is not contiguous; or several tensors have partial chunks.
    """
    elements = gradients[0].numel()
    for gradient in gradients:
        require_flat(elements, GRADIENT_DTYPES, gradient=gradient)
    for residual in residuals:
        require_flat(elements, RESIDUAL_DTYPES, residual=residual)
    require_flat(len(gradients) * elements, sums_out=sums_out)
    if len(gradients) > 1 and elements % chunk:
        raise ValueError(
            f"chunk: {chunk} does not divide {elements} elements; give a single tensor, or tensors of a multiple of "
            f"{chunk} elements"
        )
    energies_and_wire: list[tuple[torch.Tensor, torch.Tensor]] = []
    for first_tensor in range(0, len(gradients), MAX_TENSORS):
        launched_gradients = gradients[first_tensor : first_tensor + MAX_TENSORS]
        end_tensor = first_tensor + len(launched_gradients)
        sums = None if sums_out is None else sums_out[first_tensor * elements : end_tensor * elements]
        launched_residuals = residuals[first_tensor : first_tensor + MAX_TENSORS]
        energies_and_wire.append(_energies_op(launched_gradients, launched_residuals, sums, chunk, world or 0))
    if len(energies_and_wire) == 1:
        return energies_and_wire[0]
    return torch.cat([energies for energies, _ in energies_and_wire]), torch.cat(
        [wire for _, wire in energies_and_wire]
    )


@triton_op("gravac::chunk_energies", mutates_args=("sums_out",))
def _energies_op(
    gradients: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    sums_out: torch.Tensor | None,
    chunk: int,
    world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    energies, wire_energies = _allocate_outputs(gradients, residuals, sums_out, chunk, world)
    if len(energies):
        tiles, chunks_per_tensor = tiling(chunk), len(energies) // len(gradients)
        with on_device_of(gradients[0]):
            wrap_triton(_energies)[(triton.cdiv(chunks_per_tensor, tiles["rows"]), len(gradients))](
                tuple(gradients),
                tuple(residuals) or None,
                sums_out,
                energies,
                wire_energies.view(torch.int16) if world else None,
                gradients[0].numel(),
                chunks_per_tensor,
                float(world),
                tensor_count=len(gradients),
                chunk=chunk,
                **tiles,
                enable_fp_fusion=False,
            )
    return energies, wire_energies


@_energies_op.register_fake
def _allocate_outputs(
    gradients: Sequence[torch.Tensor],
    residuals: Sequence[torch.Tensor],
    sums_out: torch.Tensor | None,
    chunk: int,
    world: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uninitialized tensors for the results of ``energies``; torch traces this function in place of the kernel.

    Args:
        gradients: equally long flat tensors.
        residuals: not used.
        sums_out: not used.
        chunk: numbers per chunk.
        world: number of ranks; 0: energies are not sent.

    Returns:
        Memory for the energies, float64, and for the energies to send, bfloat16: each flat, with an element per chunk
        of each tensor. The memory for the energies to send is empty if ``world`` is 0.
    """
    first_gradient, chunk_count = gradients[0], len(gradients) * -(-gradients[0].numel() // chunk)
    energies = first_gradient.new_empty(chunk_count, dtype=torch.float64)
    return energies, first_gradient.new_empty(chunk_count if world else 0, dtype=torch.bfloat16)


def take(
    x: torch.Tensor,
    energies: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    chunk: int,
    dtype: torch.dtype,
    world: int = 1,
    multiple: int = 1,
) -> torch.Tensor:
    """Return the values of selected chunks, to be sent, and subtract these values from the tensors: one launch.

    Args:
        x: several tensors of equal length, concatenated: float32, flat; ``world`` times the returned values are
            subtracted.
        energies: sum of squares of each chunk of each tensor: float64, flat; updated for the chunks from which values
            are subtracted.
        chunk_indices: indices of each tensor's selected chunks, none twice, in the order in which they are sent: int64,
            a row per tensor.
        k: number of values per tensor; values beyond a tensor's end are zeros.
        chunk: elements per chunk.
        dtype: number format of the result: float32, float16 or bfloat16.
        world: number of ranks, by which values are divided before they are rounded.
        multiple: each tensor's k values are padded with zeros up to a multiple of this number.

    Returns:
        The values divided by ``world``, in ``dtype``: ``[tensors, k rounded up to the multiple]``.

    Raises:
        ValueError: ``x`` or ``energies`` has another shape or dtype, or is not contiguous; or ``dtype`` is none of the
            three.
    """
    require_flat(x.numel(), x=x)
    require_flat(energies.numel(), (torch.float64,), energies=energies)
    if dtype not in GRADIENT_DTYPES:
        raise ValueError(f"dtype: {dtype} cannot be sent; use one of {', '.join(map(str, GRADIENT_DTYPES))}")
    values: torch.Tensor = _take_op(
        x, energies, chunk_indices.contiguous(), k, -(-k // multiple) * multiple, chunk, dtype, world
    )
    return values


@triton_op("gravac::chunk_take", mutates_args=("x", "energies"))
def _take_op(
    x: torch.Tensor,
    energies: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    width: int,
    chunk: int,
    dtype: torch.dtype,
    world: int,
) -> torch.Tensor:
    tensor_count, selected_count = chunk_indices.shape
    values = (
        x.new_zeros(tensor_count, width, dtype=dtype) if width > k else x.new_empty(tensor_count, width, dtype=dtype)
    )
    tiles = tiling(chunk)
    with on_device_of(x):
        wrap_triton(_take)[(triton.cdiv(selected_count, tiles["rows"]), tensor_count)](
            x,
            energies,
            chunk_indices,
            values.view(torch.int16) if dtype == torch.bfloat16 else values,
            x.numel() // tensor_count,
            energies.numel() // tensor_count,
            selected_count,
            k,
            width,
            float(world),
            wire_format=str(dtype).removeprefix("torch."),
            chunk=chunk,
            **tiles,
            enable_fp_fusion=False,
        )
    return values


@_take_op.register_fake
def _allocate_values(
    x: torch.Tensor,
    energies: torch.Tensor,
    chunk_indices: torch.Tensor,
    k: int,
    width: int,
    chunk: int,
    dtype: torch.dtype,
    world: int,
) -> torch.Tensor:
    """Return memory for the values that ``take`` returns: ``[tensors, width]`` in ``dtype``."""
    return x.new_empty(len(chunk_indices), width, dtype=dtype)
