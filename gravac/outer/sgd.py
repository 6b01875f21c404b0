# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The outer optimizer where no other is given: SGD whose learning rate goes by how far apart exchanges are."""

from collections.abc import Iterable
from typing import Any

import torch

from gravac.compressors.profile import EfficiencyPoints, power_at

RATES: EfficiencyPoints = ((10, 0.7), (20, 0.85), (50, 1.0))
"""Learning rate by number of steps from one exchange to the next: of those tried the best for dense exchanges on
``charlm`` and ``lstm``, two ranks, one seed (``docs/measurements/outer_efficiency.json``)."""


def rate_at(every: int) -> float:
    """Return the learning rate where ranks exchange every so many steps: linear in their logarithm between ``RATES``.

    Less than 1 averages the anchor over rounds, as Lookahead does (arXiv:1907.08610): over few steps that takes noise
    away, over many it only keeps training back.

    Example:
        >>> [rate_at(every) for every in (1, 10, 20, 30, 100)]
        [0.7, 0.7, 0.85, 0.9164, 1.0]
    """
    return round(min(RATES[-1][1], power_at(RATES, every)), 4)


class OuterSGD(torch.optim.SGD):
    """SGD of the anchors.

    Args:
        params: anchors.
        rate: learning rate; ``None``: ``rate_at`` the number of steps of the round that a step is of.
        momentum: Nesterov's.

    Attributes:
        every: number of steps of the round that the next step is of, on average over the ranks.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], rate: float | None = None, momentum: float = 0.0) -> None:
        self._fixed = rate
        self.every = 1
        super().__init__(params, lr=rate_at(1) if rate is None else rate, momentum=momentum, nesterov=momentum > 0)

    def step(self, closure: Any = None) -> Any:
        """Make a step, with the rate that its round has."""
        if self._fixed is None:
            for group in self.param_groups:
                group["lr"] = rate_at(self.every)
        return super().step(closure)
