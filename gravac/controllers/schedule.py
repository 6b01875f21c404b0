# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which CFs are worth trying: the paper's two spacings, and fitting them to what a compressor can do.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section IV-B.
"""

import math
from collections.abc import Sequence

from gravac.candidate import Span


def exponential(cf_range: tuple[float, float]) -> tuple[float, ...]:
    """Return the lowest CF times 1, 2, 4, 16, 256 ..., the last clamped to the highest.

    Example:
        >>> exponential((10, 1000))
        (10, 20.0, 40.0, 160.0, 1000)
    """
    low, high = cf_range
    cfs, factor = [low], 2.0
    while low * factor < high:
        cfs.append(low * factor)
        factor *= factor
    return (*cfs, high) if high > cfs[-1] else tuple(cfs)


def geometric(cf_range: tuple[float, float], ratio: float = 2.0) -> tuple[float, ...]:
    """Return the lowest CF times 1, 2, 4, 8 ..., or powers of another ratio; the last is clamped to the highest.

    Example:
        >>> geometric((10, 100))
        (10, 20.0, 40.0, 80.0, 100)
    """
    low, high = cf_range
    cfs = [low]
    while cfs[-1] * ratio < high:
        cfs.append(cfs[-1] * ratio)
    return (*cfs, high) if high > cfs[-1] else tuple(cfs)


def snap(wanted: Sequence[float], reach: Span | Sequence[float]) -> tuple[float, ...]:
    """Return the CFs nearest to the wanted ones, by ratio, that a compressor can do: ascending, without repetition.

    Example:
        >>> snap((10, 20, 40), [4, 16, 32])
        (16, 32)
        >>> snap((10, 20, 40), Span(16, 100))
        (20, 40)
    """
    if isinstance(reach, Span):
        return tuple(sorted({cf for cf in wanted if reach.low <= cf <= reach.high}))
    if not reach:
        return ()
    return tuple(sorted({min(reach, key=lambda cf: abs(math.log(cf / want))) for want in wanted}))
