# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Candidates: ways to run steps that a controller may choose, what is expected of each, and why some are dropped."""

import bisect
import math
from dataclasses import dataclass, replace
from typing import Literal

from gravac.beliefs import Belief

DENSE = "dense"
"""Name of the compressor of a candidate that compresses nothing, except by its number format."""

Mode = Literal["native", "hook", "outer"]
"""Who exchanges: DDP without a hook of gravac's (``"native"``), gravac in each step (``"hook"``), or gravac in rounds,
between which ranks train apart (``"outer"``)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run steps that a controller may choose: an identity, that can be a key.

    Two candidates are equal if all their fields are. What is expected of a candidate is its ``Forecast``.

    Attributes:
        mode: who exchanges.
        compressor: name of the compressor; ``"dense"`` for no compression.
        cf: compression factor: dense elements / sent elements of a sparse compressor, 2 for 16 bit, 1 for dense
            float32.
        every: number of steps from one exchange to the next.
        delay: number of steps that an exchange is in flight before its mean is applied; 0: training waits for the mean.

    Example:
        >>> str(Candidate("outer", "topk", 10.0, every=50, delay=25))
        'topk 10x every 50 steps behind 25'
        >>> str(Candidate("native", "dense", 1.0)), str(Candidate("native", "dense", 2.0))
        ('native float32', 'native float16')
    """

    mode: Mode
    compressor: str
    cf: float
    every: int = 1
    delay: int = 0

    @property
    def dense(self) -> bool:
        """True if nothing is compressed, except by the number format."""
        return self.compressor == DENSE

    @property
    def in_hook(self) -> "Candidate":
        """The same compressor and CF, exchanged by gravac's hook in each step."""
        return replace(self, mode="hook", every=1, delay=0)

    def __str__(self) -> str:
        if self.mode == "native":
            return f"native float{32 / self.cf:.0f}"
        often = f" every {self.every} steps" if self.every > 1 else ""
        return f"{self.compressor} {self.cf:g}x{often}" + (f" behind {self.delay}" if self.delay else "")


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is expected of a candidate before it runs: the one place where beliefs enter.

    All numbers are of one step. If ranks exchange every ``candidate.every`` steps, a step has its share of the round.

    Attributes:
        candidate: candidate that the numbers are of.
        wire_ratio: predicted wire bytes of a dense float32 all-reduce of the model in each step / predicted wire bytes
            of this candidate.
        efficiency: statistical efficiency: progress of a step / progress of a step with dense gradient averaging;
            median of the belief about it (``gravac.beliefs``).
        family: name of the family; candidates of one family differ in what they send and not in how they code.
        by_gain: ``(gain, efficiency)``, ascending by gain: the efficiency that each measured gain stands for; empty if
            gain does not tell the efficiency.
        coding_s: seconds of encode and decode, if nothing runs beside them; ``None`` if not known.
        exchange_s: seconds of the collectives; ``None`` if not known.
        step_s: seconds of the whole step, by the compute that was measured; ``None`` if not known.
        compute_s: seconds of the step without exchange, measured before the first exchange; ``None`` if not known.
        behind: share of the step's compute that the exchange may overlap with, if training waits for the rest of the
            exchange; ``None`` if the exchange overlaps with backward.
        apart: ``(number of steps, power)``, ascending: the power that efficiency is raised to if exchanges are that
            many steps apart; empty: 1 at any number of steps.
        method: name of the compressor with its own setting, for people: ``"low rank 16"``, ``"1 bit"``; empty if not
            known.
        deviation: uncertainty of ``efficiency``: standard deviation of its natural logarithm; 0: certain.
        leaving_s: seconds that it takes the ranks to be one again when they leave it, of outer steps; ``None``: not
            known, or nothing.

    Example:
        >>> forecast = Forecast(Candidate("hook", "topk", 10.0), wire_ratio=6.4, efficiency=0.9)
        >>> f"{forecast.candidate}: {forecast.wire_ratio} times fewer bytes than dense"
        'topk 10x: 6.4 times fewer bytes than dense'
    """

    candidate: Candidate
    wire_ratio: float
    efficiency: float = 1.0
    family: str = ""
    by_gain: tuple[tuple[float, float], ...] = ()
    coding_s: float | None = None
    exchange_s: float | None = None
    step_s: float | None = None
    compute_s: float | None = None
    behind: float | None = None
    apart: tuple[tuple[float, float], ...] = ()
    method: str = ""
    deviation: float = 0.0
    leaving_s: float | None = None

    @property
    def belief(self) -> Belief:
        """Belief about the candidate's efficiency before the run."""
        return Belief(self.efficiency, self.deviation)

    @property
    def least_efficiency(self) -> float:
        """Lower bound of ``efficiency``, by which controllers decide; see ``lower_bound``."""
        return self.lower_bound(self.efficiency)

    def lower_bound(self, efficiency: float) -> float:
        """Return what an efficiency with this ``deviation`` exceeds with a probability of 80 % (``beliefs.SURE``).

        Args:
            efficiency: its median, such as ``efficiency_at`` returns.
        """
        return Belief(efficiency, self.deviation).lower_bound

    def efficiency_at(self, gain: float) -> float:
        """Return the statistical efficiency of a step of a measured gain, interpolated between points of ``by_gain``.

        Example:
            >>> topk = Candidate("hook", "topk", 10.0)
            >>> forecast = Forecast(topk, wire_ratio=6.4, efficiency=0.9, by_gain=((0.2, 0.5), (0.6, 0.9)))
            >>> round(forecast.efficiency_at(0.4), 3)
            0.7
            >>> Forecast(topk, wire_ratio=6.4, efficiency=0.9).efficiency_at(0.4)  # gain does not tell
            0.9
        """
        if not self.by_gain or not math.isfinite(gain):
            return self.efficiency
        gains = [at for at, _ in self.by_gain]
        right = min(max(1, bisect.bisect_left(gains, gain)), len(gains) - 1)
        (low, least), (high, most) = self.by_gain[right - 1], self.by_gain[right]
        share = min(1.0, max(0.0, (gain - low) / (high - low)))
        return least + share * (most - least)


Cause = Literal["same_bytes", "not_fewer_bytes", "too_little_progress"]
"""Why a candidate is dropped: it would send what another does; or no fewer bytes than dense; or the lower bound of its
efficiency is below the setting ``least_efficiency``."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that a controller may not choose.

    Attributes:
        forecast: forecast of the dropped candidate.
        cause: why the candidate was dropped.
        other: forecast that was compared: of the candidate that sends the same; of the dense one of fewest bytes; or of
            dense float32, if the cause is ``"too_little_progress"``.
        ratio: predicted wire bytes of ``forecast`` / predicted wire bytes of ``other``; if the cause is
            ``"too_little_progress"``, lower bound of the efficiency of ``forecast`` / ``least_efficiency``.
    """

    forecast: Forecast
    cause: Cause
    other: Forecast
    ratio: float


@dataclass(frozen=True, slots=True)
class Span:
    """Every CF from ``low`` to ``high``: the reach of a compressor that can do any.

    Attributes:
        low: lowest compression factor.
        high: highest compression factor.
    """

    low: float
    high: float
