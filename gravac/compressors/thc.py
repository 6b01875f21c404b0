# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""THC: integers that can be added while still compressed, on a range common to all ranks, after a Hadamard rotation.

Sources: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024; made
fit for all-reduce with saturation and partial rotation by Han et al., "Beyond Throughput and Compression Ratios",
HotNets 2024, section 3.2. Rounding to the nearest integer is contractive; so is saturation, which rarely happens.

gloo's integer sums wrap around, so saturating needs an owner who adds in wider integers: codes go by all-to-all, sums
come back by all-gather. Or else codes are summed by all-reduce in lanes of int32 that are too wide to overflow.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllGather, AllReduce, AllToAll, Traffic
from gravac.compressors import rotation
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy
from gravac.compressors.chunks import chunk_energies
from gravac.compressors.packing import pack, packed_bytes, unpack
from gravac.compressors.profile import CostPoints


@dataclass(frozen=True, slots=True)
class OnGrid:
    """A tensor as integers on its blocks' grids, rotated; turned back piece by piece as it is added.

    Attributes:
        codes: packed codes: uint8, flat; with 8 bits, integers of any type. There may be more than the blocks have.
        bits: bits per code.
        zero: the code that stands for 0.
        step: distance between the points of each block's grid: float32, ``[blocks]``.
        block: numbers per block.
        ctx: the tensor's context, which gives the rotation's signs.
    """

    codes: torch.Tensor
    bits: int
    zero: int
    step: torch.Tensor
    block: int
    ctx: Context

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat), in place; returns it."""
        turning = rotation.Rotation(len(self.step) * self.block, self.ctx.draws(), self.block, self.step)
        values, turned = turning.scratch(), turning.scratch()
        for part in turning.parts:
            count = part.stop - part.start
            codes = unpack(self.codes[_packed(part, self.bits)], self.bits, count)
            step = self.step[part.start // self.block : part.stop // self.block]
            numbers = values[:count].copy_(codes).sub_(self.zero)
            numbers.view(-1, self.block).mul_(step.unsqueeze(1))
            into = dense[part]
            into.add_(turning.turn_back(numbers, turned[:count])[: len(into)], alpha=alpha)
        return dense


class THC(Compressor):
    """The gradient is rotated, rounded to a few bits on a grid common to all ranks, and summed as integers.

    Attributes:
        bits: bits per coordinate on the way to the sum.
        sum_bits: bits per coordinate of the sum, which saturates; as many as ``bits`` is the published saturation.
        rotate: what is rotated together. ``"partial"``: blocks of 1024; ``"full"``: the whole tensor, filled up to a
            power of two.
        reach: the grid's largest value, in root mean squares of a block; larger ones are cut off.
        exchange: where codes are summed: ``"shards"``: by each shard's owner; ``"lanes"``: by all-reduce, which takes
            ``ceil(log2 N)`` more bits per coordinate.
    """

    name: ClassVar[str] = "thc"
    contractive: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((8, 1.44, 27.52),)

    bits: Literal[2, 4, 8] = 4
    sum_bits: Literal[2, 4, 8] = 8
    rotate: Literal["partial", "full"] = "partial"
    reach: Annotated[float, Field(gt=0)] = 2.7
    exchange: Literal["shards", "lanes"] = "shards"

    @property
    def cf(self) -> float:
        """The compression factor: 32 / bits."""
        return 32 / self.bits

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Least and largest magnitude of a gradient at which float32 holds the energies of its blocks.

        For larger gradients the grid is too narrow and values are clipped; for smaller ones zeros are sent.
        """
        return 2.0**-50, 2.0**45

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """A float32 per block, then codes there and sums back, or lanes; in bytes."""
        elements = torch.Size(shape).numel()
        block = self._block(elements)
        turned = rotation.length(elements, block)
        energies = Traffic(AllReduce, turned // block * 4)
        if self.exchange == "lanes":
            return (energies, Traffic(AllReduce, -(-turned // self._lanes(world)) * 4))
        per = self._shard(turned, world)
        return (
            energies,
            Traffic(AllToAll, world * packed_bytes(per, self.bits)),
            Traffic(AllGather, packed_bytes(per, self.sum_bits)),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x over the ranks, as integers on a common grid.

        1. All-reduce the energy of every block; its mean over the ranks gives the block's grid, the same on all ranks.
        2. Rotate x, and round it to codes on the grid.
        3. Distribute the codes by all-to-all: every rank receives the codes that all ranks have of its shard.
        4. Reduce: add the codes of the shard, saturating; its owner remembers what is cut off.
        5. Collect the sums of all shards by all-gather, and rotate them back as they are added to a tensor.

        With ``"lanes"``, one all-reduce of codes in lanes of int32 takes the place of steps 3 to 5.
        """
        block = self._block(x.numel())
        x = x.float()
        total = yield AllReduce(chunk_energies(x, block) / ctx.world)
        step = (total / block).sqrt_().mul_(self.reach / self._most)
        packed, lost = self._code(x, step, ctx)
        sent = OnGrid(packed.view(-1), self.bits, self._most, step, block, ctx)
        if self.exchange == "lanes":
            sums = yield from self._in_lanes(unpack(sent.codes, self.bits, len(step) * block), ctx.world)
            mean = OnGrid(sums, 8, ctx.world * self._most, step / ctx.world, block, ctx)
        else:
            sums, cut = yield from self._by_shards(packed, ctx.world)
            mean = OnGrid(sums, self.sum_bits, _most(self.sum_bits), step / ctx.world, block, ctx)
            if cut is not None:
                # what the sum lost by saturating was lost on behalf of all ranks; its owner remembers it
                sent, more = self._with_cut(sent, cut, ctx)
                lost += more / ctx.world
        return Reduced(mean=mean, sent=sent, cf=self.cf, error=lost)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared error of rounding flat x on this rank's own grid; 0-d."""
        block = self._block(x.numel())
        step = (chunk_energies(x.float(), block) / block).sqrt_().mul_(self.reach / self._most)
        _, error = self._code(x.float(), step, ctx)
        return [error for _ in cfs]

    def _code(self, x: torch.Tensor, step: torch.Tensor, ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes of x, rotated, rounded to the grid: packed, ``[world, bytes]`` by shard; and the error this makes."""
        block = self._block(x.numel())
        numbers = len(step) * block
        packed = x.new_zeros(ctx.world, packed_bytes(self._shard(numbers, ctx.world), self.bits), dtype=torch.uint8)
        inverse = 1 / step
        inverse = torch.where(inverse.isfinite(), inverse, torch.zeros_like(inverse))
        lost = x.new_zeros((), dtype=torch.float64)
        turning = rotation.Rotation(numbers, ctx.draws(), block, x)
        turned, codes = turning.scratch(), turning.scratch()
        signed = torch.empty_like(codes, dtype=torch.int8)  # float32 becomes int8 four times as fast as uint8
        for part in turning.parts:
            count = part.stop - part.start
            rows = turning.turn(x[part], turned[:count]).view(-1, block)
            these, code = slice(part.start // block, part.stop // block), codes[:count].view(-1, block)
            torch.mul(rows, inverse[these, None], out=code).round_().clamp_(-self._most, self._most)
            lost += energy(rows.addcmul_(code, step[these, None], value=-1).view(-1))
            unsigned = signed[:count].copy_(code.view(-1)).view(torch.uint8).add_(self._most)
            packed.view(-1)[_packed(part, self.bits)] = pack(unsigned, self.bits)
        return packed, lost

    def _by_shards(
        self, packed: torch.Tensor, world: int
    ) -> Generator[Any, Any, tuple[torch.Tensor, torch.Tensor | None]]:
        """All sums, saturated and packed; and what was cut off this rank's shard of them, if they can saturate."""
        arrived = yield AllToAll(packed)
        whole, most = world * self._most, _most(self.sum_bits)
        dtype = next(dtype for dtype in (torch.uint8, torch.int16, torch.int32) if 2 * whole <= torch.iinfo(dtype).max)
        total = torch.zeros(packed.shape[1] * 8 // self.bits, dtype=dtype, device=packed.device)
        for row in arrived:
            total += unpack(row, self.bits, len(total))
        if whole <= most:
            sums, cut = total.add_(most - whole), None
        else:
            kept = total.clamp(whole - most, whole + most)
            sums, cut = kept - (whole - most), kept.int() - total
        (rows,) = yield AllGather(pack(sums.to(torch.uint8), self.sum_bits))
        return rows.reshape(-1), cut

    def _with_cut(self, sent: "OnGrid", cut: torch.Tensor, ctx: Context) -> tuple["OnGrid", torch.Tensor]:
        """What was sent together with what was cut off this rank's shard of the sums; and the energy of the latter."""
        codes = unpack(sent.codes, self.bits, len(cut) * ctx.world).int()
        own = slice(ctx.rank * len(cut), (ctx.rank + 1) * len(cut))
        codes[own] += cut
        steps = sent.step.repeat_interleave(sent.block)[own]
        return OnGrid(codes, 8, self._most, sent.step, sent.block, ctx), energy(cut[: len(steps)] * steps)

    def _in_lanes(self, codes: torch.Tensor, world: int) -> Generator[Any, Any, torch.Tensor]:
        """The sums of codes: int32. Lane i of all words holds the i-th part of the codes."""
        lanes, width = self._lanes(world), self._lane_bits(world)
        words = -(-codes.numel() // lanes)
        parts = torch.nn.functional.pad(codes, (0, words * lanes - codes.numel())).view(lanes, words)
        packed = torch.zeros(words, dtype=torch.int32, device=codes.device)
        for lane, part in enumerate(parts):
            packed |= part.int() << (lane * width)
        total = yield AllReduce(packed)
        mask = (1 << width) - 1
        return torch.cat([(total >> (lane * width)) & mask for lane in range(lanes)])

    @property
    def _most(self) -> int:
        return _most(self.bits)

    def _block(self, elements: int) -> int:
        """Numbers rotated together."""
        whole = max(rotation.SEED_STAGES, 1 << (elements - 1).bit_length())
        return rotation.BLOCK if self.rotate == "partial" else whole

    def _shard(self, codes: int, world: int) -> int:
        """Codes per rank: whole bytes."""
        return -(-codes // (8 * world)) * 8

    def _lane_bits(self, world: int) -> int:
        return self.bits + (world - 1).bit_length()

    def _lanes(self, world: int) -> int:
        return 32 // self._lane_bits(world)


def _packed(part: slice, bits: int) -> slice:
    """Where codes lie when they are packed."""
    return slice(part.start * bits // 8, part.stop * bits // 8)


def _most(bits: int) -> int:
    """Largest code of so many bits, the smallest being its negative."""
    return (1 << (bits - 1)) - 1


thc = THC()
"""THC with 4 bits there and 8 bits back, rotated by blocks of 1024."""
