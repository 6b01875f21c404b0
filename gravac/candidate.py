# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a controller may choose, a compressor at a compression factor (CF); and what it may not, with the cause."""

import bisect
import math
from dataclasses import dataclass, field
from typing import Literal

DENSE = "dense"
"""Name that a candidate has where nothing is compressed but the number format."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compressor, by name, at a compression factor.

    Where ranks exchange every so many steps (``gravac.outer``), all numbers are of one of these: its share of a round.

    Attributes:
        compressor: name of the compressor; ``"dense"`` for no compression.
        cf: compression factor: dense elements / sent elements where sparse, 2 for 16 bit, 1 for dense float32.
        wire_ratio: predicted wire bytes of a dense float32 all-reduce of the model in every step over those of this
            candidate.
        efficiency: statistical efficiency: the share of a dense step's progress that one of its steps makes, expected
            before training.
        family: name of its family; candidates of one family differ in what they send and not in how they code.
        by_gain: ``(gain, efficiency)``, ascending: the efficiency that a gain measured while training stands for;
            empty where gain does not tell.
        coding_s: seconds that coding of a step was expected to take by itself, before the first; ``None``: not known.
        exchange_s: seconds that the exchange of a step was expected to take; ``None``: not known.
        every: number of steps from one exchange to the next.
        delay: number of steps behind which an exchange travels before it is taken up; 0: training waits for it.
        step_s: seconds that a whole step was expected to take, its compute measured; ``None``: not known.
        compute_s: seconds that its compute took, measured before the first exchange; ``None``: not known.
        behind: share of a step's compute behind which its exchange may travel, where training waits for the rest;
            ``None``: it overlaps with backward.
        apart: ``(number of steps, power of efficiency)``, ascending: what becomes of its efficiency where ranks
            exchange every so many; empty: nothing, but for what fewer exchanges cost.
        method: name of what compresses, with its own setting: ``"low rank 16"``, ``"1 bit"``; empty: not known. Two
            candidates that differ in nothing else are equal.

    Example:
        >>> str(Candidate("topk", 10.0, 6.4))
        'topk 10x'
    """

    compressor: str
    cf: float
    wire_ratio: float
    efficiency: float = 1.0
    family: str = ""
    by_gain: tuple[tuple[float, float], ...] = ()
    coding_s: float | None = field(default=None, compare=False)
    exchange_s: float | None = field(default=None, compare=False)
    every: int = 1
    delay: int = 0
    step_s: float | None = field(default=None, compare=False)
    compute_s: float | None = field(default=None, compare=False)
    behind: float | None = field(default=None, compare=False)
    apart: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    method: str = field(default="", compare=False)

    @property
    def dense(self) -> bool:
        """Tell whether nothing is compressed but the number format."""
        return self.compressor == DENSE

    def efficiency_at(self, gain: float) -> float:
        """Return a step's statistical efficiency for the gain that was measured, between the points of ``by_gain``.

        Example:
            >>> candidate = Candidate("topk", 10.0, 6.4, efficiency=0.9, by_gain=((0.2, 0.5), (0.6, 0.9)))
            >>> round(candidate.efficiency_at(0.4), 3)
            0.7
            >>> Candidate("quantize", 16.0, 13.5, efficiency=0.9).efficiency_at(0.4)  # its gain does not tell
            0.9
        """
        if not self.by_gain or not math.isfinite(gain):
            return self.efficiency
        gains = [at for at, _ in self.by_gain]
        right = min(max(1, bisect.bisect_left(gains, gain)), len(gains) - 1)
        (low, least), (high, most) = self.by_gain[right - 1], self.by_gain[right]
        share = min(1.0, max(0.0, (gain - low) / (high - low)))
        return least + share * (most - least)

    def __str__(self) -> str:
        often = f" every {self.every} steps" if self.every > 1 else ""
        return f"{self.compressor} {self.cf:g}x{often}" + (f" behind {self.delay}" if self.delay else "")


Cause = Literal["same_bytes", "not_fewer_bytes"]
"""Why a candidate is dropped: it would send what another does, or no fewer bytes than dense."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that a controller may not choose.

    Attributes:
        candidate: that was dropped.
        cause: why.
        other: candidate that it was compared with: the one that sends the same, or the dense one of the fewest bytes.
        ratio: predicted wire bytes of ``candidate`` over those of ``other``.
    """

    candidate: Candidate
    cause: Cause
    other: Candidate
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
