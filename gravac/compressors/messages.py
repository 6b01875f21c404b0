# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Messages of quantized numbers: the codes of some blocks, then their scales. By kernels where those run.

A message is uint8, flat: the codes of every block, packed as by ``packing.pack``, then a ``SCALE`` per block. Kernels
(``gravac.kernels.quantize``) make the same ones as ``codebook`` does, but for numbers on a threshold and a place of a
scale, and decode them to the same bits.
"""

from dataclasses import dataclass
from types import ModuleType

import torch

from gravac import kernels
from gravac.compressors import codebook
from gravac.compressors.codebook import SCALE, Coded, Decoded, add_at
from gravac.compressors.levels import Kind
from gravac.compressors.packing import packed_bytes


def encode(
    x: torch.Tensor, bits: int, kind: Kind, block: int, shards: int = 1, decoded: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the messages of flat x, followed by zeros up to whole blocks, as many in every shard.

    Args:
        x: numbers to code: float32, flat, contiguous, finite.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: how the levels lie; 8 bits are always uniform.
        block: numbers per scale, a multiple of 8.
        shards: messages to make, each of consecutive blocks.
        decoded: float32, flat, contiguous, as long as x, which then is of whole blocks; overwritten with what the codes
            stand for. ``None``: that is not kept.

    Returns:
        The messages, uint8, ``[shards, bytes]``, and ``‖x - decoded‖²``, 0-d.
    """
    by = _kernels(x, block)
    if by is not None:
        message, sums = by.encode(x, bits, kind, block, shards, decoded=decoded)
        return message, sums[0]
    per = -(-x.numel() // (block * shards))
    out = None if decoded is None else decoded.view(-1, block)
    coded, error = codebook.encode(padded(x, shards * per, block), bits, kind, out)
    scales = coded.scales.view(torch.uint8).view(shards, -1)
    return torch.cat([coded.packed.view(shards, -1), scales], dim=1), error


@dataclass(frozen=True, slots=True)
class Messages:
    """What messages stand for, decoded as it is added.

    Attributes:
        messages: uint8, ``[shards, parts, bytes]``, a message's bytes side by side. Shards follow one another; each is
            the mean of its parts, added in their order.
        bits: bits per code, as encoded.
        kind: how the levels lie, as encoded.
        block: numbers per scale, as encoded.
        more: a position, and numbers (flat, float32) that are added from there on.
    """

    messages: torch.Tensor
    bits: int
    kind: Kind
    block: int
    more: tuple[int, torch.Tensor] | None = None

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this to ``dense`` (flat; what is beyond its end is left out), in place; returns it."""
        by = _kernels(dense, self.block)
        if by is None:
            return Decoded(self._coded(), self.bits, self.kind, self.block, self.more).add_to(dense, alpha)
        by.decode(dense, self.messages, self.bits, self.kind, self.block, alpha)
        if self.more is not None:
            add_at(dense, *self.more, alpha)
        return dense

    def decoded(self) -> torch.Tensor:
        """All numbers of the messages, those of padding too, without ``more``: float32, flat."""
        blocks = len(self.messages) * self._per()
        dense = self.messages.new_empty(blocks * self.block, dtype=torch.float32)
        by = _kernels(dense, self.block)
        if by is None:
            codebook.mean(self._coded(), self.bits, self.kind, dense.view(blocks, self.block))
        else:
            by.decode(dense, self.messages, self.bits, self.kind, self.block)
        return dense

    def _per(self) -> int:
        """Blocks of a message."""
        return self.messages.shape[2] // (packed_bytes(self.block, self.bits) + SCALE.itemsize)

    def _coded(self) -> Coded:
        """Codes and scales of every part, ``[parts, blocks, ...]``."""
        width, per = packed_bytes(self.block, self.bits), self._per()
        parts = self.messages.transpose(0, 1)
        packed = parts[..., : per * width].reshape(len(parts), -1, width)
        scales = parts[..., per * width :].clone(memory_format=torch.contiguous_format).view(-1).view(SCALE)
        return Coded(packed, scales.view(len(parts), -1))


def padded(x: torch.Tensor, blocks: int, block: int) -> torch.Tensor:
    """Flat x as so many blocks, filled up with zeros: ``[blocks, block]``; a view where none are missing."""
    missing = blocks * block - x.numel()
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x).view(blocks, block)


def _kernels(numbers: torch.Tensor, block: int) -> ModuleType | None:
    """The quantizer's kernels, where they can code these numbers in blocks of so many."""
    if not kernels.usable(numbers.device.type):
        return None
    from gravac.kernels import quantize  # needs triton

    return quantize if quantize.fits(numbers.dtype, block) else None
