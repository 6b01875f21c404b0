# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sends each element's sign, and a magnitude per block; ranks average the signed magnitudes, or vote on the signs.

Sources: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019, algorithm
1 (scaled signs: contractive, biased, with a gain of ``‖x‖₁² / (d ‖x‖₂²)`` for d elements); Bernstein et al., "signSGD
with Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019, algorithm 1 (neither contractive nor
unbiased). gravac multiplies the majority's signs by the mean magnitude, so that the result is about as long as the
gradient.
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from pydantic import Field

from gravac.collectives import AllGather, AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds
from gravac.compressors.baselines.intsgd import bits_on_wire, bytes_on_wire, pack_for_sum, unpack_sums
from gravac.compressors.baselines.qsgd import as_block_rows, block_count, exchange_codes, repeat_for_elements
from gravac.compressors.dtypes import working
from gravac.compressors.packing import packed_bytes
from gravac.compressors.profile import CostPoints
from gravac.compressors.squares import energy


class SignSGD(Compressor):
    """Scaled signs: one bit per element and a mean magnitude per block, exchanged by all-gather.

    By default half of the unsent rest is kept as residual, which trained best with AdamW and with SGD with momentum
    (``docs/evidence/decisions.md``). The published method, for plain SGD, keeps the whole unsent rest
    (``error_feedback=1.0``).

    Attributes:
        block: number of consecutive elements that share a magnitude; 0, the default: the whole tensor.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "signsgd"
    cf: ClassVar[float] = 32.0
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.5
    coding_costs: ClassVar[CostPoints] = ((32, 8.04, 21.40),)

    block: int = Field(default=0, ge=0)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-gather of packed signs and of a magnitude per block."""
        elements = torch.Size(shape).numel()
        scale_bytes = block_count(elements, self.block) * working(dtype).itemsize
        return (Traffic(AllGather, packed_bytes(elements, 1) + scale_bytes),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather of each element's sign and each block's mean magnitude."""
        sign_bits = (x >= 0).to(torch.uint8)
        return (
            yield from exchange_codes(sign_bits, block_means(x, self.block), 1, partial(decode, block=self.block), ctx)
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the squared error, 0-d, of replacing the magnitudes of flat x by their block's mean."""
        return [sign_error(x, self.block) for _ in cfs]


class MajorityVote(Compressor):
    """Majority vote on each element's sign, by two all-reduces: of signs, as integers, and of each block's magnitude.

    Each element gets the sign that most ranks have, and the mean magnitude of its block over all ranks. A zero element
    does not vote, and a tie gives zero. On every rank, ``sent`` equals ``mean``. The CF counts a vote as one bit, but
    on the wire a vote has 8 bits, or 16 bits for 128 ranks and more; ``traffic`` counts these.

    Attributes:
        block: number of consecutive elements that share a magnitude; 0, the default: the whole tensor.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "majority"
    cf: ClassVar[float] = 32.0
    coding_costs: ClassVar[CostPoints] = ((32, 3.31, 17.70),)

    block: int = Field(default=0, ge=0)

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-reduce of votes, and an all-reduce of a magnitude per block.

        A vote takes 1 byte, or 2 bytes for 128 ranks and more.
        """
        elements = torch.Size(shape).numel()
        scale_bytes = block_count(elements, self.block) * working(dtype).itemsize
        return (Traffic(AllReduce, bytes_on_wire(elements, bits_on_wire(8, world))), Traffic(AllReduce, scale_bytes))

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x: agree on a sign for each element and on a magnitude for each block.

        1. All-reduce the signs, as integers: the sum has the sign of the majority.
        2. All-reduce the mean magnitude of every block, and divide by the number of ranks.
        3. Multiply the signs by their block's magnitude; the product is both ``mean`` and ``sent``.
        """
        vote_bits = bits_on_wire(8, ctx.world)
        packed_sums = yield AllReduce(pack_for_sum(x.sign().to(torch.int32), vote_bits))
        vote_sums = unpack_sums(packed_sums, vote_bits, x.numel())
        scale_sums = yield AllReduce(block_means(x, self.block))
        signed_magnitudes = (
            vote_sums.sign().to(x.dtype).mul_(repeat_for_elements(scale_sums / ctx.world, self.block, x.numel()))
        )
        return Reduced(mean=signed_magnitudes, sent=signed_magnitudes, cf=self.cf)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the squared error, 0-d, as if all ranks had this rank's flat x.

        The errors are too low if the ranks' tensors differ.
        """
        return [sign_error(x, self.block) for _ in cfs]


def block_means(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return the mean magnitude of each block of ``block`` elements of flat x: ``[blocks]``, dtype of x.

    A ``block`` of 0 makes a single block of all elements.
    """
    magnitudes = as_block_rows(x, block).abs()
    magnitude_sums = magnitudes.sum(dim=1)
    if magnitude_sums.is_cpu and x.dtype == torch.float32 and not magnitude_sums.isfinite().all():
        magnitude_sums = magnitudes.sum(dim=1, dtype=torch.float64)
    element_counts = torch.full_like(magnitude_sums, min(block or x.numel(), x.numel()))
    element_counts[-1:] -= element_counts.sum() - x.numel()
    return magnitude_sums.div_(element_counts).to(x.dtype)


def decode(sign_bits: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    """Return the scale of the element's block for each 1 in flat ``sign_bits``, and minus the scale for each 0.

    Args:
        sign_bits: sign of each element, 0 or 1, flat.
        scales: scale of each block, ``[blocks]``; its dtype is that of the result.
        block: elements per block; 0: a single block of all elements.
    """
    signs = sign_bits.to(scales.dtype).mul_(2).sub_(1)  # several times faster than torch.where
    return signs.mul_(repeat_for_elements(scales, block, sign_bits.numel()))


def sign_error(x: torch.Tensor, block: int) -> torch.Tensor:
    """Return ``‖x - sign(x) scale‖²`` of flat x, 0-d; each block's scale is its mean magnitude."""
    return energy(x.abs().sub_(repeat_for_elements(block_means(x, block), block, x.numel())))


signsgd = SignSGD()
"""Scaled signs with one magnitude per tensor; ``signsgd(block=256)`` sends a magnitude per 256 elements."""

majority = MajorityVote()
"""Majority vote with one magnitude per tensor; ``majority(block=256)`` sends a magnitude per 256 elements."""
