# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Packs boolean flags into a few floats, whose sums over the ranks give the number of ranks that set each flag."""

from collections.abc import Sequence

EXACT_BITS = 52
"""Number of bits of a float64 that packed counts may use, so that sums over ranks are exact."""


def pack_flags(flags: Sequence[bool], world: int) -> list[float]:
    """Pack this rank's flags into a few floats, to be summed over the ranks and then given to ``unpack_counts``.

    Args:
        flags: this rank's flags, in the same order on every rank.
        world: number of ranks.

    Example:
        >>> unpack_counts([2 * number for number in pack_flags([True, False, True], world=2)], flag_count=3, world=2)
        [2, 0, 2]
    """
    bits_per_count = world.bit_length()
    flags_per_number = EXACT_BITS // bits_per_count
    return [
        float(
            sum(
                1 << bits_per_count * index
                for index, flag in enumerate(flags[first_index : first_index + flags_per_number])
                if flag
            )
        )
        for first_index in range(0, len(flags), flags_per_number)
    ]


def unpack_counts(packed_sums: Sequence[float], flag_count: int, world: int) -> list[int]:
    """Return, for each flag, the number of ranks that set the flag.

    Args:
        packed_sums: sums over the ranks of the floats that ``pack_flags`` returned.
        flag_count: number of flags.
        world: number of ranks.
    """
    bits_per_count = world.bit_length()
    flags_per_number = EXACT_BITS // bits_per_count
    count_mask = (1 << bits_per_count) - 1
    return [
        int(packed_sums[index // flags_per_number]) >> bits_per_count * (index % flags_per_number) & count_mask
        for index in range(flag_count)
    ]
