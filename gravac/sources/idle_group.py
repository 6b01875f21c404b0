# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A process group that exchanges nothing: torch's HSDP gets it for the replicas, over which gravac averages instead."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class _FinishedWork(dist.Work):
    """Handle of a collective that has ended."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return ``True`` at once: the collective has ended."""
        return True


class IdleAllReduceGroup(dist.ProcessGroup):
    """A process group over the replicas whose all-reduce exchanges nothing, as if all replicas had equal tensors.

    If torch asks for the mean over the replicas, the all-reduce leaves tensors unchanged. If torch asks for the sum
    (with a divide factor, or gradients in float16), the all-reduce multiplies tensors by the number of replicas. gravac
    later averages the result over the replicas, which gives what torch asked for.

    Args:
        rank: number of this rank's replica.
        world: number of replicas.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)  # type: ignore[call-arg]

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Multiply tensors by the number of replicas if torch asks for the sum; return finished work. Must not raise.

        torch then adds the tensors to ``.grad``, which may hold gradients of earlier backwards, exchanged already.
        """
        if opts is not None and opts.reduceOp == dist.ReduceOp.SUM:
            torch._foreach_mul_(tensors, self.size())
        return _FinishedWork()

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name that torch's messages give this backend."""
        return "gravac"
