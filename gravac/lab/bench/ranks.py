# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that the compressor bench times: each averages one tensor, by a compressor of gravac or by plain PyTorch code.

The PyTorch ranks repeat the arithmetic of ``torch.distributed.algorithms.ddp_comm_hooks`` (fp16_compress_hook,
powerSGD_hook), and of a usual top-k by ``torch.topk``, over gravac's collectives.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import AllGather, AllReduce, Collective
from gravac.compressors import Compressor, dense
from gravac.compressors.base import energy, k_for
from gravac.measurement import LocalMeasurement

Shape = tuple[int, ...]
Steps = Generator[list[Collective], list[Any], None]


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a tensor on a rank.

    Attributes:
        error: ``‖x - sent‖²``.
        energy: ``‖x‖²``.
        sent: number of elements sent, as the achieved CF counts them.
    """

    error: float
    energy: float
    sent: float


class Rank(Protocol):
    """A rank that averages a tensor, with its memory of previous steps."""

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Steps:
        """Average a tensor over the ranks in place; the generator yields collectives and receives their results.

        Args:
            flat: this rank's gradient, ``(elements,)``, float32; the mean afterwards.
            shape: shape of the tensor before it was flattened.
            step: number of the step, from 0.
        """

    def commit(self) -> None:
        """End the step: retain the error of the sent gradient for the next step."""

    def loss(self, x: torch.Tensor, shape: Shape) -> Loss:
        """Return the loss of the first step, right after that step.

        Args:
            x: the gradient, ``(elements,)``, float32.
            shape: shape of the tensor before it was flattened.
        """


MakeRank = Callable[[int, int], Rank]
"""Function of (rank, world) that makes a rank."""


class GravacRank:
    """A compressor of gravac on a flat tensor, as training runs it, with the compressor's default error feedback."""

    def __init__(self, compressor: Compressor, cf: float, rank: int, world: int) -> None:
        self._cf = cf
        self._averager = Averager(compressor, dense, compressor.error_feedback, 0, Feedback())
        self._averager.rank, self._averager.world = rank, world

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Steps:
        """See ``Rank``."""
        self._averager.measure(LocalMeasurement(step, Candidate("hook", self._averager.base.name, self._cf)))
        return self._averager.average([Piece("w", flat, shape)], self._averager.plan(step, self._cf))

    def commit(self) -> None:
        """See ``Rank``."""
        self._averager.commit()

    def loss(self, x: torch.Tensor, shape: Shape) -> Loss:
        """Return the loss that the averager measured on the flat ``x``; 0 if the compressor sends all of ``x``."""
        measurement = self._averager.measurement
        if not self._averager.base.compresses:
            return Loss(0.0, float(energy(x)), x.numel() / self._cf)
        return Loss(float(measurement.error), float(measurement.energy), measurement.sent)


class _TorchRank:
    """Base class of plain PyTorch's ranks."""

    def __init__(self, cf: float, world: int) -> None:
        self._cf = cf
        self._world = world

    def commit(self) -> None:
        """Do nothing: ``average`` retains the error itself, if at all."""

    def loss(self, x: torch.Tensor, shape: Shape) -> Loss:
        """Compute the loss from ``x`` and the tensor that was sent, both flat."""
        sent, elements = self._sent(x, shape)
        return Loss(float(energy(x - sent)), float(energy(x)), elements)

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        """Return the tensor that was sent, decoded, and the number of elements sent."""
        raise NotImplementedError


class TorchFp16(_TorchRank):
    """``fp16_compress_hook`` on a flat tensor: to float16, divided by the world size, summed, copied back."""

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Steps:
        """See ``Rank``."""
        (total,) = yield [AllReduce(flat.to(torch.float16).div_(self._world))]
        flat.copy_(total)

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        return x.to(torch.float16).div_(self._world).float().mul_(self._world), x.numel() / 2


class TorchTopK(_TorchRank):
    """``x.abs().topk(k)`` on a flat tensor, and an all-gather of values and int32 indices; no error feedback."""

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Steps:
        """See ``Rank``."""
        self._selected = flat.abs().topk(k_for(flat.numel(), self._cf), sorted=False).indices
        ((values, indices),) = yield [AllGather(flat[self._selected], self._selected.to(torch.int32))]
        flat.zero_()
        for rank_indices, rank_values in zip(indices, values, strict=True):
            flat.index_add_(0, rank_indices, rank_values)
        flat.div_(self._world)

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        return torch.zeros_like(x).index_copy_(0, self._selected, x[self._selected]), float(self._selected.numel())


class TorchPowerSGD(_TorchRank):
    """``powerSGD_hook`` on a tensor M as a matrix, with the hook's defaults: error feedback, warm start, no epsilon.

    P = MQ is summed and made orthogonal, Q = MᵀP is averaged, and the mean is PQᵀ. The rank is the largest with a CF,
    elements / (rank (rows + columns)), no lower than the requested CF, and at least 1.
    """

    def __init__(self, cf: float, world: int) -> None:
        super().__init__(cf, world)
        self._residual: torch.Tensor | None = None
        self._p = self._q = torch.empty(0)

    def average(self, flat: torch.Tensor, shape: Shape, step: int) -> Steps:
        """See ``Rank``."""
        matrix = flat.view(1, shape[0], -1)
        if self._residual is None:
            self._start(matrix)
        else:
            flat.add_(self._residual)
        with_residual = flat.clone()
        _orthogonalize(self._q)
        (self._p,) = yield [AllReduce(torch.bmm(matrix, self._q))]
        _orthogonalize(self._p)
        (self._q,) = yield [AllReduce(torch.bmm(matrix.transpose(1, 2), self._p))]
        self._q.div_(self._world)
        torch.bmm(self._p, self._q.transpose(1, 2), out=matrix)
        self._residual = torch.sub(with_residual, flat, out=self._residual)

    def _start(self, matrix: torch.Tensor) -> None:
        _, rows, columns = matrix.shape
        rank = max(1, min(rows, columns, int(matrix.numel() / (self._cf * (rows + columns)))))
        self._q = torch.randn(1, columns, rank, generator=torch.Generator().manual_seed(0))

    def _sent(self, x: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, float]:
        matrix, p = x.view(shape[0], -1), self._p[0]
        return (p @ (p.T @ matrix)).view(-1), float(self._p.numel() + self._q.numel())


def _orthogonalize(matrices: torch.Tensor) -> None:
    orthogonalize: Any = powerSGD_hook._orthogonalize
    orthogonalize(matrices)


TORCH: dict[str, Callable[[float, int], Rank]] = {
    "torch fp16": TorchFp16,
    "torch.topk": TorchTopK,
    "torch PowerSGD": TorchPowerSGD,
}
"""Classes of plain PyTorch's ranks by name; each is called with (cf, world)."""
