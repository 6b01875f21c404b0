# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput's belief about a candidate's statistical efficiency after switchback trials in its run."""

from collections.abc import Sequence
from functools import lru_cache

from gravac.beliefs import Belief, posterior
from gravac.candidate import Forecast
from gravac.controllers.progress import Learned

SMALLEST = 1e-6
"""Smallest efficiency: beliefs are about its logarithm, and a gain of 0 stands for an efficiency of 0."""


class _SameForecasts:
    """A run's forecasts as the key of a cache, compared by identity.

    A decision asks for beliefs thousands of times; with some 85 forecasts to hash each time it took 0.2 s.
    """

    __slots__ = ("forecasts",)

    def __init__(self, forecasts: Sequence[Forecast]) -> None:
        self.forecasts = forecasts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameForecasts) and other.forecasts is self.forecasts

    def __hash__(self) -> int:
        return id(self.forecasts)


def corrected_belief(
    forecasts: Sequence[Forecast], position: int, efficiency: float, learned: Sequence[Learned]
) -> Belief:
    """Return the belief about a candidate, corrected by the run's trials of it and of candidates of its kind.

    Args:
        forecasts: forecast of each candidate.
        position: position of the candidate in ``forecasts``.
        efficiency: the candidate's efficiency before the correction: by its measured gain, or as forecast.
        learned: results of the run's trials.
    """
    prior = _positive(forecasts[position].efficiency, forecasts[position].deviation)
    if not learned:
        return _positive(efficiency, prior.deviation)
    corrected = _after_trials(_SameForecasts(forecasts), tuple(learned))[position]
    return _positive(min(1.0, efficiency * corrected.efficiency / prior.efficiency), corrected.deviation)


@lru_cache(maxsize=16)
def _after_trials(same: _SameForecasts, learned: tuple[Learned, ...]) -> tuple[Belief, ...]:
    """Return the beliefs about all candidates after trials; see ``posterior``."""
    return posterior(
        tuple(_positive(forecast.efficiency, forecast.deviation) for forecast in same.forecasts),
        tuple(_kind(forecast) for forecast in same.forecasts),
        tuple(results.measured_ratio for results in learned if results.trials),
    )


def _positive(efficiency: float, deviation: float) -> Belief:
    """Return a belief whose efficiency is at least ``SMALLEST``, so that its logarithm is finite."""
    return Belief(max(SMALLEST, efficiency), deviation)


def _kind(forecast: Forecast) -> str:
    """Return the kind of method of a candidate: outer steps at any interval share a kind, and so does each family."""
    return "outer" if forecast.candidate.mode == "outer" else forecast.family
