# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What controllers share that may have DDP exchange by itself: when its float16 is safe, and how long stretches are."""

import math

LARGEST = 65504 / 128
"""Bound on the norm of all ranks' gradients under which they are sent by torch's float16 hook: a 128th of the largest
number in float16, as gradients may grow while nobody sees them."""

LONGEST, LOOK_S = 400, 4.0
"""Steps, and seconds, that a native stretch lasts at most: steps that take a quarter longer are noticed no sooner.
Those that take more than twice as long are, by what ranks ask each other within a stretch."""


def fits_float16(energy: float) -> bool:
    """True if gradients are known to be far from too large for float16.

    The norm of all gradients over the ranks bounds each of their numbers.

    Args:
        energy: largest energy of a step that was measured, see ``Measurement``; 0: none was.

    Example:
        >>> fits_float16(0.0), fits_float16(100.0), fits_float16(1e6)
        (False, True, False)
    """
    return 0 < energy < LARGEST**2


def longer(watch: int, seconds: float, least: int) -> int:
    """Return the number of steps of the stretch after one that showed nothing new.

    Args:
        watch: number of steps of that stretch.
        seconds: seconds of a step.
        least: number of steps of the shortest stretch.

    Example:
        >>> longer(8, 0.02, least=8), longer(64, 0.07, least=8), longer(400, 0.001, least=8)
        (16, 58, 400)
    """
    return max(least, min(LONGEST, 2 * watch, math.ceil(LOOK_S / seconds)))
