# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of gradients that a controller may ask for: sums over steps, and compression errors at other CFs.

No diagnostic changes what is sent. Diagnostics cover tensors that may be compressed. All numbers stay on the tensors'
device.
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
        sums: sums of gradients by name, since the last report, or since plans ask for sums; flat, ``[elements]``, in
            the working dtype.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self._reported: list[torch.Tensor] = []

    def add_up(self, pieces: Sequence[Piece], plan: Plan, finite: Verdict, measurement: LocalMeasurement) -> None:
        """Add gradients to their sums, if they are finite; report and drop the sums if the plan says so.

        Args:
            pieces: tensors that may be compressed.
            plan: plan of the step.
            finite: whether all gradients of the group are finite on this rank.
            measurement: gets the sums' squared norms if the plan asks for a report.
        """
        for piece in pieces:
            total = self.sums.pop(piece.name, None)
            if total is None:
                total = torch.zeros_like(piece.flat, dtype=working(piece.flat.dtype))
            if finite is not False:
                total.add_(piece.flat if finite is True else choose(finite, piece.flat, torch.zeros_like(piece.flat)))
            if plan.sums == "report":
                measurement.norms[piece.name] = energy(total)
                self._reported.append(total)  # a stream may still read it
            else:
                self.sums[piece.name] = total

    def to_device(self, device: torch.device) -> None:
        """Move all sums to a device."""
        replace(self.sums, {name: total.to(device) for name, total in self.sums.items()})

    def commit(self) -> None:
        """End a step: free the sums that were reported."""
        self._reported.clear()

    def rescale(self, factor: Number) -> None:
        """Multiply all sums by ``factor``, since the loss scale was multiplied by it."""
        for total in self.sums.values():
            total.mul_(factor)


def evaluate(
    piece: Piece, x: torch.Tensor, base: Compressor, plan: Plan, context: Context, measurement: LocalMeasurement
) -> None:
    """Compute the compression error of a tensor at each shadow CF; the context stores selections for the exchange.

    Args:
        piece: a tensor that may be compressed.
        x: the tensor's gradient plus its residual, flat, ``[elements]``.
        base: the compressor, evaluated at the plan's shadow CFs.
        plan: plan of the step.
        context: the compressor's context of the tensor.
        measurement: gets the errors.
    """
    choice = plan.of(piece.name)
    running = (choice.cf,) if choice.compresses else ()
    cfs = sorted({*plan.shadow, *running})
    errors = dict(zip(cfs, base.errors(x, cfs, context), strict=True))
    measurement.shadow_errors.append([errors[cf].double() for cf in plan.shadow])
