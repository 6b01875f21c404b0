# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Random numbers by position: the i-th number depends on a key and on i alone, and is the same on every device.

The numbers depend neither on earlier draws, nor on how many are drawn at once. No number is copied from the host to a
device. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, for counters instead of state.
The mixing function is Wellons' ``lowbias32`` (public domain, 2018); half of the key is mixed in between its two
multiplications. Used for rounding, signs and samples of coordinates; not suitable for cryptography.
"""

import hashlib
import math

import numpy as np
import torch

PIECE_ELEMENTS = 1 << 17
"""Number of random numbers that a CPU computes at a time: few enough to fit in its cache."""

POSITION_FACTOR = 0x9E3779B1
"""Odd factor of positions: after the multiplication, neighbouring positions differ in many bits."""

MIXING_FACTORS = (0x21F0AAAD, 0xD35A2D97)
"""Odd factors by which the mixing function multiplies after its first and its second shift."""


class Draws:
    """Source of random numbers, returned as flat tensors; the number at a position depends on key and position alone.

    Args:
        key: any text; equal texts give equal numbers.

    Example:
        >>> draws = Draws("seed 0, tensor w, step 7")
        >>> torch.equal(draws.uniform(1000)[400:], draws.uniform(600, start=400))
        True
    """

    def __init__(self, key: str) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        self.key = (_as_int32(int.from_bytes(digest[:4], "little")), _as_int32(int.from_bytes(digest[4:], "little")))

    def random_bits(self, count: int, device: torch.device | str = "cpu", start: int = 0) -> torch.Tensor:
        """Return 32 random bits for each of several positions.

        Args:
            count: number of positions.
            device: device of the result.
            start: the first position; numbers repeat after 2³² positions.

        Returns:
            int32, ``[count]``; all int32 numbers are equally likely.
        """
        out = torch.empty(count, dtype=torch.int32, device=device)
        piece_length = PIECE_ELEMENTS if out.device.type == "cpu" else max(1, count)
        for piece_start in range(0, count, piece_length):
            piece_out = out[piece_start : piece_start + piece_length]
            first_position = _as_int32(start + piece_start)
            # positions as int32, which may overflow and wrap around
            torch.arange(len(piece_out), dtype=torch.int32, device=device, out=piece_out).add_(first_position)
            _mix_bits(piece_out.mul_(_as_int32(POSITION_FACTOR)).add_(self.key[0]), self.key[1])
        return out

    def uniform(self, count: int, device: torch.device | str = "cpu", start: int = 0) -> torch.Tensor:
        """Return a uniform random number in [0, 1) for each of ``count`` positions: float32, ``[count]``.

        Numbers are multiples of 2⁻²⁴. ``start`` is the first position.
        """
        bits = self.random_bits(count, device, start).bitwise_right_shift_(8)
        numbers: torch.Tensor = bits.bitwise_and_(0xFFFFFF).float()
        return numbers.mul_(2.0**-24)

    def signs(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return -1 or 1, equally likely, for each of ``count`` positions: int32, ``[count]``."""
        return self.random_bits(count, device).bitwise_and_(1).mul_(2).sub_(1)

    def normal(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return ``count`` random numbers from N(0, 1): float32, ``[count]``; equal up to rounding on all devices."""
        radius_draw, angle_draw = self.uniform(2 * count, device).view(2, count).unbind()
        radius: torch.Tensor = (1 - radius_draw).log_().mul_(-2).sqrt_()
        return radius.mul_(angle_draw.mul_(2 * math.pi).cos_())

    def sample(self, count: int, k: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return k different random positions from 0 to ``count - 1``, ascending: int64, ``[k]``.

        All sets of k positions are equally likely.

        If k is much smaller than ``count``, positions are drawn with repetition, and the first k different positions
        are returned. The cost is then proportional to k. With a probability of 10⁻¹², fewer than k different positions
        are drawn; the result then repeats a position.
        """
        if 3 * k > count:
            # sort positions by random bits; the position in the low bits breaks ties
            positions = torch.arange(count, dtype=torch.int64, device=device)
            ranking = self.random_bits(count, device).long().mul_(1 << 31).add_(positions)
        else:
            expected_repeats = -count * math.log1p(-k / max(1, count)) - k
            draw_count = k + math.ceil(expected_repeats + 8 * math.sqrt(expected_repeats)) + 16
            bits = self.random_bits(2 * draw_count, device).view(torch.int64)
            uniform_numbers = bits.bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1).double().mul_(2.0**-53)
            draw_order = torch.arange(draw_count, dtype=torch.int64, device=device)
            sort_keys = uniform_numbers.mul_(count).long().mul_(1 << 31).add_(draw_order)
            sort_keys = _sort(sort_keys)
            positions, ranking = sort_keys >> 31, sort_keys.bitwise_and_((1 << 31) - 1)
            ranking[1:].add_(positions[1:] == positions[:-1], alpha=draw_count)
        if ranking.device.type == "cpu":
            return positions[ranking <= int(np.partition(ranking.numpy(), k - 1)[k - 1])] if k else positions[:0]
        is_selected = ranking <= ranking.kthvalue(max(1, k)).values
        # write the j-th selected position to index j, and all other positions to index k, which is cut off
        target_indices = torch.where(is_selected, is_selected.cumsum(0) - 1, k).clamp_(max=k)
        return positions.new_zeros(k + 1).scatter_(0, target_indices, positions)[:k]

    def integer_below(self, limit: int, position: int) -> int:
        """Return a random integer from 0 to ``limit - 1``, computed on the host.

        Equal keys and positions give equal integers.
        """
        digest = hashlib.blake2b(f"{self.key} {position}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % limit


def _mix_bits(x: torch.Tensor, key: int) -> torch.Tensor:
    """Mix the bits of each int32 word of x, in place; different words stay different.

    Args:
        x: words of any shape.
        key: half of a key (32 of its 64 bits), which is combined with x between the two multiplications.
    """
    _xor_with_shifted(x, 16)
    _xor_with_shifted(x.mul_(_as_int32(MIXING_FACTORS[0])).bitwise_xor_(key), 15)
    _xor_with_shifted(x.mul_(_as_int32(MIXING_FACTORS[1])), 15)
    return x


def _sort(keys: torch.Tensor) -> torch.Tensor:
    """Return flat integers in ascending order; numpy sorts on a CPU, in a fraction of torch's time."""
    return torch.from_numpy(np.sort(keys.numpy())) if keys.device.type == "cpu" else keys.sort().values


def _xor_with_shifted(x: torch.Tensor, shift: int) -> None:
    """Compute ``x ^= x >> shift`` of int32 words, any shape, as if they were unsigned, in place."""
    x.bitwise_xor_((x >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _as_int32(word: int) -> int:
    """Return the lowest 32 bits of an integer, read as a signed int32."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >= 1 << 31 else word
