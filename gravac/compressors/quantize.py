# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Blockwise quantization to 8, 4, 2 or 1 bits, averaged by all-to-all and all-gather of codes.

Sources: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022 (blocks); Vargaftik et al., "DRIVE",
NeurIPS 2021, and "EDEN", ICML 2022 (randomized Hadamard rotation); Tang et al., "1-bit Adam", ICML 2021
(two codings, of the gradient and of the mean, each with its own error). Contractive, see ``codes``.

The tensor is divided into one shard per rank. Every rank codes its whole tensor, and sends each shard's codes to the
rank that owns the shard. The owner decodes and averages these codes, codes the mean, and sends its codes to all ranks.
Each of N ranks sends ``2 (N-1)/N`` times the bytes of its codes, as in a ring all-reduce. Two ranks only swap their
codes: as many bytes, without a second coding.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllGather, AllToAll, Traffic
from gravac.compressors import rotation
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy
from gravac.compressors.codes import (
    BITS,
    LONGEST_BLOCK,
    CodedNumbers,
    bytes_per_block,
    encode,
    rows_of,
    split,
)
from gravac.compressors.draws import Draws
from gravac.compressors.messages import Messages, encode_messages
from gravac.compressors.profile import CostPoints, Profile

BITS_BY_CF = BITS[::-1]
"""Supported bits per coordinate, in ascending order of the CF, 32 / bits."""

SAMPLED_COORDINATES = 1 << 16
"""Approximate number of a tensor's coordinates from which its coding error is estimated."""


class Quantize(Compressor):
    """Quantization to few bits per coordinate, with a scale per block.

    Attributes:
        bits: bits per coordinate: 8, 4, 2 or 1; ``None``, the default: the CF decides, as 32 / bits.
        block: coordinates per scale, a multiple of 16, at most 128 (the default). A scale has 16 bits.
        rotate: whether to apply a random Hadamard rotation to every 1024 coordinates first, so that the distribution of
            coordinates is nearly normal; default: False.
        back_bits: bits per coordinate in the second coding, in which the mean is sent back to the ranks; ``None``, the
            default: as many as in the first coding.
        exchange: how ranks exchange codes. ``"shards"``: each rank decodes and averages one shard of the tensor, and
            sends the coded mean to all ranks. ``"gather"``: every rank gets all ranks' codes, which saves time only
            with two ranks. ``"auto"``, the default: ``"gather"`` with two ranks, else ``"shards"``.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "quantize"
    contractive: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((4, 3.48, 2.48), (8, 4.15, 3.57), (16, 3.60, 3.56), (32, 2.89, 2.97))

    bits: Literal[8, 4, 2, 1] | None = None
    block: Annotated[int, Field(ge=16, le=LONGEST_BLOCK, multiple_of=16)] = LONGEST_BLOCK
    rotate: bool = False
    back_bits: Literal[8, 4, 2, 1] | None = None
    exchange: Literal["auto", "shards", "gather"] = "auto"

    def __call__(self, bits: int | None = None, **changes: Any) -> "Quantize":
        """Return a copy of this compressor with changed settings; with ``bits=None``, the copy has the same bits."""
        return super().__call__(**({} if bits is None else {"bits": bits}), **changes)

    def method_at(self, cf: float) -> str:
        """Return a text that states the bits per coordinate at a CF, such as ``"4 bits"``."""
        bits = self.bits_at(cf)
        return f"{bits} bit{'s' * (bits > 1)}"

    @property
    def lowest_cf(self) -> float:
        """Lowest compression factor that the settings allow: 32 / (most bits per coordinate)."""
        return 32 / (self.bits or max(BITS))

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs and efficiency at a CF for ``world`` ranks.

        If every rank gets all ranks' codes (``gathers``), one collective averages a tensor. Without ``rotate``, several
        tensors may be joined and coded as one.
        """
        gathers, profile = self.gathers(world), super().profile(cf)
        if self.rotate:
            return replace(profile, one_round=gathers)
        return replace(
            profile,
            one_round=gathers,
            pad_multiple=self.block if gathers else self.block * world,
            coding_bytes_per_element=21,
        )

    def candidates(self, cf_range: tuple[float, float]) -> tuple[float, ...]:
        """Return the compression factors 32 / bits that are in the range."""
        bit_widths = BITS_BY_CF if self.bits is None else (self.bits,)
        return tuple(32 / bits for bits in bit_widths if cf_range[0] <= 32 / bits <= cf_range[1])

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-to-all and an all-gather of codes.

        If every rank gets all ranks' codes (``gathers``), there is only one all-gather.
        """
        elements = torch.Size(shape).numel()
        if self.rotate:
            elements = rotation.padded_length(elements)
        bits = self.bits_at(cf)
        shard_blocks = self._blocks_per_shard(elements, world)
        if self.gathers(world):
            return (Traffic(AllGather, shard_blocks * bytes_per_block(self.block, bits)),)
        back_bits = self.back_bits or bits
        return (
            Traffic(AllToAll, world * shard_blocks * bytes_per_block(self.block, bits)),
            Traffic(AllGather, shard_blocks * bytes_per_block(self.block, back_bits)),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x over the ranks, quantized.

        1. Quantize x block by block (rotated first, with ``rotate``), and divide the codes into one shard per rank.
        2. Distribute the codes by all-to-all: each rank receives all ranks' codes of its shard.
        3. Reduce: decode the codes, average them, and quantize the mean (second coding). With error feedback, add the
           last step's error of the second coding to the mean beforehand, and store the new error.
        4. Collect the codes of all shards' means by all-gather, and decode them.

        If every rank gets all ranks' codes (``gathers``), one all-gather of all codes replaces steps 2 to 4.
        """
        bits = self.bits_at(cf)
        shards = 1 if self.gathers(ctx.world) else ctx.world
        rotated_x = self._rotate_if_set(x, ctx)
        message, coded = encode_messages(rotated_x, bits, self.block, shards)
        mean_error_energy: torch.Tensor | None = None
        unsent_aside: torch.Tensor | None = None
        if self.gathers(ctx.world):
            request = [AllGather(message[0])]
            del message, coded  # this rank gets its own message back, so that there are fewer copies in flight
            (messages,) = yield request.pop()
            sent = self._wrap_messages(messages[ctx.rank].view(1, 1, -1), bits)
            (coded,) = sent.parts()
            coded_average = self._wrap_messages(messages.unsqueeze(0), bits)
        else:
            sent = self._wrap_messages(message.unsqueeze(1), bits)
            shard_messages = yield AllToAll(message)
            exact_mean = self._wrap_messages(shard_messages.unsqueeze(0), bits).decoded()
            stored_error = ctx.state.get("second") if ctx.error_feedback > 0 else None
            corrected_mean = (
                exact_mean
                if stored_error is None or stored_error.numel() != exact_mean.numel()
                else exact_mean + stored_error.view(-1)
            )
            back_bits = self.back_bits or bits
            mean_message, _ = encode_messages(corrected_mean, back_bits, self.block, 1)
            coded_mean = self._wrap_messages(mean_message.unsqueeze(1), back_bits).decoded()
            (messages,) = yield AllGather(mean_message[0])
            coded_average = self._wrap_messages(messages.unsqueeze(1), back_bits)
            mean_error = (coded_mean - exact_mean).mul_(ctx.world)
            # of the last shard, the zeros that fill it up do not count
            elements_from_shard_on = max(0, rotated_x.numel() - ctx.rank * mean_error.numel())
            mean_error_energy = energy(mean_error[:elements_from_shard_on]) / ctx.world
            if ctx.error_feedback:
                new_error = corrected_mean - coded_mean
                kept_error = new_error if ctx.error_feedback == 1 else new_error.mul_(ctx.error_feedback)
                ctx.state["second"] = kept_error.view(-1, self.block)
                unsent_aside = self._from_local_shard(mean_error, -1.0, x.numel(), ctx)
            sent = replace(sent, extra_numbers=(ctx.rank * mean_error.numel(), mean_error))
        return Reduced(
            self._in_coordinates_of_x(coded_average, x, ctx),
            self._in_coordinates_of_x(sent, x, ctx),
            32 / bits,
            aside=unsent_aside,
            error=mean_error_energy,
            coded=CodedNumbers(rotated_x, coded, bits, self.block),
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return this rank's squared error of coding flat x at each CF, 0-d, estimated from a sample of x's blocks."""
        rotated_x = self._rotate_if_set(x, ctx)
        x_blocks = rows_of(rotated_x, self.block)
        sample = x_blocks[:: max(1, x_blocks.numel() // SAMPLED_COORDINATES)].reshape(-1)
        x_energy, sample_energy = energy(x), energy(sample).clamp(min=torch.finfo(torch.float64).tiny)
        sample_errors = [self._error_of(sample, self.bits_at(cf)) for cf in cfs]
        return [x_energy * (error / sample_energy) for error in sample_errors]

    def _error_of(self, x: torch.Tensor, bits: int) -> torch.Tensor:
        """Return the squared error, 0-d, of coding flat float32 numbers."""
        message = encode(x, bits, self.block, -(-x.numel() // self.block))
        return CodedNumbers(x, split(message, self.block, bits), bits, self.block).error

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Return the shape that the stored error of coding the mean should have; ``""`` if it has that shape."""
        memory_fits = key != "second" or (
            memory.dim() == 2 and memory.shape[1] == self.block and memory.is_contiguous()
        )
        return "" if memory_fits else f"blocks of {self.block} numbers"

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """Return the stored error of the second coding (in which the mean is sent), times the number of ranks.

        Each rank stores the error of its own shard; outside that shard the result is 0. Averaged over the ranks, the
        results are therefore the error of the whole mean.

        Returns:
            A flat tensor, ``[elements]``; ``None`` if no error is stored.
        """
        stored_error = ctx.state.get("second")
        return None if stored_error is None else self._from_local_shard(stored_error, ctx.world, elements, ctx)

    def gathers(self, world: int) -> bool:
        """True if ``world`` ranks get all ranks' codes by one all-gather, so that the mean is not coded again."""
        return world == 1 or self.exchange == "gather" or (self.exchange == "auto" and world <= 2)

    def bits_at(self, cf: float) -> int:
        """Return the number of bits per coordinate at a CF."""
        return self.bits if self.bits is not None else min(BITS_BY_CF, key=lambda bits: abs(32 / bits - cf))

    def _blocks_per_shard(self, elements: int, world: int) -> int:
        """Return the number of blocks in a rank's shard; all blocks if every rank gets all codes (``gathers``)."""
        block_count = -(-elements // self.block)
        return block_count if self.gathers(world) else -(-block_count // world)

    def _wrap_messages(self, messages: torch.Tensor, bits: int) -> Messages:
        return Messages(messages, bits, self.block)

    def _rotate_if_set(self, x: torch.Tensor, ctx: Context) -> torch.Tensor:
        """Return flat x as float32, rotated and padded to whole blocks if ``rotate`` is set."""
        return rotation.rotate(x.float(), _rotation_draws(ctx)) if self.rotate else x.float()

    def _in_coordinates_of_x(self, coded: Messages, x: torch.Tensor, ctx: Context) -> torch.Tensor | Messages:
        """Return a coded tensor unchanged; if ``rotate`` is set, return the tensor decoded and rotated back.

        The decoded tensor is flat, with the length and dtype of x.
        """
        if not self.rotate:
            return coded
        rotated_numbers = coded.write_to(x.new_empty(rotation.padded_length(x.numel()), dtype=torch.float32))
        return self._rotate_back(rotated_numbers, x.numel(), ctx).to(x.dtype)

    def _from_local_shard(self, numbers: torch.Tensor, factor: float, elements: int, ctx: Context) -> torch.Tensor:
        """Return a tensor as long as x that has ``numbers`` in this rank's shard, and zeros elsewhere: ``[elements]``.

        If ``rotate`` is set, the result is rotated back to the coordinates of x.

        Args:
            numbers: a number for each coordinate of the shard; any shape.
            factor: number by which ``numbers`` are multiplied.
            elements: length of x.
            ctx: the tensor's context.
        """
        numbers_by_shard = numbers.new_zeros(ctx.world, numbers.numel())
        torch.mul(numbers.view(-1), factor, out=numbers_by_shard[ctx.rank])
        return self._rotate_back(numbers_by_shard.view(-1), elements, ctx)

    def _rotate_back(self, numbers: torch.Tensor, elements: int, ctx: Context) -> torch.Tensor:
        """Return flat numbers, rotated back if ``rotate`` is set, without the padding at their end: ``[elements]``."""
        if not self.rotate:
            return numbers[:elements]
        return rotation.rotate_back(numbers[: rotation.padded_length(elements)], elements, _rotation_draws(ctx))


def _rotation_draws(ctx: Context) -> Draws:
    """Return the random numbers for the signs of the rotation: new ones in each step, except with error feedback.

    With error feedback, a rank keeps the error of coding the mean, in rotated coordinates. All steps must then use the
    same rotation.
    """
    return ctx.draws(fixed=ctx.error_feedback > 0)


quantize = Quantize()
"""Quantization to 32 / CF bits, such as 4 bits at a CF of 8; ``quantize(4)`` uses 4 bits only."""
