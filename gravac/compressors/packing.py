# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Packs codes of 1, 2, 4 or 8 bits into bytes, the first code in the lowest bits, and unpacks them.

On a CPU, ``pack`` works on machine words of several bytes, since strided access to single bytes is many times slower;
``unpack`` looks up all codes of a byte at once. On other devices, ``pack`` adds shifted neighbours, and ``unpack``
shifts bits.
"""

import functools

import numpy as np
import torch

SUPPORTED_BITS = (1, 2, 4, 8)
"""Supported numbers of bits per code, ascending."""


def packed_bytes(code_count: int, bits: int) -> int:
    """Return the number of bytes that ``code_count`` codes of ``bits`` bits take."""
    return -(-code_count * bits // 8)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes along the last dimension.

    Args:
        codes: integers from 0 to ``2 ** bits - 1``: uint8, shape ``[..., n]``.
        bits: bits per code, one of ``SUPPORTED_BITS``.

    Returns:
        The packed codes: uint8, shape ``[..., packed_bytes(n, bits)]``.
    """
    if bits == 8:
        return codes
    if codes.device.type != "cpu":
        packed_codes = codes.new_empty(*codes.shape[:-1], packed_bytes(codes.shape[-1], bits))
        pack_into(packed_codes, codes, bits)
        return packed_codes
    codes_per_byte = 8 // bits
    padding = -codes.shape[-1] % codes_per_byte
    if padding:
        codes = torch.nn.functional.pad(codes, (0, padding))
    machine_words = codes.reshape(-1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[codes_per_byte])
    shift = 8 - bits
    gap = codes_per_byte // 2
    while gap:
        # join neighbours, then pairs of neighbours, until the lowest byte of a machine word has all codes of the word
        machine_words = machine_words | (machine_words >> (shift * gap))
        gap //= 2
    return machine_words.to(torch.uint8).view(*codes.shape[:-1], codes.shape[-1] // codes_per_byte)


def pack_into(packed: torch.Tensor, codes: torch.Tensor, bits: int) -> None:
    """Pack codes along the last dimension into ``packed``, by adding shifted neighbours until they fill bytes.

    Args:
        packed: memory for the packed codes: uint8, shape ``[..., packed_bytes(n, bits)]``; overwritten.
        codes: integers from 0 to ``2 ** bits - 1``: uint8 or int32, shape ``[..., n]``.
        bits: bits per code: 1, 2 or 4.
    """
    padding = -codes.shape[-1] % (8 // bits)
    if padding:
        codes = torch.nn.functional.pad(codes, (0, padding))
    while bits < 8:
        even_codes, odd_codes = codes[..., ::2], codes[..., 1::2]
        target = packed if bits == 4 else torch.empty(even_codes.shape, dtype=torch.uint8, device=codes.device)
        codes = torch.add(even_codes, odd_codes, alpha=1 << bits, out=target)
        bits *= 2


def unpack(packed: torch.Tensor, bits: int, code_count: int) -> torch.Tensor:
    """Unpack codes, as the inverse of ``pack``.

    Args:
        packed: packed codes: uint8, ``[..., packed_bytes(codes, bits)]``.
        bits: bits per code, one of ``SUPPORTED_BITS``.
        code_count: number of codes in each row.

    Returns:
        uint8, shape ``[..., codes]``.
    """
    if bits == 8:
        return packed
    if packed.device.type != "cpu":
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
        codes_by_byte = (packed.unsqueeze(-1) >> shifts).bitwise_and_((1 << bits) - 1)
        return codes_by_byte.flatten(-2)[..., :code_count]
    machine_words = np.take(_codes_by_byte(bits).numpy().view(f"u{8 // bits}").reshape(-1), packed.numpy(), mode="clip")
    return torch.from_numpy(machine_words.view(np.uint8))[..., :code_count]


@functools.cache
def _codes_by_byte(bits: int) -> torch.Tensor:
    """Return a table of the codes that each byte contains: uint8, ``[256, 8 // bits]``."""
    all_bytes = torch.arange(256, dtype=torch.int64, device="cpu").unsqueeze(1)
    shifts = torch.arange(0, 8, bits, dtype=torch.int64, device="cpu")
    return ((all_bytes >> shifts) & ((1 << bits) - 1)).to(torch.uint8)
