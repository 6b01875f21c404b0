# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Links of usual rates: which of them the demo emulates on this machine, and what to expect on the others.

Both follow from the seconds that a step computes here, which the demo measures first. ``gravac.costmodel`` predicts the
seconds of a step on a link. The candidates (ways to run steps) and their efficiencies are those from which
``AdaptiveCompressor()`` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gravac.candidate import Forecast
from gravac.compressors import Compressor, ladder
from gravac.costmodel import Format, Machine, Network, Prediction, predict
from gravac.costmodel.step import Shape
from gravac.engine.admission import admit, averager_of, drop_below_efficiency
from gravac.lab.advise import LATENCY
from gravac.lab.advise.verdict import EQUAL_RATIO
from gravac.lab.links.rates import format_rate
from gravac.lab.rounding import describe_number, describe_range, describe_seconds
from gravac.policy import Policy

SLOW_RATES_BPS = (10e6, 20e6, 50e6, 100e6, 200e6)
"""Rates from which the demo chooses its link, bits per second: of DSL, mobile networks and uplinks of homes."""

USUAL_RATES_BPS = (*SLOW_RATES_BPS, 1e9)
"""Rates of which the demo says what to expect, bits per second."""

EXCHANGE_RATIO = 3.0
"""Seconds of float16's exchange / seconds of compute that the demo aims at: the link limits training, as for users."""

BUCKETS = 8
"""Number of buckets in which the lab's training exchanges a model (``gravac.lab.training.methods.bucket_mb``)."""

_FORMATS_BY_CF: dict[float, Format] = {1.0: "float32", 2.0: "float16"}
"""Number format of a dense exchange, by compression factor."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step of the demo computes and exchanges on this machine.

    Attributes:
        shapes: shapes of the model's parameters.
        compute_s: measured seconds of forward, backward and optimizer, without exchange.
        workers: number of ranks.
        copy_bytes_per_s: bytes of a tensor / measured seconds of copying the tensor.
    """

    shapes: tuple[Shape, ...]
    compute_s: float
    workers: int
    copy_bytes_per_s: float

    @property
    def suitable_rate(self) -> float:
        """Rate of ``SLOW_RATES_BPS`` for which ``exchange_ratio`` is nearest to ``EXCHANGE_RATIO``, bits per second."""
        return min(SLOW_RATES_BPS, key=lambda rate: abs(math.log(self.exchange_ratio(rate) / EXCHANGE_RATIO)))

    def exchange_ratio(self, rate: float) -> float:
        """Return predicted seconds of exchanging float16 gradients over a link / measured seconds of compute.

        Args:
            rate: bits per second of each worker's link.
        """
        return self._predict(None, 2.0, rate).exchange_s / self.compute_s

    def describe_choice(self, rate: float, paced: bool, is_given: bool) -> str:
        """Return a line that says which link the demo uses, and why.

        Args:
            rate: bits per second of each worker's link.
            paced: whether gravac sleeps in exchanges to imitate the link.
            is_given: whether the user gave the rate.
        """
        ratio_text = f"float16's exchange takes {describe_number(self.exchange_ratio(rate))} times as long"
        begin = f"A step computes {describe_seconds(self.compute_s)} here; over {format_rate(rate)}"
        if is_given:
            return f"{begin}, the given rate, {ratio_text}."
        return f"{begin} {ratio_text}, so the demo {'imitates' if paced else 'emulates'} {format_rate(rate)}."

    def describe_expectations(self, measured_rate: float) -> list[str]:
        """Return lines that say what to expect on links of ``USUAL_RATES_BPS``.

        Args:
            measured_rate: rate of the demo's own link, which is left out, bits per second.
        """
        heading = (
            f"What to expect on other links, predicted and not measured, if a step computes "
            f"{describe_seconds(self.compute_s)}:"
        )
        forecasts = self._forecasts()
        return [
            heading,
            *(
                f"  {format_rate(rate):>10}: {self._describe_best(forecasts, rate)}"
                for rate in USUAL_RATES_BPS
                if rate != measured_rate
            ),
        ]

    def _describe_best(self, forecasts: Sequence[Forecast], rate: float) -> str:
        """Return a text that names the candidate with the most progress per second, and compares it with float16.

        Candidates are compared as gravac does, by the lower bound of their efficiency / seconds of a step.

        Args:
            forecasts: forecasts of all candidates.
            rate: bits per second of each worker's link.
        """

        def step_seconds(forecast: Forecast) -> float:
            candidate = forecast.candidate
            return self._predict(None if candidate.dense else ladder, candidate.cf, rate).step_s

        def safe_progress(forecast: Forecast) -> float:
            return forecast.least_efficiency / step_seconds(forecast)

        best_dense = max((forecast for forecast in forecasts if forecast.candidate.dense), key=safe_progress)
        best = max(forecasts, key=safe_progress)
        if safe_progress(best) <= EQUAL_RATIO * safe_progress(best_dense):
            return f"dense {_FORMATS_BY_CF[best_dense.candidate.cf]} is best; compression brings nothing"
        speed_up = self._predict(None, 2.0, rate).step_s / step_seconds(best)
        progress_text = describe_range(*(speed_up * efficiency for efficiency in best.belief.band))
        return f"gravac {progress_text} times as fast as float16, with {best.candidate}"

    def _forecasts(self) -> tuple[Forecast, ...]:
        """Return the forecasts of the candidates from which ``AdaptiveCompressor()`` chooses; seconds are not known."""
        policy = Policy(base=ladder)
        averager = averager_of(policy)
        averager.world = self.workers
        forms = [(shape, torch.float32) for shape in self.shapes]
        return drop_below_efficiency(admit(policy, averager, forms), policy).forecasts

    def _predict(self, compressor: Compressor | None, cf: float, rate: float) -> Prediction:
        """Return the predicted times of a step that exchanges gradients over a link.

        Args:
            compressor: compressor of the gradients; ``None``: dense.
            cf: compression factor; if dense, 1 for float32 or 2 for float16.
            rate: bits per second of each worker's link.
        """
        network, machine = Network(LATENCY, rate), Machine(self.copy_bytes_per_s)
        dense = "float32" if compressor is not None else _FORMATS_BY_CF[cf]
        return predict(self.shapes, compressor, cf, self.compute_s, self.workers, network, machine, BUCKETS, dense)
