# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Messages of quantized numbers: the codes of some blocks, then their scales. By kernels where those run.

A message is uint8, flat: the codes of every block, packed as by ``packing.pack``, then a ``SCALE`` per block. Kernels
(``kernels.quantize``) make the same messages as ``codebook`` does, but for numbers on a threshold and a place of a
scale, and decode them to the same bits. So does ``codebook_on_device``, if there are no kernels.
"""

from dataclasses import dataclass
from types import ModuleType

import torch

from gravac.compressors import codebook, codebook_on_device, kernels
from gravac.compressors.base import Fold
from gravac.compressors.codebook import SCALE, Coded, Decoded, add_at
from gravac.compressors.levels import Kind
from gravac.compressors.packing import packed_bytes


def encode(x: torch.Tensor, bits: int, kind: Kind, block: int, shards: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the messages of flat x, followed by zeros up to whole blocks, as many in every shard.

    Args:
        x: numbers to code: float32, flat, contiguous, finite.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: how the levels lie; 8 bits are always uniform.
        block: numbers per scale, a multiple of 8.
        shards: messages to make, each of consecutive blocks.

    Returns:
        The messages, uint8, ``[shards, bytes]``, and ``‖x - decoded‖²``, 0-d.
    """
    by = _kernels(x, block)
    if by is not None:
        message, sums = by.encode(x, bits, kind, block, shards)
        return message, sums[0]
    rows = padded(x, shards * -(-x.numel() // (block * shards)), block)
    coded, error = (codebook if x.device.type == "cpu" else codebook_on_device).encode(rows, bits, kind)
    return _message(coded, shards), error


def folds(gradient: torch.Tensor, block: int) -> bool:
    """Whether ``encode_folded`` can take a gradient, flat, in blocks of so many numbers."""
    return gradient.is_contiguous() and _kernels(gradient, block) is not None


def encode_folded(
    gradient: torch.Tensor, fold: Fold, bits: int, kind: Kind, block: int, shards: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make messages as ``encode`` does, of a gradient that ``folds``; what they stand for is not left in the fold."""
    message, sums = _the_kernels().encode(gradient, bits, kind, block, shards, residual=fold.residual, left=fold.left)
    fold.energy = sums[1]
    return message, sums[0]


def encode_decoded(x: torch.Tensor, bits: int, kind: Kind, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one message of flat x, as ``encode`` does, of whole blocks.

    Returns:
        The message, uint8, ``[1, bytes]``, and what it stands for: float32, flat, ``[elements]``.
    """
    by = _kernels(x, block)
    if by is not None:
        decoded = torch.empty_like(x)
        return by.encode(x, bits, kind, block, decoded=decoded)[0], decoded
    rows = x.view(-1, block)
    if x.device.type == "cpu":
        decoded = torch.empty_like(rows)
        coded, _ = codebook.encode(rows, bits, kind, decoded)
    else:
        coded, decoded = codebook_on_device.encode_decoded(rows, bits, kind)
    return _message(coded, 1), decoded.view(-1)


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
        if not len(self.messages):
            pass
        elif by is not None:
            by.decode(dense, self.messages, self.bits, self.kind, self.block, alpha)
        elif dense.device.type == "cpu":
            return Decoded(self._coded(), self.bits, self.kind, self.block, self.more).add_to(dense, alpha)
        else:
            add_at(dense, 0, self._at_once(), alpha)
        if self.more is not None:
            add_at(dense, *self.more, alpha)
        return dense

    def overwrite(self, *denses: torch.Tensor) -> bool:
        """Put this, as long as a tensor at least, in place of what is there, where a kernel can; tell whether."""
        if len(denses) > 1:
            return False
        (dense,) = denses
        by = _kernels(dense, self.block)
        if by is None or self.more is not None or not dense.is_contiguous():
            return False
        by.decode(dense, self.messages, self.bits, self.kind, self.block)
        return True

    def decoded(self) -> torch.Tensor:
        """All numbers of the messages, those of padding too, without ``more``: float32, flat."""
        blocks = len(self.messages) * self._per()
        dense = self.messages.new_empty(blocks * self.block, dtype=torch.float32)
        by = _kernels(dense, self.block)
        if by is not None:
            by.decode(dense, self.messages, self.bits, self.kind, self.block)
        elif dense.device.type == "cpu":
            codebook.mean(self._coded(), self.bits, self.kind, dense.view(blocks, self.block))
        else:
            dense = self._at_once()
        return dense

    def _at_once(self) -> torch.Tensor:
        """The mean of the parts, all of them decoded at once: float32, flat."""
        packed = self._packed(self.messages)
        scales = scales_in(self.messages[..., packed.shape[2] * packed.shape[3] :])
        numbers = codebook_on_device.decode(packed, scales, self.bits, self.kind, self.block)
        parts = numbers.shape[1]
        return (numbers if parts == 1 else numbers.sum(1).mul_(1 / parts)).view(-1)

    def _packed(self, messages: torch.Tensor) -> torch.Tensor:
        """The codes in messages ``[..., bytes]``: a view, ``[..., blocks of a message, bytes of a block]``."""
        width, per = packed_bytes(self.block, self.bits), self._per()
        return messages[..., : per * width].view(*messages.shape[:-1], per, width)

    def _per(self) -> int:
        """Blocks of a message."""
        return self.messages.shape[2] // (packed_bytes(self.block, self.bits) + SCALE.itemsize)

    def _coded(self) -> Coded:
        """Codes and scales of every part, ``[parts, blocks, ...]``."""
        parts = self.messages.transpose(0, 1)
        packed = self._packed(parts)
        scales = scales_in(parts[..., packed.shape[2] * packed.shape[3] :])
        return Coded(packed.flatten(1, 2), scales.flatten(1))


def scales_in(part: torch.Tensor) -> torch.Tensor:
    """Bytes of messages, ``[..., bytes]``, as the scales that they are; copied only where they lie unaligned."""
    if all(at % SCALE.itemsize == 0 for at in (part.storage_offset(), *part.stride()[:-1])):
        return part.view(SCALE)
    copied = part.clone(memory_format=torch.contiguous_format).view(-1).view(SCALE)
    return copied.view(*part.shape[:-1], part.shape[-1] // SCALE.itemsize)


def _message(coded: Coded, shards: int) -> torch.Tensor:
    return torch.cat([coded.packed.view(shards, -1), coded.scales.view(torch.uint8).view(shards, -1)], dim=1)


def padded(x: torch.Tensor, blocks: int, block: int) -> torch.Tensor:
    """Flat x as so many blocks, filled up with zeros: ``[blocks, block]``; a view where none are missing."""
    missing = blocks * block - x.numel()
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x).view(blocks, block)


def _kernels(numbers: torch.Tensor, block: int) -> ModuleType | None:
    """The quantizer's kernels, where they can code these numbers in blocks of so many."""
    if not kernels.usable(numbers.device.type):
        return None
    by = _the_kernels()
    return by if by.fits(numbers.dtype, block) else None


def _the_kernels() -> ModuleType:
    from gravac.compressors.kernels import quantize  # needs triton

    return quantize
