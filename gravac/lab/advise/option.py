# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One way of exchanging gradients, with what is predicted of it."""

from dataclasses import dataclass

from gravac.beliefs import Belief
from gravac.candidate import DENSE, Mode
from gravac.compressors import COMPRESSORS
from gravac.telemetry.words import bytes_words


@dataclass(frozen=True, slots=True)
class Option:
    """One way of exchanging gradients.

    Attributes:
        compressor: name of the compressor; ``"dense"`` for none.
        cf: compression factor.
        step_s: predicted seconds of a step.
        compress_s: seconds of a step spent on encode and decode.
        exposed_s: seconds of a step spent on exchange that backward does not hide.
        speed_up: step time of 16 bit over this one.
        wire_ratio: wire bytes of dense float32 over those of this choice.
        break_even: bandwidth below which it beats 16 bit, bits per second; ``inf`` for always, 0 for never, ``None``
            for DDP's own exchange.
        efficiency: share of a dense step's progress that a step of it is expected to make.
        deviation: uncertainty of that: standard deviation of its natural logarithm.
        cost: price of 1000 steps, in the price's currency; ``None`` without a price.
        every: number of steps from one exchange to the next; 1: gradients are exchanged in each step.
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
        """Who exchanges: in each step DDP what is dense and gravac's hook what is compressed, or gravac in rounds."""
        if self.every > 1:
            return "outer"
        return "native" if self.compressor == DENSE else "hook"

    @property
    def reference(self) -> bool:
        """True for DDP's own exchange, the baseline that all other options are compared with."""
        return self.mode == "native"

    @property
    def progress(self) -> float:
        """Speed-up in progress per second."""
        return self.speed_up * self.efficiency

    @property
    def safe_progress(self) -> float:
        """Speed-up in progress per second by the lower bound of efficiency, as gravac decides."""
        return self.speed_up * self.least_efficiency

    @property
    def least_efficiency(self) -> float:
        """Lower bound of ``efficiency``; see ``gravac.beliefs.Belief``."""
        return Belief(self.efficiency, self.deviation).lower_bound

    def __str__(self) -> str:
        often = f" every {self.every} steps" if self.every > 1 else ""
        known = COMPRESSORS.get(self.compressor)
        dense = {1.0: "dense float32", 2.0: "dense in 16 bit"}.get(self.cf) if self.compressor == DENSE else None
        method = dense or (known.method_at(self.cf) if known else f"{self.compressor} {self.cf:.4g}x")
        sent = bytes_words(self.wire_ratio)
        return method + (f" ({sent})" if sent else "") + often
