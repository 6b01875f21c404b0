# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A way to exchange gradients, and its predicted speed and progress."""

from dataclasses import dataclass

from gravac.beliefs import Belief
from gravac.candidate import DENSE, Mode
from gravac.compressors import COMPRESSORS
from gravac.telemetry.descriptions import describe_bytes


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
        deviation: uncertainty of the efficiency: standard deviation of its natural logarithm.
        cost: price of 1000 steps of all workers, in the currency of ``price_per_hour``; ``None`` if no price was given.
        every: number of steps from one exchange to the next; 1: ranks exchange gradients in each step.
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

    def __str__(self) -> str:
        every_text = f" every {self.every} steps" if self.every > 1 else ""
        compressor = COMPRESSORS.get(self.compressor)
        dense_name = {1.0: "dense float32", 2.0: "dense in 16 bit"}.get(self.cf) if self.compressor == DENSE else None
        method = dense_name or (compressor.method_at(self.cf) if compressor else f"{self.compressor} {self.cf:.4g}x")
        bytes_text = describe_bytes(self.wire_ratio)
        return method + (f" ({bytes_text})" if bytes_text else "") + every_text
