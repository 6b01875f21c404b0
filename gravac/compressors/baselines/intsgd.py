# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""IntSGD: sends integers, in units of a scale that all ranks share, so that an all-reduce can sum them.

Sources: Mishchenko et al., "IntSGD: Adaptive Floatless Compression of Stochastic Gradients", ICLR 2022, for integers
whose sum cannot overflow; Xin et al., "Global-QSGD: Practical Floatless Quantization for Distributed Learning with
Theoretical Guarantees", 2023, for the scale: the largest magnitude over the ranks, for each block of elements.
Unbiased; not contractive, since with more ranks each rank has fewer different integers to send.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllGather, AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds
from gravac.compressors.baselines.qsgd import (
    block_count,
    block_largest,
    relative_magnitudes,
    repeat_for_elements,
    round_randomly,
    rounding_variance,
)
from gravac.compressors.dtypes import working
from gravac.compressors.profile import CostPoints
from gravac.compressors.squares import energy


class IntSGD(Compressor):
    """IntSGD by two collectives: an all-gather of each block's largest magnitude, and an all-reduce of integers.

    Each of N ranks sends integers up to ``(2 ** (bits - 1) - 1) / N``: with 8 bits, 63 at 2 ranks, and 1 at 64 ranks.
    If the limit is below 1 (128 ranks with 8 bits), integers have more bits than requested.

    Attributes:
        bits: bits of an integer on the wire, 8 (the default) or 16.
        block: number of elements that share a scale, 1 or more; default: 4096.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "intsgd"
    unbiased: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((4, 6.52, 37.27),)

    bits: Literal[8, 16] = 8
    block: int = Field(default=4096, ge=1)

    @property
    def cf(self) -> float:
        """Compression factor: 32 / bits."""
        return 32 / self.bits

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-gather of a magnitude per block, an all-reduce of integers."""
        elements = torch.Size(shape).numel()
        scale_bytes = block_count(elements, self.block) * working(dtype).itemsize
        return (
            Traffic(AllGather, scale_bytes),
            Traffic(AllReduce, bytes_on_wire(elements, bits_on_wire(self.bits, world))),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x as integers, in units of scales that all ranks share.

        1. All-gather the largest magnitude of every block; the largest over the ranks gives the block's scale.
        2. Divide each element by its block's scale, and multiply by the largest integer that a rank may send. Round the
           result stochastically to the next lower or higher integer.
        3. All-reduce the integers, and convert the sums back to numbers.
        """
        bits = bits_on_wire(self.bits, ctx.world)
        max_integer = integer_limit(bits, ctx.world)
        (largest_by_rank,) = yield AllGather(block_largest(x, self.block))
        largest_magnitudes = repeat_for_elements(largest_by_rank.amax(dim=0), self.block, x.numel())
        integers = round_randomly(
            relative_magnitudes(x, largest_magnitudes).mul_(max_integer), ctx.draws(per_rank=True)
        ).mul_(x.sign())
        packed_sums = yield AllReduce(pack_for_sum(integers.to(torch.int32), bits))
        integer_unit = largest_magnitudes / max_integer
        mean = unpack_sums(packed_sums, bits, x.numel()).to(x.dtype).mul_(integer_unit).div_(ctx.world)
        return Reduced(mean=mean, sent=integers.mul_(integer_unit), cf=32 / bits)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the expected squared error of flat x, 0-d.

        The errors are too low if other ranks have larger magnitudes, since the ranks share scales.
        """
        max_integer = integer_limit(bits_on_wire(self.bits, ctx.world), ctx.world)
        largest_magnitudes = repeat_for_elements(block_largest(x, self.block), self.block, x.numel())
        variance = rounding_variance(relative_magnitudes(x, largest_magnitudes).mul_(max_integer))
        return [energy(variance.sqrt_() * (largest_magnitudes / max_integer))] * len(cfs)


def integer_limit(bits: int, world: int) -> int:
    """Return the largest integer that ``world`` ranks may send so that the sum fits in ``bits`` bits, sign included."""
    return int((2 ** (bits - 1) - 1) // world)


def bits_on_wire(bits: int, world: int) -> int:
    """Return the bits per integer on the wire: the first of ``bits``, 16 and 32 that allows each rank to send a 1."""
    return next(wire_bits for wire_bits in (bits, 16, 32) if integer_limit(wire_bits, world))


def bytes_on_wire(elements: int, bits: int) -> int:
    """Return how many bytes ``elements`` integers of ``bits`` bits take on the wire, packed by ``pack_for_sum``."""
    return -(-elements // 2) * 4 if bits == 16 else elements * bits // 8


def pack_for_sum(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Convert flat integers to a dtype that an all-reduce can sum.

    Integers of 16 bits are sent in pairs, as ``high * 2**16 + low`` in int32, since neither Gloo nor NCCL sums int16.

    Args:
        integers: int32, ``[n]``; neither an integer nor its sum over the ranks exceeds ``2 ** (bits - 1) - 1``.
        bits: 8, 16 or 32.

    Returns:
        For 8 bits int8, ``[n]``; for 16 bits int32, ``[ceil(n / 2)]``; for 32 bits int32, ``[n]``.
    """
    if bits != 16:
        return integers.to(torch.int8) if bits == 8 else integers
    integer_pairs = torch.nn.functional.pad(integers, (0, integers.numel() % 2)).view(2, -1)
    return integer_pairs[1] * 2**16 + integer_pairs[0]


def unpack_sums(packed_sums: torch.Tensor, bits: int, elements: int) -> torch.Tensor:
    """Convert the all-reduced result of ``pack_for_sum`` to an integer per element: int8 or int32, ``[elements]``."""
    if bits != 16:
        return packed_sums
    low_integers = ((packed_sums + 2**15) & 0xFFFF) - 2**15
    return torch.cat([low_integers, (packed_sums - low_integers) >> 16])[:elements]


intsgd = IntSGD()
"""IntSGD with 8 bits; ``intsgd(bits=16)`` sends 16 bits per element."""
