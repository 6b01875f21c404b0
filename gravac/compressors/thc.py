# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""THC: rotates gradients and rounds them to integers on a grid common to all ranks, so that ranks can add the integers.

Sources: Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024;
adapted to all-reduce, with saturation and partial rotation, by Han et al., "Beyond Throughput and Compression Ratios",
HotNets 2024, section 3.2. Contractive, since neither rounding to the nearest integer nor saturation increases the
error beyond the gradient. Sums seldom saturate.

Sums of integers overflow and wrap around in gloo. Each rank therefore sums one shard of the codes in wider integers and
saturates the sums: an all-to-all distributes codes, and an all-gather collects sums. Alternatively
(``exchange="lanes"``), an all-reduce sums int32 words. A word contains several codes, in bit fields (lanes) that are
wide enough for the sums.
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
from gravac.compressors.sparse import Addend


@dataclass(frozen=True, slots=True)
class GridCodes(Addend):
    """A flat tensor that is stored rotated, as codes; ``add_to`` decodes and rotates back, a few blocks at a time.

    Attributes:
        codes: a grid point (integer) for each rotated number, packed: uint8, flat; with 8 bits, integers of any dtype.
            Codes beyond the tensor's end are ignored.
        bits: bits per code.
        zero_code: code that stands for the number 0.
        grid_step: distance between neighbouring points of each block's grid: float32, ``[blocks]``.
        block: numbers per block.
        ctx: the tensor's context, from which the rotation's signs are drawn.
    """

    codes: torch.Tensor
    bits: int
    zero_code: int
    grid_step: torch.Tensor
    block: int
    ctx: Context

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times the tensor to ``dense`` (flat), in place; return ``dense``."""
        rotator = rotation.Rotation(len(self.grid_step) * self.block, self.ctx.draws(), self.block, self.grid_step)
        number_buffer, rotated_buffer = rotator.scratch(), rotator.scratch()
        for piece_slice in rotator.slices:
            piece_length = piece_slice.stop - piece_slice.start
            codes = unpack(self.codes[_packed_range(piece_slice, self.bits)], self.bits, piece_length)
            grid_step = self.grid_step[piece_slice.start // self.block : piece_slice.stop // self.block]
            centred_piece = number_buffer[:piece_length].copy_(codes).sub_(self.zero_code)
            centred_piece.view(-1, self.block).mul_(grid_step.unsqueeze(1))
            target = dense[piece_slice]
            target.add_(rotator.rotate_back(centred_piece, rotated_buffer[:piece_length])[: len(target)], alpha=alpha)
        return dense


class THC(Compressor):
    """THC: gradients are rotated, rounded to a few bits on a grid common to all ranks, and summed as integers.

    Attributes:
        bits: bits per coordinate of a rank's codes: 2, 4 (the default) or 8.
        sum_bits: bits per coordinate of the sum, which saturates: 2, 4 or 8 (the default); equal to ``bits`` in the
            published method.
        rotate: which elements are rotated together. ``"partial"``, the default: every 1024 elements; ``"full"``: the
            whole tensor, padded to a power of two.
        reach: largest number on a block's grid, as a multiple of the block's root mean square, above 0; default: 2.7.
            Larger numbers are clipped.
        exchange: how codes are summed. ``"shards"``, the default: each rank sums one shard of the tensor; ``"lanes"``:
            an all-reduce sums the codes of N ranks, with ``ceil(log2 N)`` more bits per coordinate.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "thc"
    contractive: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((8, 1.32, 18.57),)

    bits: Literal[2, 4, 8] = 4
    sum_bits: Literal[2, 4, 8] = 8
    rotate: Literal["partial", "full"] = "partial"
    reach: Annotated[float, Field(gt=0)] = 2.7
    exchange: Literal["shards", "lanes"] = "shards"

    @property
    def cf(self) -> float:
        """Compression factor: 32 / bits."""
        return 32 / self.bits

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements for which blocks' energies can be sent in float32.

        If elements are larger, the grid is too narrow, and numbers are clipped. If they are smaller, zeros are sent.
        """
        return 2.0**-50, 2.0**45

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-reduce of the blocks' energies, then the exchange of codes."""
        elements = torch.Size(shape).numel()
        block = self._block(elements)
        rotated_length = rotation.padded_length(elements, block)
        energy_traffic = Traffic(AllReduce, rotated_length // block * 4)
        if self.exchange == "lanes":
            return (energy_traffic, Traffic(AllReduce, -(-rotated_length // self._lanes_per_word(world)) * 4))
        codes_per_shard = self._codes_per_shard(rotated_length, world)
        return (
            energy_traffic,
            Traffic(AllToAll, world * packed_bytes(codes_per_shard, self.bits)),
            Traffic(AllGather, packed_bytes(codes_per_shard, self.sum_bits)),
        )

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x over the ranks, as integers on a common grid.

        1. All-reduce the energy of every block. The mean over the ranks determines the block's grid, the same on all
           ranks.
        2. Rotate x, and round it to codes on the grid.
        3. Distribute the codes by all-to-all: each rank receives all ranks' codes of its shard.
        4. Reduce: add the ranks' codes of the shard, and saturate the sums. The rank adds what saturation cut off to
           its residual.
        5. Collect the sums of all shards by all-gather. ``GridCodes.add_to`` later rotates them back.

        With ``"lanes"``, one all-reduce of codes in lanes of int32 replaces steps 3 to 5.
        """
        block = self._block(x.numel())
        x = x.float()
        mean_energies = yield AllReduce(chunk_energies(x, block) / ctx.world)
        grid_step = (mean_energies / block).sqrt_().mul_(self.reach / self._max_code)
        packed, error = self._code(x, grid_step, ctx)
        sent = GridCodes(packed.view(-1), self.bits, self._max_code, grid_step, block, ctx)
        if self.exchange == "lanes":
            sums = yield from self._in_lanes(unpack(sent.codes, self.bits, len(grid_step) * block), ctx.world)
            mean = GridCodes(sums, 8, ctx.world * self._max_code, grid_step / ctx.world, block, ctx)
        else:
            sums, saturation_cut = yield from self._by_shards(packed, ctx.world)
            mean = GridCodes(sums, self.sum_bits, _max_code(self.sum_bits), grid_step / ctx.world, block, ctx)
            if saturation_cut is not None:
                # the rank that summed the shard adds what saturation cut off to its residual
                sent, cut_energy = self._add_saturation_cut(sent, saturation_cut, ctx)
                error += cut_energy / ctx.world
        return Reduced(mean=mean, sent=sent, cf=self.cf, error=error)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the squared error of flat x, 0-d, as if this rank's energies alone set the grid."""
        block = self._block(x.numel())
        grid_step = (chunk_energies(x.float(), block) / block).sqrt_().mul_(self.reach / self._max_code)
        _, error = self._code(x.float(), grid_step, ctx)
        return [error for _ in cfs]

    def _code(self, x: torch.Tensor, grid_step: torch.Tensor, ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate flat x and round the result to the grid.

        Args:
            x: tensor to code, flat, float32.
            grid_step: distance between neighbouring points of each block's grid: float32, ``[blocks]``.
            ctx: the tensor's context.

        Returns:
            Packed codes, ``[world, bytes]``, a row for each shard; and the squared error of rounding, 0-d.
        """
        block = self._block(x.numel())
        rotated_length = len(grid_step) * block
        packed = x.new_zeros(
            ctx.world, packed_bytes(self._codes_per_shard(rotated_length, ctx.world), self.bits), dtype=torch.uint8
        )
        inverse_grid_step = 1 / grid_step
        inverse_grid_step = torch.where(
            inverse_grid_step.isfinite(), inverse_grid_step, torch.zeros_like(inverse_grid_step)
        )
        error = x.new_zeros((), dtype=torch.float64)
        rotator = rotation.Rotation(rotated_length, ctx.draws(), block, x)
        rotated_piece, codes = rotator.scratch(), rotator.scratch()
        signed_codes = torch.empty_like(codes, dtype=torch.int8)  # float32 becomes int8 four times as fast as uint8
        for piece_slice in rotator.slices:
            piece_length = piece_slice.stop - piece_slice.start
            rotated_blocks = rotator.rotate(x[piece_slice], rotated_piece[:piece_length]).view(-1, block)
            block_range = slice(piece_slice.start // block, piece_slice.stop // block)
            block_codes = codes[:piece_length].view(-1, block)
            torch.mul(rotated_blocks, inverse_grid_step[block_range, None], out=block_codes).round_().clamp_(
                -self._max_code, self._max_code
            )
            error += energy(rotated_blocks.addcmul_(block_codes, grid_step[block_range, None], value=-1).view(-1))
            unsigned_codes = (
                signed_codes[:piece_length].copy_(block_codes.view(-1)).view(torch.uint8).add_(self._max_code)
            )
            packed.view(-1)[_packed_range(piece_slice, self.bits)] = pack(unsigned_codes, self.bits)
        return packed, error

    def _by_shards(
        self, packed: torch.Tensor, world: int
    ) -> Generator[Any, Any, tuple[torch.Tensor, torch.Tensor | None]]:
        """Sum all ranks' packed codes by all-to-all and all-gather: each rank sums one shard.

        Returns:
            The saturated sums of all shards, packed, flat; and, for this rank's shard, saturated sums minus exact sums:
            int32, flat, or ``None`` if sums cannot saturate.
        """
        shard_codes = yield AllToAll(packed)
        max_sum, max_sent_sum = world * self._max_code, _max_code(self.sum_bits)
        dtypes = (torch.uint8, torch.int16, torch.int32)
        dtype = next(dtype for dtype in dtypes if 2 * max_sum <= torch.iinfo(dtype).max)
        exact_sums = torch.zeros(packed.shape[1] * 8 // self.bits, dtype=dtype, device=packed.device)
        for rank_codes in shard_codes:
            exact_sums += unpack(rank_codes, self.bits, len(exact_sums))
        if max_sum <= max_sent_sum:
            sums, saturation_cut = exact_sums.add_(max_sent_sum - max_sum), None
        else:
            saturated_sums = exact_sums.clamp(max_sum - max_sent_sum, max_sum + max_sent_sum)
            sums, saturation_cut = saturated_sums - (max_sum - max_sent_sum), saturated_sums.int() - exact_sums
        (packed_sums_by_shard,) = yield AllGather(pack(sums.to(torch.uint8), self.sum_bits))
        return packed_sums_by_shard.reshape(-1), saturation_cut

    def _add_saturation_cut(
        self, sent: "GridCodes", saturation_cut: torch.Tensor, ctx: Context
    ) -> tuple["GridCodes", torch.Tensor]:
        """Return the sent tensor with ``saturation_cut`` added to this rank's shard, and the energy of the cut, 0-d.

        Args:
            sent: this rank's codes.
            saturation_cut: saturated sums minus exact sums of this rank's shard: int32, flat, in steps of the grid.
            ctx: the tensor's context.
        """
        codes = unpack(sent.codes, self.bits, len(saturation_cut) * ctx.world).int()
        local_shard = slice(ctx.rank * len(saturation_cut), (ctx.rank + 1) * len(saturation_cut))
        codes[local_shard] += saturation_cut
        grid_steps = sent.grid_step.repeat_interleave(sent.block)[local_shard]
        cut_energy = energy(saturation_cut[: len(grid_steps)] * grid_steps)
        return GridCodes(codes, 8, self._max_code, sent.grid_step, sent.block, ctx), cut_energy

    def _in_lanes(self, codes: torch.Tensor, world: int) -> Generator[Any, Any, torch.Tensor]:
        """Sum flat codes over the ranks, several codes per int32 in one all-reduce; return the sums: int32, flat."""
        lane_count, lane_bits = self._lanes_per_word(world), self._lane_bits(world)
        section_length = -(-codes.numel() // lane_count)
        padding = section_length * lane_count - codes.numel()
        sections = torch.nn.functional.pad(codes, (0, padding)).view(lane_count, section_length)
        packed = torch.zeros(section_length, dtype=torch.int32, device=codes.device)
        for lane, lane_codes in enumerate(sections):
            packed |= lane_codes.int() << (lane * lane_bits)
        packed_sums = yield AllReduce(packed)
        lane_mask = (1 << lane_bits) - 1
        return torch.cat([(packed_sums >> (lane * lane_bits)) & lane_mask for lane in range(lane_count)])

    @property
    def _max_code(self) -> int:
        return _max_code(self.bits)

    def _block(self, elements: int) -> int:
        """Return how many elements are rotated together, if the tensor has ``elements`` elements."""
        padded_length = max(rotation.FIRST_TRANSFORM_LENGTH, 1 << (elements - 1).bit_length())
        return rotation.DEFAULT_BLOCK if self.rotate == "partial" else padded_length

    def _codes_per_shard(self, code_count: int, world: int) -> int:
        """Return the codes per rank's shard, out of ``code_count`` codes: a multiple of 8, so that they fill bytes."""
        return -(-code_count // (8 * world)) * 8

    def _lane_bits(self, world: int) -> int:
        """Return the number of bits that the sum of ``world`` codes needs."""
        return self.bits + (world - 1).bit_length()

    def _lanes_per_word(self, world: int) -> int:
        """Return how many sums of ``world`` codes fit in an int32."""
        return 32 // self._lane_bits(world)


def _packed_range(code_range: slice, bits: int) -> slice:
    """Convert a range of codes to the range of bytes in which these codes are packed."""
    return slice(code_range.start * bits // 8, code_range.stop * bits // 8)


def _max_code(bits: int) -> int:
    """Return the number m for which codes of ``bits`` bits stand for the integers from -m to m."""
    return (1 << (bits - 1)) - 1


thc = THC()
"""THC with default settings: 4 bits for codes, 8 bits for sums, rotation in blocks of 1024 elements."""
