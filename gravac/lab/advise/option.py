# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One way of exchanging gradients, and the predictions for it."""

from dataclasses import dataclass

from gravac.beliefs import Belief
from gravac.candidate import DENSE, Mode
from gravac.compressors import COMPRESSORS
from gravac.telemetry.descriptions import describe_bytes


@dataclass(frozen=True, slots=True)
class Option:
    """One way of exchanging gradients, and the predictions for it.

    Attributes:
        compressor: name of the compressor; ``"dense"`` if nothing is compressed.
        cf: compression factor.
        step_s: predicted seconds of a step.
        compress_s: seconds of a step spent on encode and decode.
        exposed_s: seconds of a step spent on exchange that backward does not hide.
        speed_up: step time of 16 bit / step time of this option.
        wire_ratio: wire bytes of dense float32 / wire bytes of this option.
        break_even: bandwidth below which this option is faster than 16 bit, bits per second; ``inf``: at every
            bandwidth, 0: at none, ``None``: not computed, for DDP's own exchange.
        efficiency: expected progress of a step, as a fraction of a dense step's progress.
        deviation: uncertainty of the efficiency: standard deviation of its natural logarithm.
        cost: price of 1000 steps, in the price's currency; ``None`` without a price.
        every: number of steps from one exchange to the next; 1 exchanges gradients in each step.
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
        """Mode: DDP exchanges dense gradients, gravac's hook compressed gradients in each step, or gravac in rounds."""
        if self.every > 1:
            return "outer"
        return "native" if self.compressor == DENSE else "hook"

    @property
    def reference(self) -> bool:
        """True for DDP's own exchange, the baseline of all comparisons."""
        return self.mode == "native"

    @property
    def progress(self) -> float:
        """Expected progress per second / progress per second of 16 bit."""
        return self.speed_up * self.efficiency

    @property
    def safe_progress(self) -> float:
        """Like ``progress``, by the lower bound of efficiency, which gravac decides by."""
        return self.speed_up * self.least_efficiency

    @property
    def least_efficiency(self) -> float:
        """Lower bound of ``efficiency``; see ``gravac.beliefs.Belief``."""
        return Belief(self.efficiency, self.deviation).lower_bound

    def __str__(self) -> str:
        interval = f" every {self.every} steps" if self.every > 1 else ""
        compressor = COMPRESSORS.get(self.compressor)
        dense = {1.0: "dense float32", 2.0: "dense in 16 bit"}.get(self.cf) if self.compressor == DENSE else None
        method = dense or (compressor.method_at(self.cf) if compressor else f"{self.compressor} {self.cf:.4g}x")
        saving = describe_bytes(self.wire_ratio)
        return method + (f" ({saving})" if saving else "") + interval
