# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Random numbers by position: the i-th depends on a key and on i alone, and is the same on every device.

So what is drawn does not depend on how a tensor is cut into pieces, on what was drawn before, or on where it lies, and
no number is carried from the host to a device. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011, for counters in place of state; the mixing function is Wellons' ``lowbias32`` (public domain, 2018), into whose
middle half of the key is mixed. For rounding, signs and choices of coordinates; not for secrets.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch

PIECE = 1 << 17
"""Numbers mixed at once on a CPU: what fits in a cache."""

SPREAD = 0x9E3779B1
"""Odd number that positions are multiplied with, so that neighbours differ in most bits before they are mixed."""

FACTORS = (0x21F0AAAD, 0xD35A2D97)
"""Odd factors of the mixing function, after its first and its second shift."""


class Draws:
    """Random numbers of one key, as flat tensors.

    Args:
        key: any text; the same text, the same numbers.

    Example:
        >>> draws = Draws("seed 0, tensor w, step 7")
        >>> torch.equal(draws.uniform(1000)[400:], draws.uniform(600, start=400))
        True
    """

    def __init__(self, key: str) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        self.key = (_signed(int.from_bytes(digest[:4], "little")), _signed(int.from_bytes(digest[4:], "little")))

    def words(self, count: int, device: torch.device | str = "cpu", start: int = 0) -> torch.Tensor:
        """Return 32 random bits for each of some positions.

        Args:
            count: number of positions.
            device: where the numbers are made.
            start: the first position; positions repeat after 2³².

        Returns:
            int32, ``[count]``: every value is as likely as any other.
        """
        out = torch.empty(count, dtype=torch.int32, device=device)
        piece = PIECE if out.device.type == "cpu" else max(1, count)
        for begin in range(0, count, piece):
            into = out[begin : begin + piece]
            first = _signed(start + begin)
            # positions, as int32 that wrap around
            torch.arange(len(into), dtype=torch.int32, device=device, out=into).add_(first)
            _mixed(into.mul_(_signed(SPREAD)).add_(self.key[0]), self.key[1])
        return out

    def uniform(self, count: int, device: torch.device | str = "cpu", start: int = 0) -> torch.Tensor:
        """Return numbers in [0, 1), float32, ``[count]``: multiples of 2⁻²⁴, all as likely; see ``words``."""
        words = self.words(count, device, start).bitwise_right_shift_(8)
        numbers: torch.Tensor = words.bitwise_and_(0xFFFFFF).float()
        return numbers.mul_(2.0**-24)

    def signs(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return -1 or 1 for each of ``count`` positions, int32, ``[count]``."""
        return self.words(count, device).bitwise_and_(1).mul_(2).sub_(1)

    def normal(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return numbers of the standard normal law, float32, ``[count]``; alike to rounding on all devices."""
        radius, turn = self.uniform(2 * count, device).view(2, count).unbind()
        length: torch.Tensor = (1 - radius).log_().mul_(-2).sqrt_()
        return length.mul_(turn.mul_(2 * math.pi).cos_())

    def chosen(self, count: int, k: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return k different positions of ``count``, ascending, int64, ``[k]``: every set of k is as likely.

        Few of many are the first k that differ of some drawn with repetition, which costs as much as k does. Enough are
        drawn that fewer than k differ once in 10¹² times or less; then a position is repeated.
        """
        if 3 * k > count:
            # two positions that draw the same word are told apart by where they are
            positions = torch.arange(count, device=device)
            turns = self.words(count, device).long().mul_(1 << 31).add_(positions)
        else:
            again = -count * math.log1p(-k / max(1, count)) - k
            drawn = k + math.ceil(again + 8 * math.sqrt(again)) + 16
            words = self.words(2 * drawn, device).view(torch.int64)
            shares = words.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).double().mul_(2.0**-53)
            keys = shares.mul_(count).long().mul_(1 << 31).add_(torch.arange(drawn, device=device))
            keys = _sorted(keys)
            positions, turns = keys >> 31, keys.bitwise_and_((1 << 31) - 1)
            turns[1:].add_(positions[1:] == positions[:-1], alpha=drawn)
        if turns.device.type == "cpu":
            return positions[turns <= int(np.partition(turns.numpy(), k - 1)[k - 1])] if k else positions[:0]
        kept = turns <= turns.kthvalue(max(1, k)).values
        # the j-th that is kept goes to place j, all others behind the last
        places = torch.where(kept, kept.cumsum(0) - 1, k).clamp_(max=k)
        return positions.new_zeros(k + 1).scatter_(0, places, positions)[:k]

    def number(self, below: int, position: int) -> int:
        """Return a number from 0 to ``below`` - 1 that the host knows; another one for each position."""
        digest = hashlib.blake2b(f"{self.key} {position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % below


def words_each(draws: Sequence[Draws], count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return what ``Draws.words`` gives by each of several keys, by few launches: int32, ``[len(draws), count]``."""
    # numbers that the host knows reach a device with a launch, where there are as many tensors
    keys = torch.zeros(2, len(draws), 1, dtype=torch.int32, device=device)
    torch._foreach_add_([*keys.flatten().unbind()], [one.key[which] for which in (0, 1) for one in draws])
    positions = torch.arange(count, dtype=torch.int32, device=device).mul_(_signed(SPREAD))
    return _mixed(positions + keys[0], keys[1])


def _mixed(x: torch.Tensor, key: int | torch.Tensor) -> torch.Tensor:
    """Mix the bits of int32 words, in place: one to one."""
    _fold(x, 16)
    _fold(x.mul_(_signed(FACTORS[0])).bitwise_xor_(key), 15)
    _fold(x.mul_(_signed(FACTORS[1])), 15)
    return x


def _sorted(keys: torch.Tensor) -> torch.Tensor:
    """Integers, ascending: by numpy on CPU, which takes a fraction of the time."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.device.type == "cpu" else keys.sort().values


def _fold(x: torch.Tensor, shift: int) -> None:
    """``x ^= x >> shift`` of words without a sign, in place."""
    x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _signed(word: int) -> int:
    """The int32 with a word's lowest 32 bits."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >= 1 << 31 else word
