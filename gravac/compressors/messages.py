# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Messages: quantized numbers as ranks send them, the codes of several blocks followed by the blocks' scales.

A message is a flat uint8 tensor: the codes of all blocks, then a scale per block, in ``SCALE_DTYPE``; see ``codes``.
"""

from dataclasses import dataclass

import torch

from gravac.compressors.codes import SCALE_DTYPE, Coded, add_mean, bytes_per_block, encode, split
from gravac.compressors.packing import packed_bytes
from gravac.compressors.sparse import Addend


def encode_messages(x: torch.Tensor, bits: int, block: int, shards: int) -> tuple[torch.Tensor, Coded]:
    """Quantize flat x to one message per shard; x counts as padded with zeros to equally many blocks per shard.

    Args:
        x: numbers to code: float32, flat, contiguous, finite.
        bits: bits per code: 1, 2, 4 or 8.
        block: numbers per scale.
        shards: number of messages; each has the codes of consecutive blocks.

    Returns:
        The messages, uint8, ``[shards, bytes]``, and the codes and scales that they consist of.
    """
    message = encode(x, bits, block, shards * -(-x.numel() // (block * shards)))
    coded = split(message, block, bits)
    if shards == 1:
        return message.unsqueeze(0), coded
    codes_and_scales = [coded.packed.view(shards, -1), coded.scales.view(torch.uint8).view(shards, -1)]
    return torch.cat(codes_and_scales, dim=1), coded


@dataclass(frozen=True, slots=True)
class Messages(Addend):
    """A flat tensor stored as messages, which are decoded while they are added to another tensor.

    Attributes:
        messages: uint8, ``[shards, parts, bytes]``; the bytes of a message are contiguous. The tensor is the
            concatenation of its shards. A shard is the mean of its decoded parts, which are added in order. If ranks
            are averaged, there is a part from each rank; otherwise one part.
        bits: bits per code, as encoded.
        block: numbers per scale, as encoded.
        extra_numbers: ``(position, numbers)``: flat float32 numbers that are added to the decoded numbers, from this
            position of the flat tensor on. ``None``: nothing is added.
    """

    messages: torch.Tensor
    bits: int
    block: int
    extra_numbers: tuple[int, torch.Tensor] | None = None

    def add_to(self, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """Add ``alpha`` times this tensor to ``dense`` (flat), in place; return ``dense``.

        Numbers beyond the end of ``dense`` are ignored.
        """
        add_mean(self.parts(), self.bits, self.block, dense, alpha)
        return self._add_extra_numbers(dense, alpha)

    def write_to(self, dense: torch.Tensor) -> torch.Tensor:
        """Overwrite ``dense`` (flat) with this tensor; return ``dense``. Numbers beyond its end are ignored."""
        add_mean(self.parts(), self.bits, self.block, dense, alpha=None)
        return self._add_extra_numbers(dense, alpha=1.0)

    def decoded(self) -> torch.Tensor:
        """Return the decoded numbers, including the padding: float32, flat."""
        shards, _, message_bytes = self.messages.shape
        elements = shards * message_bytes // bytes_per_block(self.block, self.bits) * self.block
        return self.write_to(self.messages.new_empty(elements, dtype=torch.float32))

    def _add_extra_numbers(self, dense: torch.Tensor, alpha: float) -> torch.Tensor:
        if self.extra_numbers is not None:
            position, numbers = self.extra_numbers
            target = dense[position : position + numbers.numel()]
            target.add_(numbers[: target.numel()], alpha=alpha)
        return dense

    def parts(self) -> list[Coded]:
        """Return the codes and scales of each part, of the blocks of all shards."""
        message_bytes = self.messages.shape[2]
        block_count = message_bytes // bytes_per_block(self.block, self.bits)
        code_bytes = block_count * packed_bytes(self.block, self.bits)
        return [
            Coded(_aligned(part[:, :code_bytes]), _aligned(part[:, code_bytes:]).view(SCALE_DTYPE))
            for part in self.messages.unbind(1)
        ]


def _aligned(rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of ``rows`` (uint8), flat, aligned to 2 bytes: a view if they are contiguous and aligned."""
    flat = rows.reshape(-1)
    return flat if flat.storage_offset() % 2 == 0 else flat.clone()
