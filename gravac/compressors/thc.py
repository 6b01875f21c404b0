# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""THC: integers that can be added while still compressed, on a range common to all ranks, after a Hadamard rotation.

Sources: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024; made
fit for all-reduce with saturation and partial rotation by Han et al., "Beyond Throughput and Compression Ratios",
HotNets 2024, section 3.2. Rounding to the nearest integer is contractive; so is saturation, which rarely happens.

gloo's integer sums wrap around, so saturating needs an owner who adds in wider integers: codes go by all-to-all, sums
come back by all-gather. Or else codes are summed by all-reduce in lanes of int32 that are too wide to overflow.
"""

import math
from collections.abc import Generator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from gravac.collectives import AllGather, AllReduce, AllToAll, Traffic
from gravac.compressors import rotation
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy
from gravac.compressors.packing import pack, packed_bytes, unpack


class THC(Compressor):
    """Rotated, rounded to a few bits on a common grid, summed as integers.

    Attributes:
        bits: per coordinate, on the way to the sum.
        sum_bits: per coordinate of the sum, which saturates; as many as ``bits`` is the published saturation.
        rotate: ``"partial"``: blocks of 1024; ``"full"``: the whole tensor, filled up to a power of two.
        reach: the grid's largest value, in root mean squares of a block; larger ones are cut off.
        exchange: ``"shards"`` or ``"lanes"``, see above. Lanes spend ``ceil(log2 N)`` more bits per coordinate.
    """

    name: ClassVar[str] = "thc"
    contractive: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.0

    bits: Literal[2, 4, 8] = 4
    sum_bits: Literal[2, 4, 8] = 8
    rotate: Literal["partial", "full"] = "partial"
    reach: Annotated[float, Field(gt=0)] = 2.7
    exchange: Literal["shards", "lanes"] = "shards"

    def candidates(self, cf_range: tuple[float, float], shapes: Sequence[tuple[int, ...]]) -> tuple[float, ...]:
        """32 / bits, in the range."""
        cf = 32 / self.bits
        return (cf,) if cf_range[0] <= cf <= cf_range[1] else ()

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """A float32 per block; then codes there and sums back, or lanes."""
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
        """An all-reduce of the blocks' energies gives the grid; then integers are summed."""
        block = self._block(x.numel())
        turned = rotation.turn(x.float(), ctx.generator(), block)
        blocks = turned.view(-1, block)
        total = yield AllReduce(torch.linalg.vecdot(blocks, blocks) / ctx.world)
        step = (total / block).sqrt_().mul_(self.reach / self._most).unsqueeze(1)
        codes = _on_grid(blocks, step, self._most)
        lost = energy((codes * step - blocks).view(-1))
        sent = codes.view(-1).clone()
        if self.exchange == "lanes":
            summed = yield from self._in_lanes(codes.view(-1), ctx.world)
        else:
            per = self._shard(codes.numel(), ctx.world)
            own = slice(ctx.rank * per, min((ctx.rank + 1) * per, codes.numel()))
            exact, summed = yield from self._by_shards(codes.view(-1), per, ctx.world)
            # what the sum lost by saturating was lost on behalf of all ranks; its owner remembers it
            cut = summed[own] - exact[: len(summed[own])]
            sent[own] += cut
            lost += energy(cut.view(-1) * step.expand(-1, block).reshape(-1)[own]) / ctx.world
        return Reduced(
            mean=self._back(summed.view(-1, block) * (step / ctx.world), x, ctx),
            sent=self._back(sent.view(-1, block) * step, x, ctx),
            cf=32 / self.bits,
            error=lost,
        )

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Of rounding, on this rank's own grid."""
        block = self._block(x.numel())
        blocks = rotation.turn(x.float(), ctx.generator(), block).view(-1, block)
        step = torch.linalg.vector_norm(blocks, dim=1, keepdim=True) * (self.reach / self._most / math.sqrt(block))
        error = energy((_on_grid(blocks, step, self._most) * step - blocks).view(-1)).to(x.dtype)
        return [error for _ in cfs]

    def _by_shards(self, codes: torch.Tensor, per: int, world: int) -> Generator[Any, Any, tuple[torch.Tensor, ...]]:
        """This rank's shard of the sum, exact, and the whole of it, saturated; both float32."""
        padded = torch.nn.functional.pad(codes, (0, per * world - codes.numel()))
        unsigned = (padded + self._most).to(torch.uint8).view(world, per)
        arrived = yield AllToAll(pack(unsigned, self.bits))
        exact = unpack(arrived, self.bits, per).float().sum(0) - world * self._most
        most = _most(self.sum_bits)
        (rows,) = yield AllGather(pack((exact.clamp(-most, most) + most).to(torch.uint8), self.sum_bits))
        summed = unpack(rows, self.sum_bits, per).float().sub_(most)
        return exact, summed.view(-1)[: codes.numel()]

    def _in_lanes(self, codes: torch.Tensor, world: int) -> Generator[Any, Any, torch.Tensor]:
        """The sum, float32. Lane i of all words holds the i-th part of the codes."""
        lanes, width = self._lanes(world), self._lane_bits(world)
        words = -(-codes.numel() // lanes)
        parts = torch.nn.functional.pad(codes, (0, words * lanes - codes.numel())).to(torch.int32).view(lanes, words)
        packed = torch.zeros(words, dtype=torch.int32, device=codes.device)
        for lane, part in enumerate(parts):
            packed |= (part + self._most) << (lane * width)
        total = yield AllReduce(packed)
        mask = (1 << width) - 1
        sums = torch.stack([(total >> (lane * width)) & mask for lane in range(lanes)])
        return sums.view(-1)[: codes.numel()].float() - world * self._most

    def _back(self, rows: torch.Tensor, x: torch.Tensor, ctx: Context) -> torch.Tensor:
        block = rows.shape[1]
        return rotation.turn_back(rows.view(-1), x.numel(), ctx.generator(), block).to(x.dtype)

    @property
    def _most(self) -> int:
        return _most(self.bits)

    def _block(self, elements: int) -> int:
        """Numbers rotated together."""
        return (
            rotation.BLOCK if self.rotate == "partial" else max(rotation.SEED_STAGES, 1 << (elements - 1).bit_length())
        )

    def _shard(self, codes: int, world: int) -> int:
        """Codes per rank: whole bytes."""
        return -(-codes // (8 * world)) * 8

    def _lane_bits(self, world: int) -> int:
        return self.bits + (world - 1).bit_length()

    def _lanes(self, world: int) -> int:
        return 32 // self._lane_bits(world)


def _most(bits: int) -> int:
    """Largest code of so many bits, the smallest being its negative."""
    return (1 << (bits - 1)) - 1


def _on_grid(blocks: torch.Tensor, step: torch.Tensor, most: int) -> torch.Tensor:
    """The nearest integers, cut off at ``most``: float32, like ``blocks``; zeros where step is zero."""
    inverse = 1 / step
    inverse = torch.where(inverse.isfinite(), inverse, torch.zeros_like(inverse))
    return (blocks * inverse).round_().clamp_(-most, most)


thc = THC()
"""4 bits there and 8 bits back, rotated by blocks of 1024."""
