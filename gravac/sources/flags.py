# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Flags of all ranks in a few numbers: a sum over the ranks tells how many ranks set each."""

from collections.abc import Sequence

EXACT_BITS = 52
"""Bits of a float64 that sums of counts may use and stay exact."""


def pack(flags: Sequence[bool], world: int) -> list[float]:
    """Return flags as numbers whose sums over the ranks tell how many ranks set each; see ``unpack``.

    Args:
        flags: this rank's.
        world: number of ranks.

    Example:
        >>> unpack([2 * number for number in pack([True, False, True], world=2)], number=3, world=2)
        [2, 0, 2]
    """
    bits = world.bit_length()
    each = EXACT_BITS // bits
    return [
        float(sum(1 << bits * place for place, flag in enumerate(flags[start : start + each]) if flag))
        for start in range(0, len(flags), each)
    ]


def unpack(sums: Sequence[float], number: int, world: int) -> list[int]:
    """Return how many ranks set each flag, of the sums of what ``pack`` returned.

    Args:
        sums: sums over the ranks.
        number: number of flags.
        world: number of ranks.
    """
    bits = world.bit_length()
    each = EXACT_BITS // bits
    mask = (1 << bits) - 1
    return [int(sums[place // each]) >> bits * (place % each) & mask for place in range(number)]
