# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers as text for readers: two significant digits, since predictions are not more exact, and fitting units."""

from __future__ import annotations

import math

SIGNIFICANT_DIGITS = 2
"""Number of significant digits of a predicted number in texts and tables."""

SHORTEST_SECONDS = 1e-7
"""Time in seconds below which texts say 0: such times are rounding errors of a difference."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
"""Units of time for readers, as pairs ``(seconds of the unit, its name)``, longest first."""


def describe_number(number: float) -> str:
    """Return a number with two significant digits, without an exponent.

    Example:
        >>> [describe_number(number) for number in (65.79, 131.0, 9.96, 1.0, 0.0614, 0.0)]
        ['66', '130', '10', '1.0', '0.061', '0']
    """
    rounded = float(f"{number:.{SIGNIFICANT_DIGITS}g}")
    if rounded == 0 or not math.isfinite(rounded):
        return f"{rounded:g}"
    decimals = SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, decimals)}f}"


def describe_range(number: float, lowest: float, highest: float) -> str:
    """Return a number and its range, each with two significant digits; without the range if all three look equal.

    Args:
        number: expected number.
        lowest: lower bound of the number.
        highest: upper bound of the number.

    Example:
        >>> describe_range(6.13, 5.4, 6.96), describe_range(2.0, 2.0, 2.0)
        ('6.1 (5.4 to 7.0)', '2.0')
    """
    text, lowest_text, highest_text = map(describe_number, (number, lowest, highest))
    return text if lowest_text == text == highest_text else f"{text} ({lowest_text} to {highest_text})"


def describe_seconds(seconds: float) -> str:
    """Return a time with two significant digits, in s, ms or µs; times below 0.1 µs count as 0.

    Example:
        >>> [describe_seconds(seconds) for seconds in (94.27, 1.2345, 0.9996, 0.34, 0.0000123, 1e-17)]
        ['94 s', '1.2 s', '1.0 s', '340 ms', '12 µs', '0 s']
    """
    if seconds < SHORTEST_SECONDS:
        return "0 s"
    rounded = float(f"{seconds:.{SIGNIFICANT_DIGITS}g}")
    unit_s, unit = next((pair for pair in _UNITS if rounded >= pair[0]), _UNITS[-1])
    return f"{describe_number(rounded / unit_s)} {unit}"
