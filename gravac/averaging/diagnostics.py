# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a controller may ask to know of gradients beside their averaging: sums over steps, what other CFs would lose.

None of it changes what is sent. It works on tensors that may be compressed; all numbers stay where the tensors are.
"""

from collections.abc import Sequence

import torch

from gravac.averaging.plan import Piece, Plan
from gravac.averaging.residuals import replace
from gravac.compressors.base import Compressor, Context, energy
from gravac.compressors.dtypes import working
from gravac.exchange.executor import Number, Verdict, choose
from gravac.measurement import LocalMeasurement


class Diagnostics:
    """The diagnostics of one rank.

    Attributes:
        sums: gradients added up since the plan last said so, by name; flat, ``[elements]``, in the working dtype.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self._told: list[torch.Tensor] = []

    def add_up(self, pieces: Sequence[Piece], plan: Plan, finite: Verdict, measurement: LocalMeasurement) -> None:
        """Do with gradients what the plan says of sums; where one is not finite, nothing is added.

        Args:
            pieces: tensors that may be compressed.
            plan: plan of the step.
            finite: whether all gradients of the group are finite on this rank.
            measurement: gets the sums' squared norms where the plan asks for a report.
        """
        for piece in pieces:
            total = self.sums.pop(piece.name, None)
            if total is None:
                total = torch.zeros_like(piece.flat, dtype=working(piece.flat.dtype))
            if finite is not False:
                total.add_(piece.flat if finite is True else choose(finite, piece.flat, torch.zeros_like(piece.flat)))
            if plan.sums == "report":
                measurement.norms[piece.name] = energy(total)
                self._told.append(total)  # which a stream may still read
            else:
                self.sums[piece.name] = total

    def place(self, device: torch.device) -> None:
        """Have all sums lie on a device."""
        replace(self.sums, {name: total.to(device) for name, total in self.sums.items()})

    def commit(self) -> None:
        """End of a step: let go of sums that were told."""
        self._told.clear()

    def rescale(self, factor: Number) -> None:
        """Multiply all sums: the loss scale changed by ``factor``."""
        for total in self.sums.values():
            total.mul_(factor)


def evaluate(
    piece: Piece, x: torch.Tensor, base: Compressor, plan: Plan, context: Context, measurement: LocalMeasurement
) -> None:
    """Find what each shadow CF would lose of a tensor; selections are kept in the context for the real one.

    Args:
        piece: a tensor that may be compressed.
        x: its gradient with what is fed back, flat, ``[elements]``.
        base: the compressor, evaluated at the plan's shadow CFs.
        plan: plan of the step.
        context: what the compressor may know of the tensor.
        measurement: what the errors are added to.
    """
    choice = plan.of(piece.name)
    running = (choice.cf,) if choice.compresses else ()
    cfs = sorted({*plan.shadow, *running})
    errors = dict(zip(cfs, base.errors(x, cfs, context), strict=True))
    measurement.shadow_errors.append([errors[cf].double() for cf in plan.shadow])
