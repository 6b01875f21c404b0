# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Blockwise quantization to 8, 4, 3, 2 or 1 bits, summed by all-to-all and all-gather of codes.

Sources: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022 (blocks); Vargaftik et al., "DRIVE",
NeurIPS 2021, and "EDEN", ICML 2022 (fitted levels, randomized Hadamard rotation); Tang et al., "1-bit Adam", ICML 2021
(the two stages, each with an error of its own). Contractive, see ``codebook``.

Every rank codes all of its tensor and sends each shard's codes to the shard's owner, who decodes, averages, codes the
mean again and sends it to all: a ring all-reduce's traffic, ``2 (N-1)/N`` times the codes, at any N. Two ranks just
swap their codes: as many bytes, and no second coding.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllGather, AllToAll, Traffic
from gravac.compressors import rotation
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy
from gravac.compressors.codebook import SCALE
from gravac.compressors.draws import Draws
from gravac.compressors.levels import Kind
from gravac.compressors.messages import Messages, encode, encode_decoded, encode_folded, folds, padded
from gravac.compressors.packing import packed_bytes
from gravac.compressors.profile import CostPoints, Profile

WIDTHS = (8, 4, 3, 2, 1)
"""Bits per coordinate that can be chosen."""

SAMPLED = 1 << 16
"""Numbers of a tensor, roughly, that are coded to foresee its error."""


class Quantize(Compressor):
    """Few bits per coordinate, with a scale per block.

    Attributes:
        bits: bits per coordinate; ``None`` goes by the CF: 32 / bits.
        block: coordinates per scale (16 bits each).
        levels: how levels lie: ``"fitted"`` to a normal law, or ``"uniform"`` up to the block's largest magnitude.
        rotate: whether to turn blocks of 1024 by a random Hadamard rotation first, so that their law is nearly normal.
        back_bits: bits per coordinate of the mean, which is coded a second time; ``None``: as many as the first time.
        exchange: how codes travel. ``"shards"``: as described above; ``"gather"``: everyone's codes to everyone,
            cheaper for two ranks only; ``"auto"`` takes that for two.
    """

    name: ClassVar[str] = "quantize"
    contractive: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = (
        (4, 7.79, 5.02),
        (8, 11.45, 6.93),
        (10.667, 15.23, 8.31),
        (16, 9.64, 5.94),
        (32, 6.00, 5.07),
    )

    bits: Literal[8, 4, 3, 2, 1] | None = None
    block: Annotated[int, Field(ge=8, multiple_of=8)] = 128
    levels: Kind = "fitted"
    rotate: bool = False
    back_bits: Literal[8, 4, 3, 2, 1] | None = None
    exchange: Literal["auto", "shards", "gather"] = "auto"

    def __call__(self, bits: int | None = None, **changes: Any) -> "Quantize":
        """The same settings but for ``bits`` and other changes."""
        return super().__call__(**({} if bits is None else {"bits": bits}), **changes)

    def method_at(self, cf: float) -> str:
        """The number of bits per coordinate at a CF, in words."""
        bits = self.bits_at(cf)
        return f"{bits} bit{'s' * (bits > 1)}"

    @property
    def finest(self) -> float:
        """The lowest compression factor that the settings allow."""
        return 32 / (self.bits or max(WIDTHS))

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """What is known at a CF: one round where ranks swap codes; padded to whole blocks, unless each is rotated."""
        gathers, known = self.gathers(world), super().profile(cf)
        if self.rotate:
            return replace(known, one_round=gathers)
        return replace(
            known, one_round=gathers, pad_multiple=self.block if gathers else self.block * world, coding_bytes=21
        )

    def candidates(self, cf_range: tuple[float, float]) -> tuple[float, ...]:
        """The compression factors 32 / bits that are in the range."""
        widths = WIDTHS if self.bits is None else (self.bits,)
        return tuple(32 / bits for bits in widths if cf_range[0] <= 32 / bits <= cf_range[1])

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Codes and scales of whole shards, there and back, in bytes."""
        elements = torch.Size(shape).numel()
        if self.rotate:
            elements = rotation.length(elements)
        bits = self.bits_at(cf)
        per = self._shard_blocks(elements, world)
        if self.gathers(world):
            return (Traffic(AllGather, per * self._block_bytes(bits)),)
        back = self.back_bits or bits
        return (
            Traffic(AllToAll, world * per * self._block_bytes(bits)),
            Traffic(AllGather, per * self._block_bytes(back)),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x over the ranks, quantized.

        1. Quantize x block by block (rotated first, with ``rotate``), and cut the codes into one shard per rank.
        2. Distribute the codes by all-to-all: every rank receives the codes that all ranks have of its shard.
        3. Reduce: decode them, average, add the second error kept, and quantize the mean; what that loses is kept where
           there is error feedback.
        4. Collect the codes of all shards' means by all-gather, and decode them.

        Where ranks just swap their codes (``gathers``), one all-gather of all codes takes the place of steps 2 to 4.
        """
        bits = self.bits_at(cf)
        shards = 1 if self.gathers(ctx.world) else ctx.world
        if ctx.fold is None:
            message, error = encode(self._turned(x, ctx), bits, self.levels, self.block, shards)
            sent = self._messages(message.unsqueeze(1), bits)
        else:
            message, error = encode_folded(x, ctx.fold, bits, self.levels, self.block, shards)
            sent = self._messages(message[:0].unsqueeze(1), bits)
        aside: torch.Tensor | None = None
        if self.gathers(ctx.world):
            (messages,) = yield AllGather(message[0])
            average = self._messages(messages.unsqueeze(0), bits)
        else:
            arrived = yield AllToAll(message)
            exact = self._messages(arrived.unsqueeze(0), bits).decoded()
            kept = ctx.state.get("second") if ctx.error_feedback > 0 else None
            wanted = exact if kept is None or kept.numel() != exact.numel() else exact + kept.view(-1)
            back = self.back_bits or bits
            again, rounded = encode_decoded(wanted, back, self.levels, self.block)
            (messages,) = yield AllGather(again[0])
            average = self._messages(messages.unsqueeze(1), back)
            more = (rounded - exact).mul_(ctx.world)
            error = error + energy(more) / ctx.world
            if ctx.error_feedback:
                lost = wanted - rounded
                if ctx.fold is not None and kept is None:
                    lost.nan_to_num_(0.0, 0.0, 0.0)  # there is no older one to go back to
                kept = lost if ctx.error_feedback == 1 else lost.mul_(ctx.error_feedback)
                ctx.state["second"] = kept.view(-1, self.block)
                aside = self._from_own_shard(more, -1.0, x.numel(), ctx)
            sent = replace(sent, more=(ctx.rank * more.numel(), more))
        return Reduced(self._back(average, x, ctx), self._back(sent, x, ctx), 32 / bits, aside=aside, error=error)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of coding flat x the first time, estimated from some of its blocks; 0-d."""
        turned = self._turned(x, ctx)
        rows = padded(turned, self._shard_blocks(turned.numel(), 1), self.block)
        some = rows[:: max(1, rows.numel() // SAMPLED)].contiguous()
        whole, looked_at = energy(x), energy(some.view(-1)).clamp(min=torch.finfo(torch.float64).tiny)
        lost = [encode(some.view(-1), self.bits_at(cf), self.levels, self.block)[1] for cf in cfs]
        return [whole * (one / looked_at) for one in lost]

    def folds(self, gradient: torch.Tensor, cf: float) -> bool:
        """Whether kernels can take it, flat, and it need not be rotated before."""
        return not self.rotate and folds(gradient, self.block)

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Say what is expected: ``second``, the second coding's error, has shape ``[blocks, block]``."""
        fits = key != "second" or (memory.dim() == 2 and memory.shape[1] == self.block and memory.is_contiguous())
        return "" if fits else f"blocks of {self.block} numbers"

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """The second coding's error times the ranks, so that its mean is the one kept: flat, ``[elements]``."""
        second = ctx.state.get("second")
        return None if second is None else self._from_own_shard(second, ctx.world, elements, ctx)

    def gathers(self, world: int) -> bool:
        """Whether ``world`` ranks just swap their codes, by one all-gather."""
        return world == 1 or self.exchange == "gather" or (self.exchange == "auto" and world <= 2)

    def bits_at(self, cf: float) -> int:
        """Number of bits per coordinate at a CF."""
        return self.bits if self.bits is not None else min(WIDTHS, key=lambda bits: abs(32 / bits - cf))

    def _shard_blocks(self, elements: int, world: int) -> int:
        blocks = -(-elements // self.block)
        return blocks if self.gathers(world) else -(-blocks // world)

    def _block_bytes(self, bits: int) -> int:
        return packed_bytes(self.block, bits) + SCALE.itemsize

    def _messages(self, messages: torch.Tensor, bits: int) -> Messages:
        return Messages(messages, bits, self.levels, self.block)

    def _turned(self, x: torch.Tensor, ctx: Context) -> torch.Tensor:
        return rotation.turn(x.float(), _signs(ctx)) if self.rotate else x.float()

    def _back(self, decoded: Messages, x: torch.Tensor, ctx: Context) -> torch.Tensor | Messages:
        """As coordinates of x: of what was rotated, turned back."""
        if not self.rotate:
            return decoded
        turned = decoded.add_to(x.new_zeros(rotation.length(x.numel()), dtype=torch.float32))
        return self._turned_back(turned, x.numel(), ctx).to(x.dtype)

    def _from_own_shard(self, numbers: torch.Tensor, factor: float, elements: int, ctx: Context) -> torch.Tensor:
        """As coordinates of x: numbers times a factor in this rank's shard, else zeros; turned back. ``[elements]``."""
        shards = numbers.new_zeros(ctx.world, numbers.numel())
        torch.mul(numbers.view(-1), factor, out=shards[ctx.rank])
        return self._turned_back(shards.view(-1), elements, ctx)

    def _turned_back(self, numbers: torch.Tensor, elements: int, ctx: Context) -> torch.Tensor:
        if not self.rotate:
            return numbers[:elements]
        return rotation.turn_back(numbers[: rotation.length(elements)], elements, _signs(ctx))


def _signs(ctx: Context) -> Draws:
    """Of the rotation: new ones each step, unless the second error is kept from step to step as it was rotated."""
    return ctx.draws(fixed=ctx.error_feedback > 0)


quantize = Quantize()
"""Quantization to 2 bits at 16x, 4 at 8x and so on; ``quantize(4)`` always uses four."""
