# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The quantizer as two kernels: a gradient into messages, and the mean of ranks' messages into a tensor.

A message is what ``compressors/quantize.py`` sends: the codes of ``per`` blocks, packed as by ``packing.pack``, then
their scales, bfloat16. Products must not be fused with sums (``enable_fp_fusion``): a number is rounded before it is
added, as on CPU.
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.codebook import SCALE
from gravac.compressors.kernels.codes import (
    code_for,
    codes_of,
    inverse_of,
    levels_of,
    narrowed,
    pack,
    places,
    powers_near,
    sum_of_blocks,
    tiling,
    unpack,
    widened,
)
from gravac.compressors.kernels.layout import GRADIENTS, RESIDUALS, on_device_of, require_flat
from gravac.compressors.levels import GRID, Kind
from gravac.compressors.packing import packed_bytes

LONGEST = 1 << 14
"""Longest block, in numbers, that a program can hold."""

BYTES_OF_SCALE = tl.constexpr(2)


def fits(dtype: torch.dtype, block: int) -> bool:
    """Tell whether these kernels can code numbers of a dtype in blocks of so many."""
    return dtype in GRADIENTS and 8 <= block <= LONGEST and block % 8 == 0


@triton.jit
def _encode(
    gradient: tl.tensor,
    residual: tl.tensor,
    message: tl.tensor,
    decoded: tl.tensor,
    left: tl.tensor,
    sums: tl.tensor,
    numbers: tl.tensor,
    blocks: tl.tensor,
    per: tl.tensor,
    stride: tl.tensor,
    factor: tl.tensor,
    block: tl.constexpr,
    bits: tl.constexpr,
    width: tl.constexpr,
    positive: tl.constexpr,
    points: tl.constexpr,
    most: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    together: tl.constexpr,
) -> None:
    row, group, first, at, there, inside = places(numbers, blocks, block, rows, groups, together)
    x = tl.load(gradient + first + at, mask=inside, other=0).to(tl.float32)
    if residual is not None:
        x = tl.load(residual + first + at, mask=inside, other=0).to(tl.float32) + x
    # 1. codes, on a grid made by the block's norm, or its largest magnitude, times a power of two that brings squares
    #    near 1: so none overflows or vanishes, and no other bit changes
    peak = tl.max(tl.max(tl.abs(x), axis=2), axis=1)
    up, down = powers_near(peak)
    scaled = x * up[:, None, None]
    narrow = narrowed(peak, up=True)
    if most > 0:
        fine = scaled * inverse_of(widened(narrow) * up, factor)[:, None, None]
    elif bits > 1:
        fine = scaled * inverse_of(tl.sqrt_rn(sum_of_blocks(scaled * scaled)), factor)[:, None, None]
    else:
        fine = x
    code = codes_of(fine, bits, points, most)
    # 2. the scale that fits them best
    level = tl.where(there[:, :, None], levels_of(code, bits, positive, most), 0.0)
    if bits < 8:
        size = sum_of_blocks(level * level)
        fit = tl.where(size > 0, tl.div_rn(sum_of_blocks(scaled * level), size), 0.0)
        narrow = narrowed(fit * down, up=False)
    # 3. the message
    start = message + row // per * stride
    pack(start + row % per * width, code, there, bits, block, group, together)
    scale = start + per * width + row % per * BYTES_OF_SCALE
    tl.store(scale, narrow.to(tl.uint8), mask=row < blocks)
    tl.store(scale + 1, (narrow >> 8).to(tl.uint8), mask=row < blocks)
    # 4. what it stands for, and what is left
    sent = level * widened(narrow)[:, None, None]
    rest = x - sent
    if decoded is not None:
        tl.store(decoded + first + at, sent, mask=inside)
    if left is not None:
        tl.store(left + first + at, rest, mask=inside)
    mine = sums + tl.program_id(0).to(tl.int64) * 3
    rest = rest * up[:, None, None]
    square = down.to(tl.float64) * down.to(tl.float64)
    tl.store(mine, tl.sum(sum_of_blocks(rest * rest).to(tl.float64) * square))
    tl.store(mine + 1, tl.sum(sum_of_blocks(scaled * scaled).to(tl.float64) * square))
    tl.store(mine + 2, tl.sum(sum_of_blocks(tl.where(tl.abs(x) < float("inf"), 0.0, 1.0))).to(tl.float64))


@triton.jit
def _decode(
    dense: tl.tensor,
    messages: tl.tensor,
    numbers: tl.tensor,
    blocks: tl.tensor,
    per: tl.tensor,
    stride: tl.tensor,
    stride_of_part: tl.tensor,
    share: tl.tensor,
    alpha: tl.tensor,
    block: tl.constexpr,
    bits: tl.constexpr,
    width: tl.constexpr,
    positive: tl.constexpr,
    most: tl.constexpr,
    parts: tl.constexpr,
    add: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    together: tl.constexpr,
) -> None:
    row, group, first, at, there, inside = places(numbers, blocks, block, rows, groups, together)
    mean = tl.full([rows, groups, together], -0.0, tl.float32)  # the one number that changes nothing it is added to
    for part in range(parts):
        start = messages + row // per * stride + part * stride_of_part
        code = unpack(start + row % per * width, there, bits, block, group, together)
        scale = start + per * width + row % per * BYTES_OF_SCALE
        narrow = tl.load(scale, mask=row < blocks, other=0).to(tl.int32)
        narrow |= tl.load(scale + 1, mask=row < blocks, other=0).to(tl.int32) << 8
        mean += levels_of(code, bits, positive, most) * widened(narrow)[:, None, None]
    if parts > 1:
        mean = mean * share
    if add:
        mean = tl.load(dense + first + at, mask=inside, other=0).to(tl.float32) + mean * alpha
    else:
        mean = tl.zeros_like(mean) + mean  # what is added to zeros has no negative ones
    tl.store(dense + first + at, mean.to(dense.dtype.element_ty), mask=inside)


def encode(
    gradient: torch.Tensor,
    bits: int,
    kind: Kind,
    block: int,
    shards: int = 1,
    *,
    residual: torch.Tensor | None = None,
    decoded: torch.Tensor | None = None,
    left: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the messages of a tensor, its residual added: two launches.

    Args:
        gradient: flat, ``[elements]``, contiguous: float32, float16 or bfloat16. What is coded is
            ``residual + gradient`` in float32, followed by zeros up to whole blocks, as many in every shard.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: how the levels lie; 8 bits are always uniform.
        block: numbers per scale, a multiple of 8, at most ``LONGEST``.
        shards: messages to make, each of consecutive blocks.
        residual: float32 or bfloat16, flat, ``[elements]``, contiguous; ``None``: zeros.
        decoded: float32, likewise; overwritten with what the codes stand for. ``None``: that is not kept.
        left: float32, likewise, and may be the residual; overwritten with what was coded minus what the codes stand
            for. ``None``: that is not kept.

    Returns:
        The messages: uint8, ``[shards, bytes]``. The squared error, the energy of what was coded, and how many of its
        numbers were not finite: float64, ``[3]``. Where any was not, its block's codes are arbitrary.

    Raises:
        ValueError: a tensor or the block's size is not as described.
    """
    if not fits(gradient.dtype, block):
        raise ValueError(f"block: {block} numbers of {gradient.dtype}; kernels take multiples of 8 up to {LONGEST}")
    require_flat(gradient.numel(), GRADIENTS, gradient=gradient)
    require_flat(gradient.numel(), RESIDUALS, residual=residual)
    require_flat(gradient.numel(), decoded=decoded, left=left)
    per = -(-gradient.numel() // (block * shards))
    message, sums = _encode_op(gradient, residual, decoded, left, shards, per, block, bits, kind)
    return message, sums.sum(0)


@triton_op("gravac::quantize_encode", mutates_args=("decoded", "left"))
def _encode_op(
    gradient: torch.Tensor,
    residual: torch.Tensor | None,
    decoded: torch.Tensor | None,
    left: torch.Tensor | None,
    shards: int,
    per: int,
    block: int,
    bits: int,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    message, sums = _outputs(gradient, residual, decoded, left, shards, per, block, bits, kind)
    code = code_for(bits, kind)
    if not len(sums):
        return message, sums
    with on_device_of(gradient):
        wrap_triton(_encode)[(len(sums),)](
            gradient,
            residual,
            message,
            decoded,
            left,
            sums,
            gradient.numel(),
            shards * per,
            max(1, per),
            message.stride(0),
            float(code.most or GRID * block**0.5),
            block=block,
            bits=bits,
            width=packed_bytes(block, bits),
            positive=code.positive,
            points=code.points,
            most=code.most,
            **tiling(block, code.together),
            enable_fp_fusion=False,
        )
    return message, sums


@_encode_op.register_fake
def _outputs(
    gradient: torch.Tensor,
    residual: torch.Tensor | None,
    decoded: torch.Tensor | None,
    left: torch.Tensor | None,
    shards: int,
    per: int,
    block: int,
    bits: int,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for messages and sums: of no program, where there are no blocks."""
    programs = triton.cdiv(shards * per, tiling(block, code_for(bits, kind).together)["rows"])
    message = gradient.new_empty(shards, per * (packed_bytes(block, bits) + SCALE.itemsize), dtype=torch.uint8)
    return message, gradient.new_empty(programs, 3, dtype=torch.float64)


def decode(
    dense: torch.Tensor,
    messages: torch.Tensor,
    bits: int,
    kind: Kind,
    block: int,
    alpha: float | None = None,
) -> torch.Tensor:
    """Put what messages stand for into a tensor, or add it: one launch.

    Args:
        dense: flat, ``[elements]``, contiguous: float32, float16 or bfloat16; changed in place. What the messages have
            beyond its end is left out, what it has beyond theirs stays.
        messages: what ranks sent: uint8, ``[shards, parts, bytes]``, a message's bytes side by side. Shards follow one
            another; each is the mean of its parts, added one after another, each rounded before it is added.
        bits: bits per code, as encoded.
        kind: how the levels lie, as encoded.
        block: numbers per scale, as encoded.
        alpha: what the mean is multiplied by before it is added; ``None``: it replaces what was there.

    Returns:
        ``dense``.

    Raises:
        ValueError: a tensor is not as described.
    """
    require_flat(dense.numel(), GRADIENTS, dense=dense)
    if messages.dim() != 3 or (messages.numel() and messages.stride(2) != 1):
        raise ValueError(f"messages: of shape {list(messages.shape)}; kernels take [shards, parts, bytes] without gaps")
    _decode_op(dense, messages, bits, kind, block, alpha)
    return dense


@triton_op("gravac::quantize_decode", mutates_args=("dense",))
def _decode_op(
    dense: torch.Tensor, messages: torch.Tensor, bits: int, kind: str, block: int, alpha: float | None
) -> None:
    shards, parts, length = messages.shape
    width, code = packed_bytes(block, bits), code_for(bits, kind)
    per, tiles = length // (width + SCALE.itemsize), tiling(block, code.together)
    blocks = min(shards * per, triton.cdiv(dense.numel(), block))
    if blocks == 0:
        return
    with on_device_of(dense):
        wrap_triton(_decode)[(triton.cdiv(blocks, tiles["rows"]),)](
            dense,
            messages,
            dense.numel(),
            blocks,
            per,
            messages.stride(0),
            messages.stride(1),
            1 / parts,
            1.0 if alpha is None else float(alpha),
            block=block,
            bits=bits,
            width=width,
            positive=code.positive,
            most=code.most,
            parts=parts,
            add=alpha is not None,
            **tiles,
            enable_fp_fusion=False,
        )


@_decode_op.register_fake
def _decodes_in_place(
    dense: torch.Tensor, messages: torch.Tensor, bits: int, kind: str, block: int, alpha: float | None
) -> None:
    return None
