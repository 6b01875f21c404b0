# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Types of the numbers in a saved state, with their ranges, which are checked when a state is loaded."""

import math
from typing import Annotated

from pydantic import AfterValidator, Field

LARGEST_COUNT = 2**53
"""Largest count that a state may have: a float represents every integer up to this number exactly."""

LARGEST_SUM_OF_SQUARES = 1e300
"""Largest finite sum of squares that a state may have; a few such sums can be added without overflow."""


def _check_sum_of_squares(number: float) -> float:
    """Return a sum of squares unchanged; raise ``ValueError`` if the number is negative, or finite and too large."""
    if number < 0 or LARGEST_SUM_OF_SQUARES < number < math.inf:
        raise ValueError(f"it should be a sum of squares, from 0 to {LARGEST_SUM_OF_SQUARES:g}")
    return number


Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Factor = Annotated[float, Field(gt=0, le=LARGEST_SUM_OF_SQUARES)]
"""Type of a compression factor."""
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
SumOfSquares = Annotated[float, AfterValidator(_check_sum_of_squares)]
