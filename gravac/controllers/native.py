# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Native steps, in which DDP exchanges gradients by itself: when its float16 is safe, and how long stretches last.

For controllers that may choose native candidates.
"""

import math

LARGEST = 65504 / 128
"""Norm of all ranks' gradients below which torch's float16 hook may send them: a 128th of the largest number in
float16, since gradients may grow while nothing observes them."""

LONGEST, LOOK_S = 400, 4.0
"""Largest number of steps, and of seconds, of a native stretch. If steps take a quarter longer, the ranks notice at its
end. If they take more than twice as long, the ranks notice earlier, by numbers that they exchange within a stretch."""


def fits_float16(energy: float) -> bool:
    """True if gradients are known to be far from too large for float16.

    The norm of all gradients over the ranks bounds each of their numbers.

    Args:
        energy: largest energy of a measured step, see ``Measurement``; 0: no step was measured.

    Example:
        >>> fits_float16(0.0), fits_float16(100.0), fits_float16(1e6)
        (False, True, False)
    """
    return 0 < energy < LARGEST**2


def longer(watch: int, seconds: float, minimum: int) -> int:
    """Return the number of steps of the next native stretch, after a stretch that showed no change.

    Args:
        watch: number of steps of the stretch that ended.
        seconds: seconds of a step.
        minimum: number of steps of the shortest stretch.

    Example:
        >>> longer(8, 0.02, minimum=8), longer(64, 0.07, minimum=8), longer(400, 0.001, minimum=8)
        (16, 58, 400)
    """
    return max(minimum, min(LONGEST, 2 * watch, math.ceil(LOOK_S / seconds)))
