# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lists compression factors (CFs) for a controller to try, in the GraVAC paper's two spacings.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section IV-B.
"""

import math
from collections.abc import Sequence

from gravac.candidate import Span


def exponential(cf_range: tuple[float, float]) -> tuple[float, ...]:
    """Return the CFs of a range that are 1, 2, 4, 16, 256 ... times its lowest CF, and its highest CF; ascending.

    From 2 on, each of these factors is the square of the previous factor.

    Args:
        cf_range: lowest and highest CF.

    Example:
        >>> exponential((10, 1000))
        (10, 20.0, 40.0, 160.0, 1000)
    """
    lowest_cf, highest_cf = cf_range
    cfs, multiple = [lowest_cf], 2.0
    while lowest_cf * multiple < highest_cf:
        cfs.append(lowest_cf * multiple)
        multiple *= multiple
    return (*cfs, highest_cf) if highest_cf > cfs[-1] else tuple(cfs)


def geometric(cf_range: tuple[float, float], ratio: float = 2.0) -> tuple[float, ...]:
    """Return the CFs of a range that are 1, ``ratio``, ``ratio**2`` ... times its lowest CF, and its highest CF.

    The CFs are ascending.

    Args:
        cf_range: lowest and highest CF.
        ratio: ratio of successive CFs; above 1.

    Example:
        >>> geometric((10, 100))
        (10, 20.0, 40.0, 80.0, 100)
    """
    lowest_cf, highest_cf = cf_range
    cfs = [lowest_cf]
    while cfs[-1] * ratio < highest_cf:
        cfs.append(cfs[-1] * ratio)
    return (*cfs, highest_cf) if highest_cf > cfs[-1] else tuple(cfs)


def snap(target_cfs: Sequence[float], supported_cfs: Span | Sequence[float]) -> tuple[float, ...]:
    """Return the nearest supported CF (by ratio) of each target CF: ascending, without repetition.

    Args:
        target_cfs: CFs that a controller would like to choose from.
        supported_cfs: CFs that the compressor supports: a list, or a ``Span``, which supports all CFs from its lowest
            to its highest. Target CFs outside a span are dropped.

    Example:
        >>> snap((10, 20, 40), [4, 16, 32])
        (16, 32)
        >>> snap((10, 20, 40), Span(16, 100))
        (20, 40)
    """
    if isinstance(supported_cfs, Span):
        return tuple(sorted({cf for cf in target_cfs if supported_cfs.low <= cf <= supported_cfs.high}))
    if not supported_cfs:
        return ()
    return tuple(sorted({min(supported_cfs, key=lambda cf: abs(math.log(cf / target_cf))) for target_cf in target_cfs}))
