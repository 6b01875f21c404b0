# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checksum of tensors, by which ranks find out whether their tensors differ in any bit."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

CACHED_BYTES = 1 << 20
"""Number of bytes that a checksum copies and sums at a time: few enough for a processor's cache."""

BLOCK_WORDS = 1 << 12
"""Number of 8-byte integers in a block. A tensor is cut into blocks; the checksum uses a weighted sum of each block."""

MIXING_FACTOR = 0x2545F4914F6CDD1D
"""Odd number by which a checksum multiplies each word, modulo 2^64, to mix the word's bits: the multiplier of the
random number generator xorshift* (Vigna, 2016)."""


def checksum_of(descriptions: Sequence[Any], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a checksum of tensors and of their descriptions: a 0-d int64 tensor on the first device that is no CPU.

    If all tensors are on the CPU, so is the checksum. It is over all bits, shapes and number formats of the tensors,
    but not over their memory order. The host does not wait for a GPU. The function needs a few megabytes of additional
    memory.

    Args:
        descriptions: anything of JSON types, such as the tensors' names.
        tensors: dense tensors of any shapes, on any devices.
    """
    shapes_and_dtypes = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    text = json.dumps([shapes_and_dtypes, descriptions], sort_keys=True)
    text_sum = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
    tensors_by_device: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        tensors_by_device.setdefault(tensor.device, []).append(tensor)
    device = next((device for device in tensors_by_device if device.type != "cpu"), torch.device("cpu"))
    total = torch.full((), text_sum, dtype=torch.int64, device=device)
    for position, (source_device, device_tensors) in enumerate(tensors_by_device.items()):
        device_sum = _word_sum(device_tensors, _checksum_weights(source_device))
        total += device_sum.to(device, non_blocking=True) * (2 * position + 1)
    return total


def _checksum_weights(device: torch.device) -> list[torch.Tensor]:
    """Return six tensors of odd random weights, each ``[BLOCK_WORDS]``, int64; the same on all ranks.

    A checksum sums in levels. The first tensor has the weights for a tensor's 8-byte integers, the second those for the
    sums of blocks of these integers, and so on.
    """
    generator = torch.Generator().manual_seed(0x67726176)
    limit = 1 << 62
    random_integers = torch.randint(
        -limit, limit, (6, BLOCK_WORDS), generator=generator, dtype=torch.int64, device="cpu"
    )
    return [*(random_integers.to(device, non_blocking=True) * 2 + 1)]


def _word_sum(tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a weighted sum of the tensors' 8-byte words, read as integers, modulo 2^64: a 0-d int64 tensor.

    The function sums blocks of words, then blocks of these sums, and so on, until one number is left.

    Args:
        tensors: tensors of any shapes on one device, at least one.
        weights: weights for each level of sums, as ``_checksum_weights`` returns them.
    """
    block_sums = torch.cat([_block_sums(int64_words, weights[0]) for int64_words in _mixed_words(tensors)])
    for level_weights in weights[1:]:
        if block_sums.numel() == 1:
            break
        block_sums = _block_sums(block_sums, level_weights)
    return block_sums.sum()


def _mixed_words(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors' bytes, one tensor after the other, as int64 words with mixed bits, ``CACHED_BYTES`` at a time.

    A yielded tensor is overwritten when the next is yielded.
    """
    buffer = torch.zeros(CACHED_BYTES, dtype=torch.uint8, device=tensors[0].device)
    for pieces in _cut_bytes(tensors, CACHED_BYTES):
        used_bytes = sum(piece.numel() for piece in pieces)
        padded_bytes = -(-used_bytes // 8) * 8
        buffer[used_bytes:padded_bytes] = 0
        torch.cat(pieces, out=buffer[:used_bytes])
        int64_words = buffer[:padded_bytes].view(torch.int64)
        _mix_bits(int64_words)
        yield int64_words


def _cut_bytes(tensors: Iterable[torch.Tensor], chunk_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors' bytes, in order, in lists of flat uint8 pieces of ``chunk_bytes`` together; the last has less.

    If no tensor has an element, yield a list with an empty piece.
    """
    pieces: list[torch.Tensor] = []
    free_bytes = chunk_bytes
    for tensor in tensors:
        tensor_bytes = bytes_of(tensor)
        while tensor_bytes.numel() > free_bytes:
            yield [*pieces, tensor_bytes[:free_bytes]]
            tensor_bytes, pieces, free_bytes = tensor_bytes[free_bytes:], [], chunk_bytes
        pieces.append(tensor_bytes)
        free_bytes -= tensor_bytes.numel()
    if pieces:
        yield pieces


def _mix_bits(int64_words: torch.Tensor) -> None:
    """Mix the bits of each word in place; different words stay different.

    Without mixing, the checksum could miss two float64 numbers that changed places. Numbers with few digits, such as 0
    and 512, differ only in their highest bits. Multiplied by the difference of two weights, modulo 2^64, that
    difference is 0 for about one pair of weights in 250.

    Args:
        int64_words: the 8-byte words of a tensor, int64, flat.
    """
    halves = int64_words.view(torch.int32).view(-1, 2)
    halves[:, 0] ^= halves[:, 1]
    int64_words *= MIXING_FACTOR
    halves[:, 0] ^= halves[:, 1]


def _block_sums(integers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of each block of ``BLOCK_WORDS`` integers, ``[blocks]``, int64, modulo 2^64."""
    blocks = max(1, -(-integers.numel() // BLOCK_WORDS))
    if integers.numel() == blocks * BLOCK_WORDS:
        return (integers.view(blocks, BLOCK_WORDS) * weights).sum(1)
    padded_integers = integers.new_zeros(blocks * BLOCK_WORDS)
    padded_integers[: integers.numel()] = integers
    return (padded_integers.view(blocks, BLOCK_WORDS) * weights).sum(1)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in row-major order: shape ``[bytes]``, uint8; a view if the tensor is contiguous."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
