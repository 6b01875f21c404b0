# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Packs flags into a few numbers, whose sums over the ranks count the ranks that set each flag."""

from collections.abc import Sequence

EXACT_BITS = 52
"""Number of bits of a float64 that packed counts may use, so that sums are exact."""


def pack(flags: Sequence[bool], world: int) -> list[float]:
    """Return flags as numbers to sum over the ranks; see ``unpack``.

    Args:
        flags: this rank's flags.
        world: number of ranks.

    Example:
        >>> unpack([2 * number for number in pack([True, False, True], world=2)], number=3, world=2)
        [2, 0, 2]
    """
    bits = world.bit_length()
    flags_per_number = EXACT_BITS // bits
    return [
        float(sum(1 << bits * n for n, flag in enumerate(flags[start : start + flags_per_number]) if flag))
        for start in range(0, len(flags), flags_per_number)
    ]


def unpack(sums: Sequence[float], number: int, world: int) -> list[int]:
    """Return the number of ranks that set each flag, from sums over the ranks.

    Args:
        sums: sums over the ranks of the numbers that ``pack`` returned.
        number: number of flags.
        world: number of ranks.
    """
    bits = world.bit_length()
    flags_per_number = EXACT_BITS // bits
    mask = (1 << bits) - 1
    return [int(sums[n // flags_per_number]) >> bits * (n % flags_per_number) & mask for n in range(number)]
