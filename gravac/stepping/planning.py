# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes a step's plan of a decision: which tensor runs at which compression factor, and what is looked at beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gravac.averaging.allocation import Curve, allocate
from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Plan
from gravac.candidate import Candidate
from gravac.controllers.base import Decision


@dataclass(frozen=True, slots=True)
class Factors:
    """Compression factors of the base compressor, as plain data; ``None`` is dense.

    Attributes:
        cf: factor of every tensor that has none of its own.
        cfs: factors by name, of the tensors that have one of their own.
    """

    cf: float | None = None
    cfs: Mapping[str, float | None] = field(default_factory=dict)

    def of(self, name: str) -> float | None:
        """Return a tensor's factor."""
        return self.cfs.get(name, self.cf)

    def fell(self, before: "Factors", name: str) -> bool:
        """Tell whether a tensor's factor is lower than before; dense is the lowest."""
        return (self.of(name) or 0.0) < (before.of(name) or 0.0)


class Planner:
    """Makes plans, the same on all ranks.

    Args:
        averager: knows the compressors.
        levels: factors that a single tensor may get, where bytes are spent by curves; none leaves all at the model's.
        survey_every: steps between two surveys of the curves.
    """

    def __init__(self, averager: Averager, levels: Sequence[float], survey_every: int) -> None:
        self._averager = averager
        self._levels = tuple(levels)
        self._survey_every = survey_every
        self._allotted: dict[float, dict[str, float | None]] = {}

    def forget(self) -> None:
        """Spend bytes anew: curves changed."""
        self._allotted.clear()

    def factors(self, decision: Decision, curves: Mapping[str, Curve]) -> Factors:
        """Return the factors of a decision; where it names no tensors, its bytes may be spent by their curves."""
        cf = _cf(decision.candidate)
        cfs = {name: _cf(one) for name, one in decision.tensors}
        if cf is not None and not cfs and self._levels:
            if cf not in self._allotted:
                self._allotted[cf] = allocate(curves, cf)
            cfs = self._allotted[cf]
        return Factors(cf, cfs)

    def plan(self, step: int, decision: Decision, factors: Factors, candidates: Sequence[Candidate]) -> Plan:
        """Return the plan of a step, a survey included when one is due."""
        survey: tuple[float, ...] = ()
        if self._levels and (step + 1) % self._survey_every == 0:
            survey = tuple(sorted({*self._levels, *(one.cf for one in candidates if not one.dense)}))
        dense_cf = decision.candidate.cf if decision.candidate.dense else None
        return self._averager.plan(
            step, factors.cf, decision.shadow, dense_cf=dense_cf, cfs=factors.cfs, sums=decision.sums, survey=survey
        )

    def wire_bytes(self, form: Form, cf: float | None) -> int:
        """Predicted wire bytes of one tensor at a CF; see ``gravac.stepping.tensor_errors.WireBytes``."""
        choice = self._averager.plan(0, cf).choice
        return self._averager.wire_bytes([form], choice.compressor, choice.cf)


def _cf(candidate: Candidate) -> float | None:
    """A candidate's factor; ``None`` is dense, in whatever format."""
    return None if candidate.dense else candidate.cf
