# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Limits of native steps, in which DDP exchanges gradients by itself, for controllers that may choose such steps.

Functions say whether gradients may be sent in float16, and how many successive native steps gravac times together (a
stretch).
"""

import math

LARGEST_FLOAT16_NORM = 65504 / 128
"""Norm of all ranks' gradients below which torch's float16 hook may send the gradients: a 128th of the largest float16
number, since gradients may grow while gravac does not observe them."""

LONGEST_STRETCH_STEPS, LONGEST_STRETCH_SECONDS = 400, 4.0
"""Largest number of steps, and of seconds, of a native stretch (steps that gravac times together). The ranks notice at
the end of a stretch if its steps took a quarter longer than before. If steps take more than twice as long, the ranks
notice earlier, by numbers that they exchange within a stretch."""


def fits_float16(energy: float) -> bool:
    """True if gradients are known to be far below the largest float16 number.

    The norm of all gradients over the ranks bounds the absolute value of each element.

    Args:
        energy: largest energy of a measured step, see ``Measurement``; 0: no step was measured.

    Example:
        >>> fits_float16(0.0), fits_float16(100.0), fits_float16(1e6)
        (False, True, False)
    """
    return 0 < energy < LARGEST_FLOAT16_NORM**2


def next_stretch_length(watch: int, seconds: float, minimum: int) -> int:
    """Return the number of steps of the next native stretch, after a stretch in which the step time did not change.

    Args:
        watch: number of steps of the stretch that ended.
        seconds: time of a step, in seconds.
        minimum: number of steps of the shortest stretch.

    Example:
        >>> next_stretch_length(8, 0.02, minimum=8), next_stretch_length(64, 0.07, minimum=8)
        (16, 58)
        >>> next_stretch_length(400, 0.001, minimum=8)
        400
    """
    return max(minimum, min(LONGEST_STRETCH_STEPS, 2 * watch, math.ceil(LONGEST_STRETCH_SECONDS / seconds)))
