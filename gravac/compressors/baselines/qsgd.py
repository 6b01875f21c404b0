# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""QSGD: rounds each element stochastically to a level; a bucket's levels are evenly spaced from minus to plus its norm.

Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017,
section 3.1. Buckets are runs of consecutive elements, as in section 4, and not DDP's buckets. Levels are sent as codes
of fixed width, not Elias codes. Unbiased; not contractive, since with few bits the error may exceed the gradient.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllGather, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import working
from gravac.compressors.packing import pack, packed_bytes, unpack
from gravac.compressors.profile import CostPoints
from gravac.compressors.squares import energy, norms_of_rows


class QSGD(Compressor):
    """QSGD: a signed level per element and a norm per bucket, exchanged by all-gather.

    Attributes:
        bits: bits per element, sign included: 2, 4 (the default) or 8; there are ``2 ** (bits - 1) - 1`` levels above
            zero.
        bucket: number of consecutive elements that share a norm, 1 or more; default: 512.
        norm: the highest level of a bucket. ``"l2"``, the default, as published: the Euclidean norm of the bucket;
            ``"max"``: its largest magnitude, which leads to a smaller error.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((8, 32.78, 22.30),)

    bits: Literal[2, 4, 8] = 4
    bucket: int = Field(default=512, ge=1)
    norm: Literal["l2", "max"] = "l2"

    @property
    def cf(self) -> float:
        """Compression factor: 32 / bits."""
        return 32 / self.bits

    def method_at(self, cf: float) -> str:
        """Return the compressor's name with the number of bits."""
        return f"{self.name} {self.bits} bits"

    @property
    def positive_level_count(self) -> int:
        """Number of levels above zero: ``2 ** (bits - 1) - 1``."""
        return int(2 ** (self.bits - 1) - 1)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-gather of packed codes and norms, one norm per QSGD bucket."""
        elements = torch.Size(shape).numel()
        norm_bytes = block_count(elements, self.bucket) * working(dtype).itemsize
        return (Traffic(AllGather, packed_bytes(elements, self.bits) + norm_bytes),)

    def norms(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of each bucket of flat x: ``[buckets]``, dtype of x.

        No norm is below the largest magnitude in its bucket.
        """
        largest = block_largest(x, self.bucket)
        if self.norm == "max":
            return largest
        # rounding and underflow may leave the l2 norm below the largest magnitude
        return norms_of_rows(as_block_rows(x, self.bucket)).maximum(largest)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather of codes and norms."""
        norms = self.norms(x)
        codes = self.encode(x, norms, ctx.draws(per_rank=True))
        return (yield from exchange_codes(codes, norms, self.bits, self.decode, ctx))

    def encode(self, x: torch.Tensor, norms: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Round flat x stochastically to levels, and return the codes: uint8, of x's length.

        A code is the signed number of the level (0 for zero), plus ``positive_level_count``.
        """
        rounded_levels = round_randomly(self._exact_levels(x, norms), draws)
        return rounded_levels.mul_(x.sign()).add_(self.positive_level_count).to(torch.uint8)

    def decode(self, codes: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """Return the numbers that flat codes represent: flat, of the codes' length, in the norms' dtype."""
        signed_levels = codes.to(norms.dtype) - self.positive_level_count
        return signed_levels * repeat_for_elements(norms / self.positive_level_count, self.bucket, codes.numel())

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the expected squared error of flat x, 0-d.

        The error is the sum over elements of ``p (1 - p) d²``: p is the probability that the element is rounded up, d
        the distance of two levels.
        """
        norms = self.norms(x)
        variance = rounding_variance(self._exact_levels(x, norms))
        error = energy(
            variance.sqrt_() * repeat_for_elements(norms / self.positive_level_count, self.bucket, x.numel())
        )
        return [error for _ in cfs]

    def _exact_levels(self, x: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """Return the magnitudes of flat x in units of ``norm / levels``, before they are rounded: in [0, levels]."""
        return relative_magnitudes(x, repeat_for_elements(norms, self.bucket, x.numel())).mul_(
            self.positive_level_count
        )


def exchange_codes(
    codes: torch.Tensor,
    scales: torch.Tensor,
    bits: int,
    decode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ctx: Context,
) -> Rounds:
    """Average the numbers that codes represent, by one all-gather of all ranks' codes and scales.

    Args:
        codes: this rank's codes: uint8, flat, each below ``2 ** bits``.
        scales: scales of this rank's codes, of any shape.
        bits: bits per code on the wire.
        decode: function that takes one rank's codes and scales, with shapes and dtypes like ``codes`` and ``scales``,
            and returns the numbers that the codes represent: flat, one number per code.
        ctx: the tensor's context.
    """
    codes_by_rank, scales_by_rank = yield AllGather(pack(codes, bits), scales)
    sent = decode(codes, scales)
    mean = torch.zeros_like(sent)
    for rank_codes, rank_scales in zip(codes_by_rank.unbind(), scales_by_rank.unbind(), strict=True):
        mean += decode(unpack(rank_codes, bits, codes.numel()), rank_scales)
    return Reduced(mean=mean.div_(ctx.world), sent=sent, cf=32 / bits)


def block_count(elements: int, block: int) -> int:
    """Return how many blocks of ``block`` elements a tensor has, a last partial block included; 0: one block."""
    return -(-elements // (block or max(1, elements)))


def as_block_rows(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return flat x as a matrix with a row per block of ``block`` elements; the last row is padded with zeros.

    A ``block`` of 0 makes a single block of all elements.
    """
    elements = x.numel()
    block = max(1, min(block or elements, elements))
    return torch.nn.functional.pad(x, (0, -elements % block)).view(-1, block)


def block_largest(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return the largest magnitude of each block of ``block`` elements of flat x: ``[blocks]``, dtype of x.

    A ``block`` of 0 makes a single block of all elements.
    """
    largest: torch.Tensor = torch.linalg.vector_norm(as_block_rows(x, block), ord=float("inf"), dim=1)
    return largest


def repeat_for_elements(values: torch.Tensor, block: int, elements: int) -> torch.Tensor:
    """Return each block's value once for every element of the block: ``[blocks]`` becomes ``[elements]``.

    Args:
        values: one value per block, ``[blocks]``.
        block: elements per block; 0: a single block of all elements.
        elements: number of elements of the result.
    """
    block = min(block or elements, elements)
    return values.unsqueeze(1).expand(-1, block).reshape(-1)[:elements]


def relative_magnitudes(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Return ``|x| / norm``, in the shape of x, and 0 for elements whose norm is 0.

    Args:
        x: numbers of any shape; an element is 0 if its norm is 0.
        norm: norm for each element, in the shape of x.
    """
    return x.abs().div_(torch.where(norm > 0, norm, 1))


def round_randomly(x: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Round each element stochastically to the next lower or higher integer; return floats, in the shape of x.

    An element is rounded up with a probability equal to its fractional part, to within 2**-24, so that the rounding is
    unbiased.
    """
    floors = x.floor()
    return floors.add_(draws.uniform(x.numel(), x.device).view_as(x) < x - floors)


def rounding_variance(x: torch.Tensor) -> torch.Tensor:
    """Return the expected squared error of each element, in the shape of x, if ``round_randomly`` rounds it."""
    fraction = x - x.floor()
    return fraction * (1 - fraction)


qsgd = QSGD()
"""QSGD with its default settings: 4 bits, Euclidean norm; ``qsgd(bits=8, norm="max")`` has a smaller error."""
