# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a controller may choose, a compressor at a compression factor (CF); and what it may not, with the cause."""

import bisect
import math
from dataclasses import dataclass, field
from typing import Literal

DENSE = "dense"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compressor, by name, at a compression factor.

    Attributes:
        compressor: name of the compressor; ``"dense"`` for no compression.
        cf: compression factor. Sparse: dense elements / sent elements. 16 bit: 2. Dense float32: 1.
        wire_ratio: predicted wire bytes of a dense float32 all-reduce of the model over those of this candidate.
        efficiency: statistical efficiency: the share of a dense step's progress that one of its steps makes, expected
            before training.
        family: candidates of one family differ in what they send and not in how they code.
        by_gain: what a gain measured while training makes of it: ``(gain, efficiency)``, ascending; empty: nothing.
        coding_s: seconds that coding of a step was expected to take by itself, before the first; ``None``: not known.
        exchange_s: the same of its exchange.
    """

    compressor: str
    cf: float
    wire_ratio: float
    efficiency: float = 1.0
    family: str = ""
    by_gain: tuple[tuple[float, float], ...] = ()
    coding_s: float | None = field(default=None, compare=False)
    exchange_s: float | None = field(default=None, compare=False)

    @property
    def dense(self) -> bool:
        """Whether nothing is compressed but the number format."""
        return self.compressor == DENSE

    def efficiency_at(self, gain: float) -> float:
        """Give a step's efficiency, now that its gain is known: between the points of ``by_gain``, if there are any."""
        if not self.by_gain or not math.isfinite(gain):
            return self.efficiency
        gains = [at for at, _ in self.by_gain]
        right = min(max(1, bisect.bisect_left(gains, gain)), len(gains) - 1)
        (low, least), (high, most) = self.by_gain[right - 1], self.by_gain[right]
        share = min(1.0, max(0.0, (gain - low) / (high - low)))
        return least + share * (most - least)

    def __str__(self) -> str:
        return f"{self.compressor} {self.cf:g}x"


Cause = Literal["same_bytes", "not_fewer_bytes"]
"""Why a candidate is dropped: it would send what another does, or no fewer bytes than dense."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that a controller may not choose.

    Attributes:
        candidate: that was dropped.
        cause: why.
        other: with which it was compared: the one that sends the same, or the dense one that sends the fewest bytes.
        ratio: predicted wire bytes of ``candidate`` over those of ``other``.
    """

    candidate: Candidate
    cause: Cause
    other: Candidate
    ratio: float


@dataclass(frozen=True, slots=True)
class Span:
    """Every CF from ``low`` to ``high``: the reach of a compressor that can do any."""

    low: float
    high: float
