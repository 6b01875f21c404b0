# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Selects the candidate at which the search of ``Goodput`` starts, by the forecasts."""

from collections.abc import Sequence

from gravac.candidate import Forecast

CODING_SLOWDOWN_DURING_BACKWARD = 2.0
"""Rough ratio: time of coding (encode and decode) while backward runs, with cold caches / time of coding alone."""


def first_position(forecasts: Sequence[Forecast], min_efficiency_ratio: float, link_changed: bool = False) -> int:
    """Return the index, in ``forecasts``, of the candidate at which a search starts.

    - If the times of whole steps were forecast, and the link has not changed since: the candidate of best goodput
      (steps per second times efficiency).
    - Otherwise one of the candidates whose efficiency is near dense. If the times of coding and exchange were forecast
      for each of them, and the link has not changed since: the candidate for which these take least time. If not: the
      candidate that sends fewest bytes.

    Args:
        forecasts: forecast of each candidate, dense first.
        min_efficiency_ratio: smallest ratio to dense's efficiency at which an efficiency counts as near dense; in
            (0, 1].
        link_changed: whether the link has changed, so that forecasts of seconds no longer hold.
    """
    positions = range(len(forecasts))
    if not link_changed and forecasts[0].step_s is not None:
        return max(positions, key=lambda position: _expected_goodput(forecasts[position]))
    efficiency_threshold = min_efficiency_ratio * forecasts[0].efficiency
    near_dense_positions = [
        position
        for position, forecast in enumerate(forecasts)
        if forecast.efficiency >= efficiency_threshold and _search_may_start(forecast, forecasts[0])
    ]
    seconds_and_positions = [
        (seconds, position)
        for position in near_dense_positions
        if (seconds := added_seconds(forecasts[position])) is not None
    ]
    if link_changed or len(seconds_and_positions) < len(near_dense_positions):
        return max(near_dense_positions, key=lambda position: forecasts[position].wire_ratio)
    return min(seconds_and_positions)[1]


def _search_may_start(forecast: Forecast, dense_forecast: Forecast) -> bool:
    """True if a search may start with a candidate.

    A search never starts with native float16 (DDP exchanges in float16 by itself). A search starts with outer steps
    only if all candidates make outer steps.

    Args:
        forecast: forecast of the candidate.
        dense_forecast: forecast of the dense candidate. If it makes outer steps, all candidates do.
    """
    candidate = forecast.candidate
    if candidate.mode == "outer":
        return dense_forecast.candidate.mode == "outer"
    return candidate.mode == "hook" or candidate.cf == 1


def _expected_goodput(forecast: Forecast) -> float:
    """Return the forecast goodput in steps per second: lower bound of efficiency / step time; 0 without a step time."""
    return forecast.least_efficiency / forecast.step_s if forecast.step_s else 0.0


def added_seconds(forecast: Forecast) -> float | None:
    """Return the seconds that coding and exchange are forecast to add to a step; ``None`` if these are not known.

    The sum counts the whole exchange, as if backward hid none of it. It counts coding at its speed while backward runs.
    """
    if forecast.coding_s is None or forecast.exchange_s is None:
        return None
    return CODING_SLOWDOWN_DURING_BACKWARD * forecast.coding_s + forecast.exchange_s
