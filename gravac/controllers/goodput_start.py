# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where the search of ``Goodput`` starts: at the candidate that promises most before any step was measured."""

from collections.abc import Sequence

from gravac.candidate import Forecast

CODING_BESIDE_BACKWARD = 2.0
"""Time of coding (encode and decode) while backward runs, with cold caches, over the time of coding alone; roughly."""


def first_position(forecasts: Sequence[Forecast], near: float, link_changed: bool = False) -> int:
    """Return the position of the candidate that a search starts at.

    If the seconds of whole steps were forecast, that is the candidate of best goodput by the forecasts. Otherwise
    it is the candidate near dense's efficiency whose coding and exchange should take least time. Once the link has
    changed, or if these times are not known, it is the candidate near dense's efficiency that sends fewest bytes.

    Args:
        forecasts: forecast of each candidate, dense first.
        near: smallest efficiency, relative to dense, of a candidate near dense's efficiency.
        link_changed: whether the link changed, so that forecasts of seconds no longer hold.
    """
    positions = range(len(forecasts))
    if not link_changed and forecasts[0].step_s is not None:
        return max(positions, key=lambda position: _expected_goodput(forecasts[position]))
    threshold = near * forecasts[0].efficiency
    near_dense = [
        position
        for position, forecast in enumerate(forecasts)
        if forecast.efficiency >= threshold and _may_start(forecast, forecasts[0])
    ]
    added_times = [
        (seconds, position) for position in near_dense if (seconds := added_seconds(forecasts[position])) is not None
    ]
    if link_changed or len(added_times) < len(near_dense):
        return max(near_dense, key=lambda position: forecasts[position].wire_ratio)
    return min(added_times)[1]


def _may_start(forecast: Forecast, dense: Forecast) -> bool:
    """True if a search may start with a candidate.

    A search never starts with native float16. It starts with outer steps only if all candidates are outer steps.

    Args:
        forecast: forecast of the candidate.
        dense: the first forecast: that of the dense candidate.
    """
    candidate = forecast.candidate
    if candidate.mode == "outer":
        return dense.candidate.mode == "outer"
    return candidate.mode == "hook" or candidate.cf == 1


def _expected_goodput(forecast: Forecast) -> float:
    """Return the goodput, in steps per second, that the forecast promises; 0 if the seconds of a step are not known."""
    return forecast.least_efficiency / forecast.step_s if forecast.step_s else 0.0


def added_seconds(forecast: Forecast) -> float | None:
    """Return the seconds that coding and exchange are expected to add to a step; ``None`` if the forecast has no times.

    All of the exchange counts, as if none of it overlapped with backward; so does coding, at its speed beside backward.
    """
    if forecast.coding_s is None or forecast.exchange_s is None:
        return None
    return CODING_BESIDE_BACKWARD * forecast.coding_s + forecast.exchange_s
