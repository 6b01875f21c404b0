# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Messages: quantized numbers as ranks send them, the codes of several blocks followed by the blocks' scales.

A message is a flat uint8 tensor: the codes of each block, packed by ``packing.pack``, then a scale per block, in
``SCALE_DTYPE``. On a CPU, ``codebook`` encodes and decodes, on a GPU ``codebook_on_device``. Both decode a message to
the same bits.
"""

from dataclasses import dataclass

import torch

from gravac.compressors import codebook, codebook_on_device
from gravac.compressors.codebook import SCALE_DTYPE, Coded, CodedMean, add_at
from gravac.compressors.levels import LevelKind
from gravac.compressors.packing import packed_bytes


def encode(
    x: torch.Tensor, bits: int, kind: LevelKind, block: int, shards: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize flat x to one message per shard; x is padded with zeros, so that all shards have equally many blocks.

    Args:
        x: numbers to code: float32, flat, contiguous, finite.
        bits: bits per code: 1, 2, 3, 4 or 8.
        kind: ``"fitted"``: levels fitted to a normal distribution; ``"uniform"``: evenly spaced, as always for 8 bits.
        block: numbers per scale, a multiple of 8.
        shards: number of messages; each has the codes of consecutive blocks.

    Returns:
        The messages, uint8, ``[shards, bytes]``, and ``‖x - decoded‖²``, 0-d.
    """
    rows = pad_to_blocks(x, shards * -(-x.numel() // (block * shards)), block)
    coded, error = (codebook if x.device.type == "cpu" else codebook_on_device).encode(rows, bits, kind)
    return _join_message(coded, shards), error


def encode_decoded(x: torch.Tensor, bits: int, kind: LevelKind, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize flat x to a single message; the length of x must be a multiple of ``block``.

    Returns:
        The message, uint8, ``[1, bytes]``, and the decoded numbers: float32, flat, ``[elements]``.
    """
    rows = x.view(-1, block)
    if x.device.type == "cpu":
        decoded_numbers = torch.empty_like(rows)
        coded_rows, _ = codebook.encode(rows, bits, kind, decoded_numbers)
    else:
        coded_rows, decoded_numbers = codebook_on_device.encode_decoded(rows, bits, kind)
    return _join_message(coded_rows, 1), decoded_numbers.view(-1)


@dataclass(frozen=True, slots=True)
class Messages:
    """A flat tensor stored as messages, which are decoded while they are added to another tensor.

    Attributes:
        messages: uint8, ``[shards, parts, bytes]``; the bytes of a message are contiguous. The tensor is the
            concatenation of its shards. A shard is the mean of its decoded parts, which are added in order. If ranks
            are averaged, there is a part from each rank; otherwise one part.
        bits: bits per code, as encoded.
        kind: placement of the levels, as encoded.
        block: numbers per scale, as encoded.
        extra_numbers: ``(position, numbers)``: flat float32 numbers that are added to the decoded numbers, from this
            position of the flat tensor on. ``None``: nothing is added.
    """

    messages: torch.Tensor
    bits: int
    kind: LevelKind
    block: int
    extra_numbers: tuple[int, torch.Tensor] | None = None

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this tensor to ``dense`` (flat), in place; return ``dense``.

        Numbers beyond the end of ``dense`` are ignored.
        """
        if dense.device.type == "cpu":
            return CodedMean(self._coded(), self.bits, self.kind, self.block, self.extra_numbers).add_to(dense, alpha)
        add_at(dense, 0, self._decoded_on_device(), alpha)
        if self.extra_numbers is not None:
            position, numbers = self.extra_numbers
            add_at(dense, position, numbers, alpha)
        return dense

    def decoded(self) -> torch.Tensor:
        """Return the decoded numbers, including the padding, without ``extra_numbers``: float32, flat."""
        if self.messages.device.type != "cpu":
            return self._decoded_on_device()
        block_count = len(self.messages) * self._blocks_per_message()
        dense = self.messages.new_empty(block_count * self.block, dtype=torch.float32)
        codebook.decode_mean(self._coded(), self.bits, self.kind, dense.view(block_count, self.block))
        return dense

    def _decoded_on_device(self) -> torch.Tensor:
        """Return the decoded numbers of all shards, including padding, computed on a GPU: float32, flat."""
        packed = self._packed_codes(self.messages)
        scales = scales_in(self.messages[..., packed.shape[2] * packed.shape[3] :])
        numbers = codebook_on_device.decode(packed, scales, self.bits, self.kind, self.block)
        ranks = numbers.shape[1]
        return (numbers if ranks == 1 else numbers.sum(1).mul_(1 / ranks)).view(-1)

    def _packed_codes(self, messages: torch.Tensor) -> torch.Tensor:
        """Return the codes in messages ``[..., bytes]``, as a view: uint8, ``[..., blocks, bytes of a block]``."""
        block_bytes, block_count = packed_bytes(self.block, self.bits), self._blocks_per_message()
        return messages[..., : block_count * block_bytes].view(*messages.shape[:-1], block_count, block_bytes)

    def _blocks_per_message(self) -> int:
        """Return the number of blocks in a message."""
        return self.messages.shape[2] // (packed_bytes(self.block, self.bits) + SCALE_DTYPE.itemsize)

    def _coded(self) -> Coded:
        """Return all codes and scales: ``[parts, blocks of all shards, ...]``; each rank contributes one part."""
        messages_by_rank = self.messages.transpose(0, 1)
        packed_codes = self._packed_codes(messages_by_rank)
        scales = scales_in(messages_by_rank[..., packed_codes.shape[2] * packed_codes.shape[3] :])
        return Coded(packed_codes.flatten(1, 2), scales.flatten(1))


def scales_in(scale_bytes: torch.Tensor) -> torch.Tensor:
    """Return the scales that are stored in uint8 ``[..., 2 * blocks]``: ``SCALE_DTYPE``, ``[..., blocks]``.

    If the bytes are aligned to the size of a scale, the result is a view of them, otherwise a copy.
    """
    if all(offset % SCALE_DTYPE.itemsize == 0 for offset in (scale_bytes.storage_offset(), *scale_bytes.stride()[:-1])):
        return scale_bytes.view(SCALE_DTYPE)
    copied_scales = scale_bytes.clone(memory_format=torch.contiguous_format).view(-1).view(SCALE_DTYPE)
    return copied_scales.view(*scale_bytes.shape[:-1], scale_bytes.shape[-1] // SCALE_DTYPE.itemsize)


def _join_message(coded: Coded, shards: int) -> torch.Tensor:
    """Concatenate the codes and the scales of each shard's blocks to a message: uint8, ``[shards, bytes]``."""
    return torch.cat([coded.packed.view(shards, -1), coded.scales.view(torch.uint8).view(shards, -1)], dim=1)


def pad_to_blocks(x: torch.Tensor, block_count: int, block: int) -> torch.Tensor:
    """Return flat x padded with zeros to a matrix ``[blocks, block]``; a view of x if no padding is needed."""
    missing_elements = block_count * block - x.numel()
    return (torch.nn.functional.pad(x, (0, missing_elements)) if missing_elements else x).view(block_count, block)
