# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What Goodput believes of a candidate's statistical efficiency once its run has made switchback trials."""

from collections.abc import Sequence

from gravac.beliefs import Belief, posterior
from gravac.candidate import Forecast
from gravac.controllers.progress import Learned

SMALLEST = 1e-6
"""Smallest efficiency: beliefs are about its logarithm, and a gain of 0 stands for an efficiency of 0."""


def corrected_belief(
    forecasts: Sequence[Forecast], position: int, efficiency: float, learned: Sequence[Learned]
) -> Belief:
    """Return the belief about a candidate, corrected by the run's trials of it and of candidates of its kind.

    Args:
        forecasts: what is expected of each candidate.
        position: place of the candidate.
        efficiency: its efficiency before the correction: by its measured gain, or as forecast.
        learned: results of the run's trials.
    """
    before = _positive(forecasts[position].efficiency, forecasts[position].deviation)
    if not learned:
        return _positive(efficiency, before.deviation)
    after = posterior(
        tuple(_positive(forecast.efficiency, forecast.deviation) for forecast in forecasts),
        tuple(_kind(forecast) for forecast in forecasts),
        tuple(results.measured_ratio for results in learned if results.trials),
    )[position]
    return _positive(min(1.0, efficiency * after.efficiency / before.efficiency), after.deviation)


def _positive(efficiency: float, deviation: float) -> Belief:
    return Belief(max(SMALLEST, efficiency), deviation)


def _kind(forecast: Forecast) -> str:
    """Return the kind of method of a candidate: outer steps at any interval are one, and so is each family."""
    return "outer" if forecast.candidate.mode == "outer" else forecast.family
