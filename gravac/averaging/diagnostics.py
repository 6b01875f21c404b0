# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measurements of gradients that a controller may ask for: sums over steps, and compression errors at CFs not in use.

These measurements do not change what is sent. They cover the tensors that may be compressed. All numbers stay on the
tensors' device.
"""

from collections.abc import Sequence

import torch

from gravac.averaging.plan import Piece, Plan
from gravac.averaging.recording import StepRecording
from gravac.averaging.residuals import replace_entries
from gravac.compressors.base import Compressor, Context, energy
from gravac.compressors.dtypes import working
from gravac.exchange.reading import AT_ONCE, Finite, Number, Reads


class Diagnostics:
    """Sums of one rank's gradients over steps.

    Attributes:
        sums: sum of each parameter's gradients, by parameter name, over the steps since the last report of the sums;
            before the first report, over the steps since the sums were first asked for. Flat, ``[elements]``, float32
            (float64 for float64 gradients).
        reads: when the host may read whether gradients are finite.
    """

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        self.reads: Reads = AT_ONCE
        self._reported_sums: list[torch.Tensor] = []

    def add_gradients(self, pieces: Sequence[Piece], plan: Plan, finite: Finite, recording: StepRecording) -> None:
        """Add a step's gradients to their sums, if they are finite; report and drop the sums if the plan says so.

        Args:
            pieces: gradients of the parameters that may be compressed.
            plan: plan of the step; ``plan.sums`` is ``"add"``, or ``"report"``: the sums are then reported and dropped.
            finite: whether all gradients that this rank sends together with these are finite.
            recording: record of the step; a report writes the squared norm of each sum into ``recording.norms``.
        """
        known_finite = self.reads.known(finite)
        for piece in pieces:
            gradient_sum = self.sums.pop(piece.name, None)
            if gradient_sum is None:
                gradient_sum = torch.zeros_like(piece.flat, dtype=working(piece.flat.dtype))
            if known_finite is not False:
                gradient_sum.add_(
                    piece.flat if known_finite else self.reads.choose(finite, piece.flat, torch.zeros_like(piece.flat))
                )
            if plan.sums == "report":
                recording.norms[piece.name] = energy(gradient_sum)
                self._reported_sums.append(gradient_sum)  # kept until ``commit``: a stream may read it
            else:
                self.sums[piece.name] = gradient_sum

    def to_device(self, device: torch.device) -> None:
        """Move the sums of gradients over steps to a device."""
        replace_entries(self.sums, {name: gradient_sum.to(device) for name, gradient_sum in self.sums.items()})

    def commit(self) -> None:
        """End a step: free the memory of the sums of gradients that were reported in this step."""
        self._reported_sums.clear()

    def rescale(self, factor: Number) -> None:
        """Multiply the sums of gradients over steps by ``factor``, by which the loss scale was multiplied."""
        for gradient_sum in self.sums.values():
            gradient_sum.mul_(factor)


def evaluate_shadow_cfs(
    piece: Piece, x: torch.Tensor, base: Compressor, plan: Plan, context: Context, recording: StepRecording
) -> None:
    """Compute the compression error of a tensor at each CF in ``plan.shadow_cfs``, without sending anything.

    A compressor that selects elements (a sparsifier) stores the selected positions in ``context``, and reuses them when
    it sends the tensor.

    Args:
        piece: a tensor that may be compressed.
        x: the tensor's gradient plus its residual, flat, ``[elements]``.
        base: the compressor whose errors are computed.
        plan: plan of the step; ``plan.shadow_cfs`` has the CFs.
        context: facts about the tensor, for the compressor: name, shape, step, seed, and so on.
        recording: record of the step; the squared error at each CF, 0-d, is appended to its ``shadow_errors``.
    """
    choice = plan.of(piece.name)
    cfs_in_use = (choice.cf,) if choice.compresses else ()
    cfs = sorted({*plan.shadow_cfs, *cfs_in_use})
    error_by_cf = dict(zip(cfs, base.errors(x, cfs, context), strict=True))
    recording.shadow_errors.append([error_by_cf[cf].double() for cf in plan.shadow_cfs])
