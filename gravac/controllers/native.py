# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Limits of native steps (DDP exchanges gradients by itself), for controllers that may choose such steps.

``fits_float16`` decides whether DDP may send gradients in float16. ``next_stretch_length`` decides how many successive
native steps gravac times together, as a stretch.
"""

import math

LARGEST_FLOAT16_NORM = 65504 / 128
"""Norm of the gradients of all ranks below which torch's float16 hook may send the gradients: 1/128 of the largest
float16 number. Gradients may grow by that factor in native steps, in which gravac does not measure them."""

LONGEST_STRETCH_STEPS, LONGEST_STRETCH_SECONDS = 400, 4.0
"""Largest number of steps, and largest duration in seconds, of a native stretch: successive native steps that gravac
times together. At the end of a stretch, the controller notices whether the steps took a quarter longer than before.
During a stretch, the ranks tell each other whether a step took more than twice as long; if so, the stretch ends."""


def fits_float16(energy: float) -> bool:
    """True if a measured step shows that gradients are far below the largest float16 number.

    The norm of the gradients of all ranks is an upper bound of the absolute value of each element.

    Args:
        energy: largest ``Measurement.energy`` of the measured steps: squared norm of the gradients (plus residuals)
            over all ranks; 0: no step was measured.

    Example:
        >>> fits_float16(0.0), fits_float16(100.0), fits_float16(1e6)
        (False, True, False)
    """
    return 0 < energy < LARGEST_FLOAT16_NORM**2


def next_stretch_length(previous_steps: int, seconds: float, min_steps: int) -> int:
    """Return the number of native steps to time together next, after a stretch in which the step time did not change.

    A stretch is successive native steps that gravac times together. The next stretch is twice as long as the last, up
    to ``LONGEST_STRETCH_STEPS`` steps or ``LONGEST_STRETCH_SECONDS`` seconds.

    Args:
        previous_steps: number of steps of the stretch that ended.
        seconds: time of a step, in seconds.
        min_steps: smallest number of steps to return.

    Example:
        >>> next_stretch_length(8, 0.02, min_steps=8), next_stretch_length(64, 0.07, min_steps=8)
        (16, 58)
        >>> next_stretch_length(400, 0.001, min_steps=8)
        400
    """
    return max(min_steps, min(LONGEST_STRETCH_STEPS, 2 * previous_steps, math.ceil(LONGEST_STRETCH_SECONDS / seconds)))
