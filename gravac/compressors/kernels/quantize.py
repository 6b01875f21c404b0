# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels of the quantizer: ``encode`` codes a gradient as messages, ``decode`` averages the ranks' messages.

A message, as ``compressors/quantize.py`` sends it, has the codes of several blocks, packed by ``packing.pack``, then
the blocks' scales in bfloat16. Products must not be fused with sums (``enable_fp_fusion``), so that a product is
rounded before it is added, as on a CPU.
"""

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

from gravac.compressors.codebook import SCALE_DTYPE
from gravac.compressors.kernels.codes import (
    block_sums,
    code_table_for,
    codes_of,
    from_bfloat16_bits,
    inverse_of,
    levels_of,
    pack,
    program_layout,
    scaling_powers_for,
    tiling,
    to_bfloat16_bits,
    unpack,
)
from gravac.compressors.kernels.layout import GRADIENT_DTYPES, RESIDUAL_DTYPES, on_device_of, require_flat
from gravac.compressors.levels import GRID_POINTS_PER_RMS, LevelKind
from gravac.compressors.packing import packed_bytes

MAX_BLOCK = 1 << 14
"""Largest block, in numbers, that one program (parallel instance) of a kernel can process."""

BYTES_OF_SCALE = tl.constexpr(2)
"""Bytes of a block's scale in a message."""


def fits(dtype: torch.dtype, block: int) -> bool:
    """True if the kernels can encode and decode numbers of a dtype in blocks of ``block`` numbers."""
    return dtype in GRADIENT_DTYPES and 8 <= block <= MAX_BLOCK and block % 8 == 0


@triton.jit
def _encode(
    gradient: tl.tensor,
    residual: tl.tensor,
    message: tl.tensor,
    decoded: tl.tensor,
    unsent: tl.tensor,
    sums_of_programs: tl.tensor,
    elements: tl.tensor,
    block_count: tl.tensor,
    shard_blocks: tl.tensor,
    shard_stride: tl.tensor,
    factor: tl.tensor,
    block: tl.constexpr,
    bits: tl.constexpr,
    block_code_bytes: tl.constexpr,
    positive_levels: tl.constexpr,
    threshold_points: tl.constexpr,
    max_code: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    group_size: tl.constexpr,
) -> None:
    row, group, first_number, offset, group_exists, inside = program_layout(
        elements, block_count, block, rows, groups, group_size
    )
    x = tl.load(gradient + first_number + offset, mask=inside, other=0).to(tl.float32)
    if residual is not None:
        x = tl.load(residual + first_number + offset, mask=inside, other=0).to(tl.float32) + x
    # 1. codes, on a grid given by the block's norm, or its largest magnitude. Numbers are multiplied by a power of two
    #    that makes squares close to 1, so that no square overflows or underflows; no other bit changes.
    peak = tl.max(tl.max(tl.abs(x), axis=2), axis=1)
    scale_up, scale_down = scaling_powers_for(peak)
    scaled = x * scale_up[:, None, None]
    scale_bits = to_bfloat16_bits(peak, away_from_zero=True)
    if max_code > 0:
        grid_numbers = scaled * inverse_of(from_bfloat16_bits(scale_bits) * scale_up, factor)[:, None, None]
    elif bits > 1:
        grid_numbers = scaled * inverse_of(tl.sqrt_rn(block_sums(scaled * scaled)), factor)[:, None, None]
    else:
        grid_numbers = x
    code = codes_of(grid_numbers, bits, threshold_points, max_code)
    # 2. the least-squares scale of the codes
    level = tl.where(group_exists[:, :, None], levels_of(code, bits, positive_levels, max_code), 0.0)
    if bits < 8:
        level_squares = block_sums(level * level)
        fitted_scale = tl.where(level_squares > 0, tl.div_rn(block_sums(scaled * level), level_squares), 0.0)
        scale_bits = to_bfloat16_bits(fitted_scale * scale_down, away_from_zero=False)
    # 3. the message
    message_start = message + row // shard_blocks * shard_stride
    pack(message_start + row % shard_blocks * block_code_bytes, code, group_exists, bits, block, group, group_size)
    scale_pointer = message_start + shard_blocks * block_code_bytes + row % shard_blocks * BYTES_OF_SCALE
    tl.store(scale_pointer, scale_bits.to(tl.uint8), mask=row < block_count)
    tl.store(scale_pointer + 1, (scale_bits >> 8).to(tl.uint8), mask=row < block_count)
    # 4. the decoded numbers, and the unsent rest
    sent = level * from_bfloat16_bits(scale_bits)[:, None, None]
    rest = x - sent
    if decoded is not None:
        tl.store(decoded + first_number + offset, sent, mask=inside)
    if unsent is not None:
        tl.store(unsent + first_number + offset, rest, mask=inside)
    program_sums = sums_of_programs + tl.program_id(0).to(tl.int64) * 3
    rest = rest * scale_up[:, None, None]
    scale_down_squared = scale_down.to(tl.float64) * scale_down.to(tl.float64)
    tl.store(program_sums, tl.sum(block_sums(rest * rest).to(tl.float64) * scale_down_squared))
    tl.store(program_sums + 1, tl.sum(block_sums(scaled * scaled).to(tl.float64) * scale_down_squared))
    tl.store(program_sums + 2, tl.sum(block_sums(tl.where(tl.abs(x) < float("inf"), 0.0, 1.0))).to(tl.float64))


@triton.jit
def _decode(
    dense: tl.tensor,
    messages: tl.tensor,
    elements: tl.tensor,
    block_count: tl.tensor,
    shard_blocks: tl.tensor,
    shard_stride: tl.tensor,
    rank_stride: tl.tensor,
    inverse_ranks: tl.tensor,
    alpha: tl.tensor,
    block: tl.constexpr,
    bits: tl.constexpr,
    block_code_bytes: tl.constexpr,
    positive_levels: tl.constexpr,
    max_code: tl.constexpr,
    ranks: tl.constexpr,
    add: tl.constexpr,
    rows: tl.constexpr,
    groups: tl.constexpr,
    group_size: tl.constexpr,
) -> None:
    row, group, first_number, offset, group_exists, inside = program_layout(
        elements, block_count, block, rows, groups, group_size
    )
    mean = tl.full([rows, groups, group_size], -0.0, tl.float32)  # adding -0.0 changes no number, 0.0 would change -0.0
    for rank in range(ranks):
        message_start = messages + row // shard_blocks * shard_stride + rank * rank_stride
        code = unpack(
            message_start + row % shard_blocks * block_code_bytes, group_exists, bits, block, group, group_size
        )
        scale_pointer = message_start + shard_blocks * block_code_bytes + row % shard_blocks * BYTES_OF_SCALE
        scale_bits = tl.load(scale_pointer, mask=row < block_count, other=0).to(tl.int32)
        scale_bits |= tl.load(scale_pointer + 1, mask=row < block_count, other=0).to(tl.int32) << 8
        mean += levels_of(code, bits, positive_levels, max_code) * from_bfloat16_bits(scale_bits)[:, None, None]
    if ranks > 1:
        mean = mean * inverse_ranks
    if add:
        mean = tl.load(dense + first_number + offset, mask=inside, other=0).to(tl.float32) + mean * alpha
    else:
        mean = tl.zeros_like(mean) + mean  # turns -0.0 into 0.0, as adding to zeros does
    tl.store(dense + first_number + offset, mean.to(dense.dtype.element_ty), mask=inside)


def encode(
    gradient: torch.Tensor,
    bits: int,
    kind: LevelKind,
    block: int,
    shards: int = 1,
    *,
    residual: torch.Tensor | None = None,
    decoded: torch.Tensor | None = None,
    unsent: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize the sum of a gradient and a residual to messages, by two launches.

    Args:
        gradient: flat, ``[elements]``, contiguous: float32, float16 or bfloat16. The kernel codes
            ``residual + gradient`` in float32, padded with zeros, so that all shards have equally many blocks.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: ``"fitted"``: levels fitted to a normal distribution; ``"uniform"``: evenly spaced, as always for 8 bits.
        block: numbers per scale, a multiple of 8, at most ``MAX_BLOCK``.
        shards: number of messages; each has the codes of consecutive blocks.
        residual: float32 or bfloat16, flat, ``[elements]``, contiguous; ``None``: zeros.
        decoded: memory for the decoded numbers: float32, flat, ``[elements]``, contiguous. ``None``: decoded numbers
            are not stored.
        unsent: memory for ``residual + gradient`` minus the decoded numbers: float32, flat, ``[elements]``, contiguous;
            may be the residual's memory. ``None``: the difference is not stored.

    Returns:
        The messages: uint8, ``[shards, bytes]``. And three sums over ``residual + gradient``: its squared coding error,
        its energy, and its number of elements that are not finite: float64, ``[3]``. A block that contains an element
        that is not finite has arbitrary codes.

    Raises:
        ValueError: a tensor has another shape or dtype, or is not contiguous; or ``block`` is out of range.
    """
    require_flat(gradient.numel(), GRADIENT_DTYPES, gradient=gradient)
    if not fits(gradient.dtype, block):
        raise ValueError(
            f"block: {block} numbers per block, which the kernel cannot encode; use a multiple of 8 up to {MAX_BLOCK}"
        )
    require_flat(gradient.numel(), RESIDUAL_DTYPES, residual=residual)
    require_flat(gradient.numel(), decoded=decoded, unsent=unsent)
    shard_blocks = -(-gradient.numel() // (block * shards))
    message, sums_of_programs = _encode_op(gradient, residual, decoded, unsent, shards, shard_blocks, block, bits, kind)
    return message, sums_of_programs.sum(0)


@triton_op("gravac::quantize_encode", mutates_args=("decoded", "unsent"))
def _encode_op(
    gradient: torch.Tensor,
    residual: torch.Tensor | None,
    decoded: torch.Tensor | None,
    unsent: torch.Tensor | None,
    shards: int,
    shard_blocks: int,
    block: int,
    bits: int,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    message, sums_of_programs = _allocate_outputs(
        gradient, residual, decoded, unsent, shards, shard_blocks, block, bits, kind
    )
    code_table = code_table_for(bits, kind)
    if not len(sums_of_programs):
        return message, sums_of_programs
    with on_device_of(gradient):
        wrap_triton(_encode)[(len(sums_of_programs),)](
            gradient,
            residual,
            message,
            decoded,
            unsent,
            sums_of_programs,
            gradient.numel(),
            shards * shard_blocks,
            max(1, shard_blocks),
            message.stride(0),
            float(code_table.max_code or GRID_POINTS_PER_RMS * block**0.5),
            block=block,
            bits=bits,
            block_code_bytes=packed_bytes(block, bits),
            positive_levels=code_table.positive_levels,
            threshold_points=code_table.threshold_points,
            max_code=code_table.max_code,
            **tiling(block, code_table.group_size),
            enable_fp_fusion=False,
        )
    return message, sums_of_programs


@_encode_op.register_fake
def _allocate_outputs(
    gradient: torch.Tensor,
    residual: torch.Tensor | None,
    decoded: torch.Tensor | None,
    unsent: torch.Tensor | None,
    shards: int,
    shard_blocks: int,
    block: int,
    bits: int,
    kind: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory for the messages, uint8, and for each program's share of the three sums that ``encode`` returns.

    The shares are float64, ``[programs, 3]``; a program is one of the parallel instances of the kernel.
    """
    program_count = triton.cdiv(shards * shard_blocks, tiling(block, code_table_for(bits, kind).group_size)["rows"])
    message_bytes = shard_blocks * (packed_bytes(block, bits) + SCALE_DTYPE.itemsize)
    message = gradient.new_empty(shards, message_bytes, dtype=torch.uint8)
    return message, gradient.new_empty(program_count, 3, dtype=torch.float64)


def decode(
    dense: torch.Tensor,
    messages: torch.Tensor,
    bits: int,
    kind: LevelKind,
    block: int,
    alpha: float | None = None,
) -> torch.Tensor:
    """Overwrite a tensor with the mean of the ranks' messages, or add the mean to the tensor: one launch.

    Args:
        dense: flat, ``[elements]``, contiguous: float32, float16 or bfloat16; changed in place. Numbers beyond the end
            of ``dense`` are ignored; if the messages have fewer numbers, the end of ``dense`` does not change.
        messages: messages of the ranks: uint8, ``[shards, parts, bytes]``; the bytes of a message are contiguous. The
            tensor is the concatenation of its shards. A shard is the mean of its decoded parts, one from each rank,
            which are added in order. Each part is rounded to float32 before it is added.
        bits: bits per code, as encoded.
        kind: placement of the levels, as encoded.
        block: numbers per scale, as encoded.
        alpha: number by which the mean is multiplied before it is added; ``None``: the mean replaces all numbers.

    Returns:
        ``dense``.

    Raises:
        ValueError: ``dense`` or ``messages`` has another shape or dtype, or is not contiguous.
    """
    require_flat(dense.numel(), GRADIENT_DTYPES, dense=dense)
    if messages.dim() != 3 or (messages.numel() and messages.stride(2) != 1):
        raise ValueError(
            f"messages: shape {list(messages.shape)}, strides {list(messages.stride())}; "
            "give [shards, parts, bytes], with a stride of 1 between the bytes of a message"
        )
    _decode_op(dense, messages, bits, kind, block, alpha)
    return dense


@triton_op("gravac::quantize_decode", mutates_args=("dense",))
def _decode_op(
    dense: torch.Tensor, messages: torch.Tensor, bits: int, kind: str, block: int, alpha: float | None
) -> None:
    shards, ranks, message_bytes = messages.shape
    block_code_bytes, code_table = packed_bytes(block, bits), code_table_for(bits, kind)
    shard_blocks = message_bytes // (block_code_bytes + SCALE_DTYPE.itemsize)
    tiles = tiling(block, code_table.group_size)
    block_count = min(shards * shard_blocks, triton.cdiv(dense.numel(), block))
    if block_count == 0:
        return
    with on_device_of(dense):
        wrap_triton(_decode)[(triton.cdiv(block_count, tiles["rows"]),)](
            dense,
            messages,
            dense.numel(),
            block_count,
            shard_blocks,
            messages.stride(0),
            messages.stride(1),
            1 / ranks,
            1.0 if alpha is None else float(alpha),
            block=block,
            bits=bits,
            block_code_bytes=block_code_bytes,
            positive_levels=code_table.positive_levels,
            max_code=code_table.max_code,
            ranks=ranks,
            add=alpha is not None,
            **tiles,
            enable_fp_fusion=False,
        )


@_decode_op.register_fake
def _fake_decode(
    dense: torch.Tensor, messages: torch.Tensor, bits: int, kind: str, block: int, alpha: float | None
) -> None:
    return None
