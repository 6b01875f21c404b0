# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goodput's belief about a candidate's statistical efficiency, corrected by switchback trials.

A switchback trial measures progress in the run: steps of a candidate between steps of another, with the loss read
around them.
"""

from collections.abc import Sequence
from functools import lru_cache

from gravac.beliefs import Belief, posterior
from gravac.candidate import Forecast
from gravac.controllers.progress import Learned

SMALLEST_EFFICIENCY = 1e-6
"""Smallest efficiency of a belief, in place of 0: beliefs are about the efficiency's logarithm."""


class _SameForecasts:
    """A run's forecasts as the key of a cache, compared by identity.

    A decision asks for beliefs thousands of times. Hashing some 85 forecasts each time took 0.2 s a decision.
    """

    __slots__ = ("forecasts",)

    def __init__(self, forecasts: Sequence[Forecast]) -> None:
        self.forecasts = forecasts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameForecasts) and other.forecasts is self.forecasts

    def __hash__(self) -> int:
        return id(self.forecasts)


def corrected_belief(
    forecasts: Sequence[Forecast], position: int, efficiency: float, trial_results: Sequence[Learned]
) -> Belief:
    """Return the belief about a candidate's efficiency, corrected by trials of candidates of the same kind of method.

    Args:
        forecasts: forecast of each candidate.
        position: position of the candidate in ``forecasts``.
        efficiency: the candidate's efficiency before the correction: by its measured gain, or as forecast.
        trial_results: results of the run's switchback trials.
    """
    prior = _belief_above_0(forecasts[position].efficiency, forecasts[position].deviation)
    if not trial_results:
        return _belief_above_0(efficiency, prior.deviation)
    corrected_prior = _beliefs_after_trials(_SameForecasts(forecasts), tuple(trial_results))[position]
    return _belief_above_0(
        min(1.0, efficiency * corrected_prior.efficiency / prior.efficiency), corrected_prior.deviation
    )


@lru_cache(maxsize=16)
def _beliefs_after_trials(forecasts_key: _SameForecasts, trial_results: tuple[Learned, ...]) -> tuple[Belief, ...]:
    """Return the beliefs about all candidates after switchback trials; see ``gravac.beliefs.posterior``."""
    return posterior(
        tuple(_belief_above_0(forecast.efficiency, forecast.deviation) for forecast in forecasts_key.forecasts),
        tuple(_method_kind(forecast) for forecast in forecasts_key.forecasts),
        tuple(results.measured_ratio for results in trial_results if results.trials),
    )


def _belief_above_0(efficiency: float, deviation: float) -> Belief:
    """Return a belief whose efficiency is at least ``SMALLEST_EFFICIENCY``, so that its logarithm is finite."""
    return Belief(max(SMALLEST_EFFICIENCY, efficiency), deviation)


def _method_kind(forecast: Forecast) -> str:
    """Return a candidate's kind of method: ``"outer"`` for all outer steps, otherwise the forecast's family."""
    return "outer" if forecast.candidate.mode == "outer" else forecast.family
