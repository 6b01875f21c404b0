# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A way to exchange gradients, and its predicted speed and progress; which ways may be recommended."""

from dataclasses import dataclass

from gravac.beliefs import Belief
from gravac.beliefs.tables import UNMEASURED_EXPONENTS
from gravac.candidate import DENSE, Mode, describe_bytes
from gravac.compressors import COMPRESSORS, Compressor
from gravac.lab.rounding import describe_range

LEAST_RECOMMENDED_EFFICIENCY = 0.5
"""Lower bound of efficiency that an option needs to be recommended: a step makes at least half a dense step's progress.

The bound is compared as texts show it, rounded to two decimals: 1 bit (0.4995) may be recommended.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """A way to exchange gradients, and its predicted speed and progress.

    Attributes:
        compressor: name of the compressor; ``"dense"`` if the option does not compress.
        cf: compression factor.
        step_s: predicted seconds of a step.
        compress_s: seconds of a step spent on encode and decode.
        exposed_s: seconds of a step spent on exchange that backward does not hide.
        speed_up: step time of 16 bit / step time of this option.
        wire_ratio: wire bytes of dense float32 / wire bytes of this option.
        break_even: bandwidth below which this option is faster than 16 bit, bits per second; ``inf``: at every
            bandwidth, 0: at none, ``None``: not computed, for torch's own exchange.
        efficiency: expected progress of a step, as a fraction of a dense step's progress.
        cost: price of 1000 steps of all workers, in the currency of ``price_per_hour``; ``None`` if no price was given.
        every: number of steps from one exchange to the next; 1: ranks exchange gradients in each step.
        deviation: uncertainty of the efficiency: standard deviation of its natural logarithm.
        measured: whether somebody measured the efficiency; if not, gravac only assumes it.
    """

    compressor: str
    cf: float
    step_s: float
    compress_s: float
    exposed_s: float
    speed_up: float
    wire_ratio: float
    break_even: float | None
    efficiency: float
    cost: float | None
    every: int = 1
    deviation: float = 0.0
    measured: bool = True

    @property
    def mode(self) -> Mode:
        """Mode: ``"native"`` if torch exchanges, ``"hook"`` if gravac exchanges in each step, otherwise ``"outer"``."""
        if self.every > 1:
            return "outer"
        return "native" if self.compressor == DENSE else "hook"

    @property
    def reference(self) -> bool:
        """True if torch itself exchanges dense gradients: a baseline that other options are compared with."""
        return self.mode == "native"

    @property
    def progress(self) -> float:
        """Expected progress per second / progress per second of torch's own exchange in 16 bit."""
        return self.speed_up * self.efficiency

    @property
    def safe_progress(self) -> float:
        """Lower bound of ``progress``, computed with ``least_efficiency``; gravac chooses by this number."""
        return self.speed_up * self.least_efficiency

    @property
    def least_efficiency(self) -> float:
        """Lower bound of ``efficiency``, exceeded with a probability of 80 %; see ``gravac.beliefs.Belief``."""
        return Belief(self.efficiency, self.deviation).lower_bound

    @property
    def progress_text(self) -> str:
        """``progress`` as text, with the range between its lower and its upper bound, such as ``"6.1 (5.4 to 7.0)"``.

        The progress is above each bound with a probability of 80 % and 20 %.
        """
        highest_progress = self.speed_up * Belief(self.efficiency, self.deviation).upper_bound
        return describe_range(self.progress, self.safe_progress, highest_progress)

    @property
    def recommendable(self) -> bool:
        """True if the efficiency was measured, and its lower bound is at least ``LEAST_RECOMMENDED_EFFICIENCY``."""
        return self.measured and round(self.least_efficiency, 2) >= LEAST_RECOMMENDED_EFFICIENCY

    def __str__(self) -> str:
        every_text = f" every {self.every} steps" if self.every > 1 else ""
        compressor = COMPRESSORS.get(self.compressor)
        dense_name = {1.0: "dense float32", 2.0: "dense in 16 bit"}.get(self.cf) if self.compressor == DENSE else None
        method = dense_name or (compressor.method_at(self.cf) if compressor else f"{self.compressor} {self.cf:.4g}x")
        bytes_text = describe_bytes(self.wire_ratio)
        return method + (f" ({bytes_text})" if bytes_text else "") + every_text


def has_measured_efficiency(compressor: Compressor, cf: float, every: int = 1) -> bool:
    """True if somebody measured the efficiency of steps with a compressor: gravac, or the compressor's author.

    The author of a compressor that gravac does not know states measured efficiencies in the compressor's class.

    Args:
        compressor: compressor of the steps; a ``Dense`` if nothing is compressed.
        cf: compression factor.
        every: number of steps from one exchange to the next.
    """
    profile = compressor.profile(cf)
    is_measured_in_each_step = profile.kind != "not measured" or bool(compressor.efficiency_points)
    if every == 1 or not compressor.compresses:
        return is_measured_in_each_step
    return is_measured_in_each_step and profile.efficiency_apart != UNMEASURED_EXPONENTS
