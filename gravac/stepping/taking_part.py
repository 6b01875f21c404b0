# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How many ranks have gradients of their own in a step, where some have run out of inputs and answer the others."""

from typing import Any

import torch

from gravac.collectives import AllReduce
from gravac.exchange.executor import Executor, Number


class TakingPart:
    """The number of ranks that take part in a step; asked for, if at all, before its first tensors are averaged."""

    def __init__(self) -> None:
        self._started: Any = None
        self._count: Number | None = None

    @property
    def asked(self) -> bool:
        """Whether the ranks are counted in this step."""
        return self._started is not None

    def begin(self, executor: Executor, takes_part: bool | None, device: torch.device) -> None:
        """Start to count the ranks for which ``takes_part`` is true; ``None``, on every rank, counts none."""
        self._count = self._started = None
        if takes_part is not None:
            self._started = executor.start([AllReduce(torch.full((1,), float(takes_part), device=device))])

    def count(self, executor: Executor) -> Number:
        """Return the number, once all ranks have told.

        Raises:
            ExchangeError: a rank did not answer.
        """
        if self._count is None:
            (told,) = executor.finish(self._started)
            self._count = told[0] if executor.masked else executor.read([told[0]])[0]
        return self._count
