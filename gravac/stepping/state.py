# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run's steps leave behind for the next one, as plain data: with residuals, all that a checkpoint holds."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gravac.averaging.allocation import Curve, Point
from gravac.candidate import Candidate
from gravac.exchange.executor import Number
from gravac.stepping.agreement import Layout, StepReport
from gravac.stepping.clock import StepCosts
from gravac.stepping.planning import Factors
from gravac.stepping.tensor_errors import TensorErrors
from gravac.telemetry.records import DecisionRecord

PLAIN = ("step", "loss_scale", "gain", "wire_bytes", "dense_wire_bytes", "survey_bytes")
"""Fields of ``StepState`` that are dumped as they are."""


@dataclass(slots=True)
class Unobserved:
    """What this rank measured in a step that the ranks have not agreed on yet.

    Attributes:
        report: this rank's numbers.
        tensor_errors: numbers of single tensors, where the step's plan asked for them.
        costs: what the step cost on this rank, for its record; ``None`` of a step from before a checkpoint.
        leftover: names of tensors of which something was still kept that is to be sent, where only the device knows
            whether it is zero.
    """

    report: StepReport
    tensor_errors: TensorErrors | None = None
    costs: StepCosts | None = None
    leftover: frozenset[str] = frozenset()

    def vectors(self) -> list[list[Number]]:
        """What is summed over the ranks: the report's numbers, then those of single tensors, where there are any."""
        return [self.report.vector(), *([] if self.tensor_errors is None else [[*self.tensor_errors.numbers]])]

    def dump(self) -> dict[str, Any]:
        """Return plain values; the host waits for numbers that only the device knows."""
        report = {**asdict(self.report), "shadow": list(self.report.shadow), "numbers": _plain(self.report.numbers)}
        errors = self.tensor_errors
        survey = None if errors is None else {**asdict(errors), "numbers": tuple(map(float, errors.numbers))}
        return {"report": report, "survey": survey}

    @classmethod
    def load(cls, plain: Mapping[str, Any]) -> "Unobserved":
        """Return what was dumped; a slot that was not there then is nan."""
        report, survey = plain["report"], plain["survey"]
        candidate, shadow = Candidate(**report["candidate"]), tuple(report["shadow"])
        slots = Layout(shadow).slots
        return cls(
            StepReport(report["step"], candidate, shadow, {**dict.fromkeys(slots, math.nan), **report["numbers"]}),
            None if survey is None else TensorErrors(**survey),
        )


@dataclass(slots=True)
class StepState:
    """All that steps leave behind but residuals and compressors' memory; alike on all ranks, but for ``unobserved``.

    Attributes:
        step: number of steps made.
        ran: candidate of the last step; ``None`` before the first.
        factors: compression factors of the last step.
        controller: the controller's own state.
        unobserved: measurements on their way, oldest first: at most as many as the executor's latency has steps, one
            less where the host may look when it likes.
        curves: what each tensor lost and sent at several CFs when last surveyed, by name.
        loss_scale: factor that the last gradients were multiplied with, as a scalar (0-d tensor) where only the device
            knows it; ``None`` without a scaler.
        gain: gain of the last step all ranks agreed on; ``None`` before, or when it was not finite.
        wire_ratio: wire ratio of the last agreed step, on this rank; ``None`` before.
        wire_bytes: bytes sent by this rank in all steps.
        dense_wire_bytes: bytes that dense float32 would have sent.
        survey_bytes: bytes of surveys, payload.
        steps_at: number of steps by what ran, since this process started.
        history: one record for each window's end or trigger, the newest; ``Deciding`` drops older ones.
    """

    step: int = 0
    ran: Candidate | None = None
    factors: Factors = field(default_factory=Factors)
    controller: Any = None
    unobserved: list[Unobserved] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    loss_scale: Number | None = None
    gain: float | None = None
    wire_ratio: float | None = None
    wire_bytes: int = 0
    dense_wire_bytes: int = 0
    survey_bytes: int = 0
    steps_at: dict[Candidate, int] = field(default_factory=dict)
    history: list[DecisionRecord] = field(default_factory=list)

    def dump(self) -> dict[str, Any]:
        """Return plain values, but for the controller's state, which the controller dumps."""
        known = self.unobserved[-1].dump() if self.unobserved else {"report": None, "survey": None}
        return {
            **{name: getattr(self, name) for name in PLAIN},
            "loss_scale": None if self.loss_scale is None else float(self.loss_scale),
            "ran": None if self.ran is None else asdict(self.ran),
            "plan": {"cf": self.factors.cf, "cfs": dict(self.factors.cfs)},
            **known,
            "older_reports": [one.dump() for one in self.unobserved[:-1]],
            "curves": {name: [curve.energy, *map(list, curve.points)] for name, curve in self.curves.items()},
            "history": [asdict(record) for record in self.history],
        }

    @classmethod
    def load(cls, plain: Mapping[str, Any]) -> "StepState":
        """Return what was dumped; the controller's state is not in it."""
        newest = [] if plain["report"] is None else [Unobserved.load(plain)]
        curves = plain["curves"].items()
        return cls(
            **{name: plain[name] for name in PLAIN},
            ran=None if plain["ran"] is None else Candidate(**plain["ran"]),
            factors=Factors(plain["plan"]["cf"], plain["plan"]["cfs"]),
            unobserved=[*map(Unobserved.load, plain["older_reports"]), *newest],
            curves={name: Curve(energy, tuple(Point(*p) for p in points)) for name, (energy, *points) in curves},
            history=[DecisionRecord(**record) for record in plain["history"]],
        )


def _plain(numbers: Mapping[str, Number]) -> dict[str, float]:
    return {name: float(number) for name, number in numbers.items()}
