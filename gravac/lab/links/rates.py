# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts rates of links between text, such as ``100mbit``, and bits per second."""

from __future__ import annotations

import math
import re

BPS_BY_UNIT = {"": 1.0, "bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
"""Bits per second of each unit of a rate."""

LOWEST_RATE_BPS, HIGHEST_RATE_BPS = 64e3, 100e9
"""Lowest and highest rate of a link, bits per second. At the lowest rate, a packet of 1500 bytes takes 0.19 s."""

_RATE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_rate(text: str | float) -> float:
    """Return the bits per second of ``"100mbit"``, ``"1.5 gbit"``, ``"64kbit"``, ``"2e7"`` or a plain number.

    Example:
        >>> parse_rate("100mbit")
        100000000.0

    Raises:
        ValueError: the text is no rate, has an unknown unit, or is out of range; the message has text and remedy.
    """
    match = _RATE.fullmatch(str(text))
    if match is None or match[2].lower() not in BPS_BY_UNIT:
        units = ", ".join(unit for unit in BPS_BY_UNIT if unit)
        raise ValueError(
            f"rate: {text!r} is not a rate; use a number and a unit ({units}), such as 100mbit, or plain bits per "
            "second"
        )
    rate = float(match[1]) * BPS_BY_UNIT[match[2].lower()]
    if not (math.isfinite(rate) and LOWEST_RATE_BPS <= rate <= HIGHEST_RATE_BPS):
        raise ValueError(
            f"rate: {text!r} is {rate:g} bit/s, outside {format_rate(LOWEST_RATE_BPS)} to "
            f"{format_rate(HIGHEST_RATE_BPS)}; use a rate in that range, such as 100mbit"
        )
    return rate


def format_rate(rate: float) -> str:
    """Return the text of a rate, which is given in bits per second, with a unit.

    Example:
        >>> format_rate(1e8)
        '100 Mbit/s'
    """
    for bps_per_unit, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if rate >= bps_per_unit:
            return f"{rate / bps_per_unit:g} {unit}"
    return f"{rate:g} bit/s"
