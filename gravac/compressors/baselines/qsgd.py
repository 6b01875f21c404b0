# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""QSGD: random rounding to a few levels of each bucket's norm.

Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017,
section 3.1, with the buckets of section 4; levels are sent as fixed-width codes, not Elias codes. Unbiased; not
contractive: with few bits the error may exceed the gradient.
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
    """QSGD: signed levels and one norm per bucket, exchanged by all-gather.

    Attributes:
        bits: bits per element, sign included: 2, 4 (the default) or 8; there are ``2 ** (bits - 1) - 1`` levels above
            zero.
        bucket: number of elements that share a norm, 1 or more; default: 512.
        norm: norm of a bucket, of which levels are fractions: ``"l2"``, the default, as published; or ``"max"``, the
            largest magnitude, which has a smaller error.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "qsgd"
    unbiased: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((8, 50.55, 25.11),)

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
    def levels(self) -> int:
        """Number of levels above zero."""
        return int(2 ** (self.bits - 1) - 1)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic: an all-gather of packed codes and a norm per bucket, in bytes."""
        elements = torch.Size(shape).numel()
        norm_bytes = block_count(elements, self.bucket) * working(dtype).itemsize
        return (Traffic(AllGather, packed_bytes(elements, self.bits) + norm_bytes),)

    def norms(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of each bucket of flat x, at least its largest magnitude: ``[buckets]``, dtype of x."""
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
        """Round flat x to levels at random; return codes, signed level + number of levels: uint8, of x's length."""
        level = round_randomly(self._exact_levels(x, norms), draws)
        return level.mul_(x.sign()).add_(self.levels).to(torch.uint8)

    def decode(self, codes: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """Return the numbers that flat codes represent: flat, of the codes' length, in the norms' dtype."""
        signed_levels = codes.to(norms.dtype) - self.levels
        return signed_levels * repeat_for_elements(norms / self.levels, self.bucket, codes.numel())

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the expected squared error of flat x, 0-d: the sum of ``p (1 - p)`` times the squared level distance.

        p is the probability that an element is rounded up.
        """
        norms = self.norms(x)
        variance = rounding_variance(self._exact_levels(x, norms))
        error = energy(variance.sqrt_() * repeat_for_elements(norms / self.levels, self.bucket, x.numel()))
        return [error for _ in cfs]

    def _exact_levels(self, x: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """Return the magnitudes of flat x in units of ``norm / levels``, before they are rounded: in [0, levels]."""
        return relative_magnitudes(x, repeat_for_elements(norms, self.bucket, x.numel())).mul_(self.levels)


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
        decode: ``decode(codes, scales)`` returns the numbers that one rank's codes represent, flat.
        ctx: the tensor's context.
    """
    packed, all_scales = yield AllGather(pack(codes, bits), scales)
    sent = decode(codes, scales)
    mean = torch.zeros_like(sent)
    for rank_packed, rank_scales in zip(packed.unbind(), all_scales.unbind(), strict=True):
        mean += decode(unpack(rank_packed, bits, codes.numel()), rank_scales)
    return Reduced(mean=mean.div_(ctx.world), sent=sent, cf=32 / bits)


def block_count(elements: int, size: int) -> int:
    """Return how many blocks of ``size`` elements a tensor has, counting a last partial block; size 0: one block."""
    return -(-elements // (size or max(1, elements)))


def as_block_rows(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return flat x as a matrix with a row per block of ``size`` elements (0: all), the last row padded with zeros."""
    elements = x.numel()
    size = max(1, min(size or elements, elements))
    return torch.nn.functional.pad(x, (0, -elements % size)).view(-1, size)


def block_largest(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return the largest magnitude of each block of ``size`` elements of flat x: ``[block_count]``, dtype of x."""
    largest: torch.Tensor = torch.linalg.vector_norm(as_block_rows(x, size), ord=float("inf"), dim=1)
    return largest


def repeat_for_elements(values: torch.Tensor, size: int, elements: int) -> torch.Tensor:
    """Repeat each block's value for each of the block's ``size`` elements: ``[block_count]`` becomes ``[elements]``."""
    size = min(size or elements, elements)
    return values.unsqueeze(1).expand(-1, size).reshape(-1)[:elements]


def relative_magnitudes(x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Return ``|x| / norm``, in the shape of x, and 0 if the norm is 0; ``norm`` is one number per element."""
    return x.abs().div_(torch.where(norm > 0, norm, 1))


def round_randomly(x: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Round each element to an integer, up with a probability equal to its fraction; unbiased within 2**-24."""
    floors = x.floor()
    return floors.add_(draws.uniform(x.numel(), x.device).view_as(x) < x - floors)


def rounding_variance(x: torch.Tensor) -> torch.Tensor:
    """Return the expected squared error of each element, in the shape of x, if ``round_randomly`` rounds it."""
    fraction = x - x.floor()
    return fraction * (1 - fraction)


qsgd = QSGD()
"""QSGD with 4 bits; ``qsgd(bits=8, norm="max")`` makes another."""
