# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step is worth where ranks exchange every so many, relative to one of dense gradient averaging."""

import math
from collections.abc import Mapping

from gravac.candidate import Forecast
from gravac.compressors.profile import MEASURED_WORLD, EfficiencyPoints, efficiency_at, power_at

DENSE: Mapping[int, EfficiencyPoints] = {
    2: ((1, 0.98), (2, 1.0), (5, 1.0), (10, 0.99), (20, 0.88), (50, 0.80), (100, 0.71)),
    4: ((2, 0.94), (5, 0.91), (10, 0.82), (20, 0.74), (50, 0.63)),
    8: ((2, 0.91), (5, 0.84), (10, 0.74), (20, 0.64)),
}
"""Efficiency by number of steps from one exchange to the next, by number of ranks, of dense exchanges, with
``OuterSGD``. Geometric means: of two ranks over three tasks and seeds (``docs/measurements/outer_efficiency.json``), of
more over the two tasks on text, one seed (``outer_ranks.json`` there). The more ranks, the less noise gradient
averaging has, and the more is lost apart. Those of two ranks and H <= 20 were measured at another outer rate than
``OuterSGD``'s 1: at 0.7 up to H = 10, at 0.85 at H = 20."""

BEHIND: EfficiencyPoints = ((1, 1.0), (3, 0.98), (6, 0.94), (11, 0.89), (26, 0.78))
"""Efficiency by one more than the number of steps behind which an exchange travels, relative to waiting for it: put
by ``docs/measurements/outer_delays.json``, which has but a bound of one task at the last."""


DOUBT, SHORT_DOUBT, SHORT = 0.6, 0.7, 5
"""Factors in the efficiency of outer steps where the ranks could also exchange in each step, the second at no more than
``SHORT`` steps from one exchange to the next. Beliefs come from three small tasks, and were wrong on nanoGPT
(``docs/outer.md``): as long as nothing measures progress, outer steps must win even if one of theirs makes so much
less of it."""


def doubt(every: int) -> float:
    """Return the factor in the efficiency of outer steps beside candidates that exchange in each step.

    Example:
        >>> doubt(5), doubt(10)
        (0.7, 0.6)
    """
    return SHORT_DOUBT if every <= SHORT else DOUBT


def efficiency(forecast: Forecast, every: int, delay: int = 0, world: int = MEASURED_WORLD) -> float:
    """Return the efficiency of a step if ranks exchange in rounds, by the forecast of an exchange in each step.

    Between numbers of ranks that were measured, the efficiency of dense is a power of their number; beyond them, that
    of the nearest number.

    Args:
        forecast: forecast of an exchange in each step.
        every: number of steps from one exchange to the next.
        delay: number of steps that an exchange is in flight before its mean is applied.
        world: number of ranks.

    Example:
        >>> from gravac.candidate import Candidate
        >>> bits = Forecast(Candidate("hook", "quantize", 16.0), 15.0, 0.96, apart=((50, 1.0), (100, 2.2)))
        >>> efficiency(bits, 10), efficiency(bits, 10, delay=5), efficiency(bits, 100)
        (0.9504, 0.8934, 0.649)
    """
    return round(_dense(every, delay, world) * math.pow(forecast.efficiency, _power(forecast, every)), 4)


def _dense(every: int, delay: int, world: int) -> float:
    by_ranks = tuple((number, efficiency_at(points, every)) for number, points in DENSE.items())
    return efficiency_at(by_ranks, min(world, max(DENSE))) * efficiency_at(BEHIND, 1 + delay)


def _power(forecast: Forecast, every: int) -> float:
    return power_at(forecast.apart, every) if forecast.apart else 1.0
