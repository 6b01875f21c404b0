# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Candidates, the ways to run steps that a controller may choose from; their forecasts; reasons to drop candidates.

A candidate's name is its ``str``. Reasons, logs, tables and messages show this name, and no other. The name says what
the candidate sends in words, since a compression factor (CF) has a different meaning for each compressor. For example,
at CF 32 the default ladder runs low rank 16, which on small matrices sends only 15 times fewer bytes.
"""

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from gravac.beliefs import Belief
from gravac.ranges import Count, Factor, PositiveCount

DENSE = "dense"
"""Content of ``Candidate.compressor`` if all tensors are sent dense, in float32 or in 16 bit."""

Mode = Literal["native", "hook", "outer"]
"""Who exchanges, and when: DDP by itself in each step (``"native"``), gravac in each step (``"hook"``), or gravac once
in several steps, between which ranks train on their own (``"outer"``).
"""


EQUAL_BYTES_MARGIN = 0.05
"""Texts do not mention a candidate's bytes if its wire ratio differs from 1 by at most this number."""


def describe_bytes(wire_ratio: float) -> str:
    """Return a text that states a wire ratio, such as ``"15x fewer bytes"``; ``""`` if not known, or if about 1.

    Example:
        >>> describe_bytes(15.06), describe_bytes(3.88), describe_bytes(2.0), describe_bytes(0.5)
        ('15x fewer bytes', '3.9x fewer bytes', '2x fewer bytes', '2x more bytes')
    """
    if not (math.isfinite(wire_ratio) and wire_ratio > 0) or abs(wire_ratio - 1) <= EQUAL_BYTES_MARGIN:
        return ""
    factor, comparative = (wire_ratio, "fewer") if wire_ratio > 1 else (1 / wire_ratio, "more")
    return f"{factor:.0f}x {comparative} bytes" if factor >= 10 else f"{round(factor, 1):g}x {comparative} bytes"


def describe_exchange(method: str, wire_ratio: float) -> str:
    """Return what an exchange sends, in words: the method and its bytes. This is ``Candidate.sends``.

    Args:
        method: name of the compressor with its own setting, such as ``"4 bits"``.
        wire_ratio: wire bytes of a dense float32 all-reduce of the model / wire bytes of the exchange; nan: not known.

    Example:
        >>> describe_exchange("low rank 16", 15.1), describe_exchange("topk 10x", 0.5)
        ('low rank 16 (15x fewer bytes)', 'topk 10x (2x more bytes)')
        >>> describe_exchange("topk 1.9x", 1.02)
        'topk 1.9x'
    """
    bytes_text = describe_bytes(wire_ratio)
    return f"{method} ({bytes_text})" if bytes_text else method


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run steps that a controller may choose: mode, compressor, CF, and how often ranks exchange.

    Two candidates are equal if all their fields but ``sends`` are equal; candidates can be keys of a dict. What gravac
    expects of a candidate is in its ``Forecast``. The candidate's name is ``str(candidate)``.

    Attributes:
        mode: who exchanges, and when; see ``Mode``.
        compressor: name of the compressor; ``"dense"`` for no compression.
        cf: compression factor: elements / sent elements of a sparse or low-rank compressor, 32 / bits of a quantizer, 2
            for 16 bit, 1 for dense float32; a ladder's is a wire ratio.
        every: number of steps from one exchange to the next.
        delay: number of steps that an exchange is in flight before its mean is applied; 0: training waits for the mean.
        sends: what an exchange sends, in words, for the candidate's name: ``"4 bits (7.5x fewer bytes)"`` (see
            ``describe_exchange``), ``"dense bfloat16"``. The bytes are those of an exchange, whatever ``every`` is.
            Empty: not known; the name then has compressor and CF.

    Example:
        >>> str(Candidate("outer", "ladder", 7.76, every=50, delay=25, sends="4 bits (7.5x fewer bytes)"))
        '4 bits (7.5x fewer bytes) every 50 steps (applied 25 steps later)'
        >>> str(Candidate("hook", "topk", 10.0))
        'topk 10x'
        >>> str(Candidate("native", "dense", 1.0)), str(Candidate("native", "dense", 2.0))
        ('native float32', 'native float16')
    """

    mode: Mode
    compressor: str
    cf: Factor
    every: PositiveCount = 1
    delay: Count = 0
    sends: str = field(default="", compare=False)

    @property
    def dense(self) -> bool:
        """True if nothing is compressed, except by the number format."""
        return self.compressor == DENSE

    @property
    def in_hook(self) -> "Candidate":
        """The hook candidate of the same compressor and CF: gravac averages in each step, without delay."""
        return replace(self, mode="hook", every=1, delay=0)

    @property
    def pace_suffix(self) -> str:
        """End of a candidate's name: how often ranks exchange, and the delay if any.

        Begins with a space. Empty if ranks exchange in each step and apply the mean at once.

        Example:
            >>> Candidate("outer", "topk", 10.0, every=5, delay=1).pace_suffix
            ' every 5 steps (applied 1 step later)'
        """
        every_text = f" every {self.every} steps" if self.every > 1 else ""
        return every_text + (f" (applied {self.delay} step{'s' * (self.delay > 1)} later)" if self.delay else "")

    def __str__(self) -> str:
        if self.mode == "native":
            return f"native float{32 / self.cf:.0f}"
        return f"{self.sends or f'{self.compressor} {self.cf:g}x'}{self.pace_suffix}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast of a candidate: bytes, seconds and progress that gravac expects of a step before any is measured.

    All numbers are per training step. For outer steps, they are those of a round (``every`` steps and the exchange that
    follows) divided by ``every``.

    Attributes:
        candidate: candidate that the forecast describes.
        wire_ratio: predicted wire bytes of a dense float32 all-reduce of the model in each step / predicted wire bytes
            of this candidate.
        efficiency: statistical efficiency: progress of a step / progress of a step with dense gradient averaging. The
            median of what gravac assumes from measurements of other runs (``gravac.beliefs``).
        family: name that is the same for candidates that encode in the same way, such as two CFs of one compressor.
        by_gain: ``(gain, efficiency)``, ascending by gain: the efficiency at each measured gain; empty if efficiency
            does not depend on gain.
        coding_s: seconds of encode and decode alone, without other work beside them; ``None`` if not known.
        exchange_s: seconds of the collectives; ``None`` if not known.
        step_s: seconds of the whole step, predicted with the measured ``compute_s``; ``None`` if not known.
        compute_s: seconds of the step without exchange, measured before the first exchange; ``None`` if not known.
        behind: share of a round's compute time for which an exchange can be in flight before training has to wait, in
            [0, 1]; ``None``: no outer steps, and the exchange overlaps with backward.
        apart: ``(number of steps, exponent)``, ascending: if ranks exchange once in that number of steps, the
            efficiency becomes ``efficiency ** exponent``; empty: the exponent is always 1.
        method: name of the compressor with its own setting, for readers: ``"low rank 16"``, ``"1 bit"``; empty if not
            known.
        deviation: uncertainty of ``efficiency``: standard deviation of its natural logarithm; 0: certain.
        leaving_s: seconds of the exchange that makes the ranks' models equal again when outer steps end; ``None``: not
            known, or no outer steps.

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
        """Belief (median and uncertainty) about the candidate's efficiency before the run."""
        return Belief(self.efficiency, self.deviation)

    @property
    def least_efficiency(self) -> float:
        """Bound that the efficiency exceeds with a probability of 80 %; controllers decide by this bound."""
        return self.lower_bound(self.efficiency)

    def lower_bound(self, efficiency: float) -> float:
        """Return the bound that an efficiency of a given median exceeds with a probability of 80 % (``beliefs.SURE``).

        Args:
            efficiency: median of the efficiency, as ``efficiency_at`` returns; the uncertainty is the forecast's
                ``deviation``.
        """
        return Belief(efficiency, self.deviation).lower_bound

    def efficiency_at(self, gain: float) -> float:
        """Return the statistical efficiency of a step with a measured gain, interpolated between points of ``by_gain``.

        Example:
            >>> topk = Candidate("hook", "topk", 10.0)
            >>> forecast = Forecast(topk, wire_ratio=6.4, efficiency=0.9, by_gain=((0.2, 0.5), (0.6, 0.9)))
            >>> round(forecast.efficiency_at(0.4), 3)
            0.7
            >>> Forecast(topk, wire_ratio=6.4, efficiency=0.9).efficiency_at(0.4)  # no points: the gain is not used
            0.9
        """
        if not self.by_gain or not math.isfinite(gain):
            return self.efficiency
        gains = [point_gain for point_gain, _ in self.by_gain]
        upper_index = min(max(1, bisect.bisect_left(gains, gain)), len(gains) - 1)
        (low_gain, low_efficiency), (high_gain, high_efficiency) = (
            self.by_gain[upper_index - 1],
            self.by_gain[upper_index],
        )
        fraction = min(1.0, max(0.0, (gain - low_gain) / (high_gain - low_gain)))
        return low_efficiency + fraction * (high_efficiency - low_efficiency)


def named(candidate: Candidate, forecasts: Iterable[Forecast]) -> Candidate:
    """Return a candidate with what it sends in words, as in a run's forecasts; unchanged if no forecast knows it.

    A forecast knows what a candidate sends if its own candidate is equal, or else has the same compressor and CF: a
    round of outer steps may have more or fewer steps than any forecast.

    Args:
        candidate: candidate that was made from the fields of a record, or that a controller made by itself.
        forecasts: forecasts of the candidates that the run may choose.
    """
    similar_candidates = [
        forecast.candidate
        for forecast in forecasts
        if (forecast.candidate.compressor, forecast.candidate.cf) == (candidate.compressor, candidate.cf)
    ]
    similar_candidates.sort(key=lambda similar: (similar != candidate, similar.mode != candidate.mode))
    return replace(candidate, sends=similar_candidates[0].sends) if similar_candidates else candidate


Cause = Literal["same_bytes", "not_fewer_bytes", "too_little_progress"]
"""Reason to drop a candidate: it would send the same as another candidate; or no fewer bytes than dense; or the lower
bound of its efficiency is below ``least_efficiency``, set by the user or by gravac."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that a controller may not choose.

    Attributes:
        forecast: forecast of the dropped candidate.
        cause: reason to drop the candidate.
        other: forecast of the candidate that the dropped candidate was compared with. For ``"same_bytes"``: the
            candidate that sends the same; for ``"not_fewer_bytes"``: the dense candidate that sends fewest bytes; for
            ``"too_little_progress"``: dense float32.
        ratio: predicted wire bytes of ``forecast`` / predicted wire bytes of ``other``; if the cause is
            ``"too_little_progress"``, lower bound of the efficiency of ``forecast`` / ``least_efficiency``.
    """

    forecast: Forecast
    cause: Cause
    other: Forecast
    ratio: float


@dataclass(frozen=True, slots=True)
class Span:
    """A range of CFs, all of which a compressor supports.

    Attributes:
        low: lowest compression factor.
        high: highest compression factor.
    """

    low: float
    high: float
