# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other of single tensors, in the few steps for which that was asked.

All ranks know from the same plan that a survey is due, and of which tensors, so that all hand over a vector of the same
length. It is summed beside the agreement on its step, and nobody waits for it before the end of the next one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gravac.averaging.allocation import Curve, Point
from gravac.averaging.plan import Form
from gravac.averaging.stats import StepStats
from gravac.exchange.executor import Number

WireBytes = Callable[[Form, float | None], int]
"""Predicted wire bytes of one tensor at a CF of the base compressor; ``None`` is dense."""


@dataclass(frozen=True, slots=True)
class TensorErrors:
    """One rank's numbers of the tensors of one step, on their way to the others.

    Attributes:
        summed: names of the tensors whose gradients were added up, ascending.
        curved: names of the tensors that were evaluated at several CFs, ascending.
        cfs: these CFs, after dense (``None``).
        wire_bytes: bytes that each of ``curved`` sends at each CF.
        numbers: ``‖Σg‖²`` of each of ``summed``; then the energy of each of ``curved``, and its error at each CF but
            dense; what only the device knows as scalars (0-d tensors).
    """

    summed: tuple[str, ...]
    curved: tuple[str, ...]
    cfs: tuple[float | None, ...]
    wire_bytes: tuple[tuple[int, ...], ...]
    numbers: tuple[Number, ...]

    @classmethod
    def of(
        cls, stats: StepStats, survey: Sequence[float], loss_scale: Number, wire_bytes: WireBytes
    ) -> "TensorErrors | None":
        """A step's numbers, when its plan asked for any.

        Args:
            stats: what the step came to.
            survey: CFs at which the step's plan asked for errors, ascending.
            loss_scale: factor that its gradients were multiplied with.
            wire_bytes: see ``WireBytes``.
        """
        if not stats.sums and not stats.curves:
            return None
        summed, curved, cfs = tuple(sorted(stats.sums)), tuple(sorted(stats.curves)), (None, *survey)
        squares = [stats.sums[name] for name in summed]
        squares += [number for name in curved for number in stats.curves[name]]
        known = {form: tuple(wire_bytes(form, cf) for cf in cfs) for form in set(stats.forms.values())}
        sent = tuple(known[stats.forms[name]] for name in curved)
        return cls(summed, curved, cfs, sent, tuple(square / loss_scale**2 for square in squares))

    def norms(self, total: Sequence[float], world: int) -> tuple[tuple[str, float], ...]:
        """Norms by name, as ``Measurement`` has them, from the vectors' sum over ranks."""
        return tuple((name, math.sqrt(one / world)) for name, one in zip(self.summed, total, strict=False))

    def curves(self, total: Sequence[float]) -> dict[str, Curve]:
        """The curve of each tensor whose gradients were finite, from the vectors' sum over ranks."""
        left, width = total[len(self.summed) :], len(self.cfs)  # the energy takes the place of dense's error
        rows = [left[start : start + width] for start in range(0, len(left), width)]
        return {
            name: Curve(energy, tuple(Point(*point) for point in zip(self.cfs, (0.0, *errors), sent, strict=True)))
            for name, (energy, *errors), sent in zip(self.curved, rows, self.wire_bytes, strict=True)
            if math.isfinite(energy + math.fsum(errors))
        }
