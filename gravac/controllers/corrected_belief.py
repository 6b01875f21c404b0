# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Corrects beliefs about candidates' statistical efficiencies by switchback trials, for the controller ``Goodput``.

A switchback trial measures the progress of a candidate's steps while the run trains. The candidate's steps run between
steps of another candidate, in which the loss is read.
"""

from collections.abc import Sequence
from functools import lru_cache

from gravac.beliefs import Belief, MeasuredRatio, posterior
from gravac.candidate import Forecast
from gravac.controllers.progress import TrialResults

SMALLEST_EFFICIENCY = 1e-6
"""Efficiency that replaces smaller efficiencies, such as 0, in beliefs, which need the efficiency's logarithm."""


class _ForecastsKey:
    """Cache key for the forecasts of a run; equal only for the same sequence object.

    A decision looks up beliefs thousands of times. Hashing the contents of some 85 forecasts each time took 0.2 seconds
    per decision.
    """

    __slots__ = ("forecasts",)

    def __init__(self, forecasts: Sequence[Forecast]) -> None:
        self.forecasts = forecasts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ForecastsKey) and other.forecasts is self.forecasts

    def __hash__(self) -> int:
        return id(self.forecasts)


def corrected_belief(
    forecasts: Sequence[Forecast], position: int, efficiency: float, trial_results: Sequence[TrialResults]
) -> Belief:
    """Return the belief about a candidate's statistical efficiency, corrected by the run's switchback trials.

    Trials of the candidate, and of candidates of the same kind of method, change the belief.

    Args:
        forecasts: forecast of each candidate.
        position: index of the candidate in ``forecasts``.
        efficiency: median of the candidate's efficiency before the correction: from its measured gain, or the forecast.
        trial_results: results of the run's switchback trials; empty: no correction.
    """
    prior = _belief_above_0(forecasts[position].efficiency, forecasts[position].deviation)
    if not trial_results:
        return _belief_above_0(efficiency, prior.deviation)
    corrected_prior = _beliefs_after_trials(_ForecastsKey(forecasts), tuple(trial_results))[position]
    return _belief_above_0(
        min(1.0, efficiency * corrected_prior.efficiency / prior.efficiency), corrected_prior.deviation
    )


@lru_cache(maxsize=16)
def _beliefs_after_trials(forecasts_key: _ForecastsKey, trial_results: tuple[TrialResults, ...]) -> tuple[Belief, ...]:
    """Return the beliefs about all candidates, in the order of the forecasts, after switchback trials.

    ``gravac.beliefs.posterior`` explains the correction.
    """
    return posterior(
        tuple(_belief_above_0(forecast.efficiency, forecast.deviation) for forecast in forecasts_key.forecasts),
        tuple(_method_kind(forecast) for forecast in forecasts_key.forecasts),
        tuple(
            _possible_ratio(results.measured_ratio, forecasts_key.forecasts)
            for results in trial_results
            if results.trials
        ),
    )


def _possible_ratio(measured: MeasuredRatio, forecasts: Sequence[Forecast]) -> MeasuredRatio:
    """Return the ratio that a trial measured, lowered if it exceeds what a dense step can reach.

    A step cannot make more progress than a dense step. Where the loss hardly falls, a trial may still measure 5 times
    that progress. Without the limit, such a trial would also raise the beliefs about all candidates of the same kind.

    Args:
        measured: measured ratio of efficiencies. Only the ratio is limited; its standard error stays the same.
        forecasts: forecast of each candidate.
    """
    reference = _belief_above_0(forecasts[measured.reference].efficiency, 0.0)
    return measured._replace(ratio=min(measured.ratio, 1 / min(1.0, reference.efficiency)))


def _belief_above_0(efficiency: float, deviation: float) -> Belief:
    """Return a belief whose median efficiency is above 0, so that its logarithm is finite.

    Args:
        efficiency: median of the efficiency; ``SMALLEST_EFFICIENCY`` is used if larger.
        deviation: standard deviation of the efficiency's natural logarithm.
    """
    return Belief(max(SMALLEST_EFFICIENCY, efficiency), deviation)


def _method_kind(forecast: Forecast) -> str:
    """Return the kind of method of a candidate; trials of one candidate correct the beliefs about others of its kind.

    The kind is ``"outer"`` for all outer steps, and otherwise the family of compressors (``Forecast.family``).
    """
    return "outer" if forecast.candidate.mode == "outer" else forecast.family
