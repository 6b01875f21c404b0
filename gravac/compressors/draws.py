# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Random numbers by position: the i-th number depends on a key and on i alone, and is the same on every device.

The numbers do not depend on the division of a tensor into pieces, on earlier draws, or on the device. No number is
copied from the host to a device. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, for
counters instead of state. The mixing function is Wellons' ``lowbias32`` (public domain, 2018); half of the key is mixed
in between its two multiplications. Used for rounding, signs and samples of coordinates; not fit for secrets.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch

PIECE = 1 << 17
"""Number of random numbers that are computed at once on a CPU: as many as a cache holds."""

POSITION_FACTOR = 0x9E3779B1
"""Odd number that positions are multiplied with, so that neighbours differ in most bits before they are mixed."""

MIXING_FACTORS = (0x21F0AAAD, 0xD35A2D97)
"""Odd factors of the mixing function, after its first and its second shift."""


class Draws:
    """Random numbers of one key, as flat tensors.

    Args:
        key: any text; equal texts give equal numbers.

    Example:
        >>> draws = Draws("seed 0, tensor w, step 7")
        >>> torch.equal(draws.uniform(1000)[400:], draws.uniform(600, start=400))
        True
    """

    def __init__(self, key: str) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        self.key = (_signed(int.from_bytes(digest[:4], "little")), _signed(int.from_bytes(digest[4:], "little")))

    def random_bits(self, count: int, device: torch.device | str = "cpu", start: int = 0) -> torch.Tensor:
        """Return 32 random bits for each of several positions.

        Args:
            count: number of positions.
            device: device of the result.
            start: the first position; positions repeat after 2³².

        Returns:
            int32, ``[count]``; all int32 numbers are equally likely.
        """
        out = torch.empty(count, dtype=torch.int32, device=device)
        piece = PIECE if out.device.type == "cpu" else max(1, count)
        for begin in range(0, count, piece):
            into = out[begin : begin + piece]
            first = _signed(start + begin)
            # positions, as int32 that wrap around
            torch.arange(len(into), dtype=torch.int32, device=device, out=into).add_(first)
            _mixed(into.mul_(_signed(POSITION_FACTOR)).add_(self.key[0]), self.key[1])
        return out

    def uniform(self, count: int, device: torch.device | str = "cpu", start: int = 0) -> torch.Tensor:
        """Return numbers in [0, 1), float32, ``[count]``: equally likely multiples of 2⁻²⁴; see ``random_bits``."""
        bits = self.random_bits(count, device, start).bitwise_right_shift_(8)
        numbers: torch.Tensor = bits.bitwise_and_(0xFFFFFF).float()
        return numbers.mul_(2.0**-24)

    def signs(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return -1 or 1 for each of ``count`` positions, int32, ``[count]``."""
        return self.random_bits(count, device).bitwise_and_(1).mul_(2).sub_(1)

    def normal(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return numbers of the standard normal law, float32, ``[count]``; equal up to rounding on all devices."""
        radius, angle = self.uniform(2 * count, device).view(2, count).unbind()
        length: torch.Tensor = (1 - radius).log_().mul_(-2).sqrt_()
        return length.mul_(angle.mul_(2 * math.pi).cos_())

    def sample(self, count: int, k: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return k different positions of ``count``, ascending, int64, ``[k]``: every set of k is equally likely.

        If k is much smaller than ``count``, positions are drawn with repetition, and the first k different positions
        are returned. The cost is then proportional to k. Enough are drawn that fewer than k differ only once in 10¹²
        times; the result then repeats a position.
        """
        if 3 * k > count:
            # random bits, then the position, which makes equal bits differ
            positions = torch.arange(count, device=device)
            ranking = self.random_bits(count, device).long().mul_(1 << 31).add_(positions)
        else:
            repeats = -count * math.log1p(-k / max(1, count)) - k
            draw_count = k + math.ceil(repeats + 8 * math.sqrt(repeats)) + 16
            bits = self.random_bits(2 * draw_count, device).view(torch.int64)
            uniform = bits.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).double().mul_(2.0**-53)
            keys = uniform.mul_(count).long().mul_(1 << 31).add_(torch.arange(draw_count, device=device))
            keys = _sorted(keys)
            positions, ranking = keys >> 31, keys.bitwise_and_((1 << 31) - 1)
            ranking[1:].add_(positions[1:] == positions[:-1], alpha=draw_count)
        if ranking.device.type == "cpu":
            return positions[ranking <= int(np.partition(ranking.numpy(), k - 1)[k - 1])] if k else positions[:0]
        selected = ranking <= ranking.kthvalue(max(1, k)).values
        # the j-th selected position goes to slot j, all others to a slot after the last
        slots = torch.where(selected, selected.cumsum(0) - 1, k).clamp_(max=k)
        return positions.new_zeros(k + 1).scatter_(0, slots, positions)[:k]

    def number(self, below: int, position: int) -> int:
        """Return the random number of a position, from 0 to ``below`` - 1, computed on the host."""
        digest = hashlib.blake2b(f"{self.key} {position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % below


def random_bits_by_key(draws: Sequence[Draws], count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return ``Draws.random_bits`` of each of several keys, by few launches: int32, shape ``[draws, count]``."""
    # one launch gives a device as many numbers of the host as there are tensors
    keys = torch.zeros(2, len(draws), 1, dtype=torch.int32, device=device)
    torch._foreach_add_([*keys.flatten().unbind()], [draw.key[half] for half in (0, 1) for draw in draws])
    positions = torch.arange(count, dtype=torch.int32, device=device).mul_(_signed(POSITION_FACTOR))
    return _mixed(positions + keys[0], keys[1])


def _mixed(x: torch.Tensor, key: int | torch.Tensor) -> torch.Tensor:
    """Scramble the bits of each int32 word, in place; different words stay different."""
    _fold(x, 16)
    _fold(x.mul_(_signed(MIXING_FACTORS[0])).bitwise_xor_(key), 15)
    _fold(x.mul_(_signed(MIXING_FACTORS[1])), 15)
    return x


def _sorted(keys: torch.Tensor) -> torch.Tensor:
    """Return integers, ascending; sorted by numpy on CPU, which takes a fraction of the time."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.device.type == "cpu" else keys.sort().values


def _fold(x: torch.Tensor, shift: int) -> None:
    """Compute ``x ^= x >> shift`` of unsigned words, in place."""
    x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _signed(word: int) -> int:
    """Return a word's lowest 32 bits as a signed number."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >= 1 << 31 else word
