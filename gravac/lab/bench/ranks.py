# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that the compressor bench times: each averages one tensor, with a gravac compressor or with plain PyTorch code.

The PyTorch ranks do the same arithmetic as ``torch.distributed.algorithms.ddp_comm_hooks`` (fp16_compress_hook,
powerSGD_hook), and as a usual top-k by ``torch.topk``, over gravac's collectives.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from gravac.averaging.average import Averager
from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.collectives import AllGather, AllReduce, Collective
from gravac.compressors import Compressor, dense
from gravac.compressors.base import energy, k_for

Shape = tuple[int, ...]
"""Shape of a tensor."""

Rounds = Generator[list[Collective], list[Any], None]
"""Generator that averages a tensor: yields collectives, and is resumed with the list of their results."""


@dataclass(frozen=True, slots=True)
class MeasuredCompression:
    """Compression error of one rank's gradient ``x`` of one tensor, and the number of elements sent.

    Attributes:
        error: ``‖x - sent tensor‖²``; the sent tensor is what the rank contributed to the mean, decoded.
        energy: ``‖x‖²``.
        sent: number of elements sent; elements of ``x`` / ``sent`` is the achieved compression factor (CF).
    """

    error: float
    energy: float
    sent: float


class Rank(Protocol):
    """A rank that averages a tensor, and keeps a compressor's state (such as a residual) between steps."""

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Rounds:
        """Return a generator that averages a tensor over the ranks, in place; the caller runs the generator to its end.

        Args:
            flat: this rank's gradient, ``(elements,)``, float32; the generator replaces it by the mean.
            shape: shape of the tensor before it was flattened.
            step: number of the step, from 0.
        """

    def commit(self) -> None:
        """End the step: keep the part of the gradient that was not sent as residual for the next step."""

    def measured_compression(self, x: torch.Tensor, shape: Shape) -> MeasuredCompression:
        """Return compression error and sent elements of the first step; call right after that step.

        Args:
            x: the gradient, ``(elements,)``, float32.
            shape: shape of the tensor before it was flattened.
        """


MakeRank = Callable[[int, int], Rank]
"""Function that takes the number of a rank and the number of ranks, and returns a new simulated rank."""


class GravacRank:
    """A rank that averages with a gravac compressor as training does, with the compressor's default error feedback."""

    def __init__(self, compressor: Compressor, cf: float, rank: int, world: int) -> None:
        self._cf = cf
        self._averager = Averager(compressor, dense, compressor.error_feedback, 0)
        self._averager.rank, self._averager.world = rank, world

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Rounds:
        """Average a flat tensor, ``[elements]``, over the ranks, in place; see ``Rank.average``."""
        self._averager.measure(StepRecording(step, Candidate("hook", self._averager.base.name, self._cf)))
        yield from self._averager.average([Piece("w", flat, shape)], self._averager.plan(step, self._cf))

    def commit(self) -> None:
        """End the step; see ``Rank.commit``."""
        self._averager.commit()

    def measured_compression(self, x: torch.Tensor, shape: Shape) -> MeasuredCompression:
        """Return error and sent elements measured in the step; the error is 0 for a dense compressor."""
        recording = self._averager.recording
        if not self._averager.base.compresses:
            return MeasuredCompression(0.0, float(energy(x)), x.numel() / self._cf)
        return MeasuredCompression(float(recording.error), float(recording.energy), recording.sent)


class _TorchRank:
    """Base class of ranks that average with plain PyTorch code."""

    def __init__(self, cf: float, world: int) -> None:
        self._cf = cf
        self._world = world

    def commit(self) -> None:
        """Do nothing: ``average`` keeps the residual itself, if the method has error feedback."""

    def measured_compression(self, x: torch.Tensor, shape: Shape) -> MeasuredCompression:
        """Return error and sent elements, computed from the flat gradient ``x`` and the tensor that was sent."""
        sent_tensor, sent_elements = self._sent(x, shape)
        return MeasuredCompression(float(energy(x - sent_tensor)), float(energy(x)), sent_elements)

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        """Return the tensor that was sent for ``x``, decoded, ``(elements,)``, and the number of elements sent."""
        raise NotImplementedError


class TorchFp16(_TorchRank):
    """A rank that averages as ``fp16_compress_hook`` does: convert to float16, divide by world size, sum, copy back."""

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Rounds:
        """Average a flat tensor, ``[elements]``, over the ranks, in place; see ``Rank.average``."""
        (mean,) = yield [AllReduce(flat.to(torch.float16).div_(self._world))]
        flat.copy_(mean)

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        return x.to(torch.float16).div_(self._world).float().mul_(self._world), x.numel() / 2


class TorchTopK(_TorchRank):
    """A rank that averages by ``x.abs().topk(k)`` and an all-gather of values and int32 indices; no error feedback."""

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Rounds:
        """Average a flat tensor, ``[elements]``, over the ranks, in place; see ``Rank.average``."""
        self._selected_indices = flat.abs().topk(k_for(flat.numel(), self._cf), sorted=False).indices
        ((values, indices),) = yield [AllGather(flat[self._selected_indices], self._selected_indices.to(torch.int32))]
        flat.zero_()
        for rank_indices, rank_values in zip(indices, values, strict=True):
            flat.index_add_(0, rank_indices, rank_values)
        flat.div_(self._world)

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        return torch.zeros_like(x).index_copy_(0, self._selected_indices, x[self._selected_indices]), float(
            self._selected_indices.numel()
        )


class TorchPowerSGD(_TorchRank):
    """A rank that averages as ``powerSGD_hook`` does, with its defaults: error feedback, warm start, no epsilon.

    The tensor is a matrix M. P = MQ is summed and made orthogonal, Q = MᵀP is averaged, and the mean is PQᵀ. The matrix
    rank r is as large as the requested CF allows, CF = elements / (r (rows + columns)), and at least 1.
    """

    def __init__(self, cf: float, world: int) -> None:
        super().__init__(cf, world)
        self._residual: torch.Tensor | None = None
        self._p = self._q = torch.empty(0)

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Rounds:
        """Average a flat tensor, ``[elements]``, over the ranks, in place; see ``Rank.average``."""
        matrix = flat.view(1, shape[0], -1)
        if self._residual is None:
            self._draw_first_q(matrix)
        else:
            flat.add_(self._residual)
        gradient_with_residual = flat.clone()
        _orthogonalize(self._q)
        (self._p,) = yield [AllReduce(torch.bmm(matrix, self._q))]
        _orthogonalize(self._p)
        (self._q,) = yield [AllReduce(torch.bmm(matrix.transpose(1, 2), self._p))]
        self._q.div_(self._world)
        torch.bmm(self._p, self._q.transpose(1, 2), out=matrix)
        self._residual = torch.sub(gradient_with_residual, flat, out=self._residual)

    def _draw_first_q(self, matrix: torch.Tensor) -> None:
        """Draw the first Q for a matrix ``[1, rows, columns]``, with the matrix rank that the requested CF allows."""
        _, rows, columns = matrix.shape
        matrix_rank = max(1, min(rows, columns, int(matrix.numel() / (self._cf * (rows + columns)))))
        self._q = torch.randn(1, columns, matrix_rank, generator=torch.Generator().manual_seed(0))

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        matrix, orthogonal_p = x.view(shape[0], -1), self._p[0]
        return (orthogonal_p @ (orthogonal_p.T @ matrix)).view(-1), float(self._p.numel() + self._q.numel())


def _orthogonalize(matrices: torch.Tensor) -> None:
    orthogonalize: Any = powerSGD_hook._orthogonalize
    orthogonalize(matrices)


TORCH_RANKS: dict[str, Callable[[float, int], Rank]] = {
    "torch fp16": TorchFp16,
    "torch.topk": TorchTopK,
    "torch PowerSGD": TorchPowerSGD,
}
"""Classes of the ranks with plain PyTorch code, by the name that the bench shows.

A class is called with the compression factor and the number of ranks, and returns a new simulated rank.
"""
