# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The outer optimizer where no other is given: SGD whose learning rate goes by how far apart exchanges are."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gravac.compressors.profile import MEASURED_WORLD, EfficiencyPoints, power_at

RATES: Mapping[int, EfficiencyPoints] = {2: ((10, 0.7), (20, 0.85), (50, 1.0)), 4: ((1, 1.0),)}
"""Learning rate by number of steps from one exchange to the next, by number of ranks: of those tried the best for dense
exchanges on ``charlm`` and ``lstm``, one seed; of four ranks (and of eight) over all numbers of steps together
(``docs/measurements/outer_efficiency.json``, and ``outer_ranks.json`` there)."""


def rate_at(every: int, world: int = MEASURED_WORLD) -> float:
    """Return the learning rate where ranks exchange every so many steps: linear in logarithms between ``RATES``.

    Less than 1 averages the anchor over rounds, as Lookahead does (arXiv:1907.08610): over few steps that takes noise
    away, over many it only keeps training back, and the mean over four ranks has little noise.

    Example:
        >>> [rate_at(every) for every in (1, 10, 20, 30, 100)], [rate_at(10, world) for world in (3, 4, 8)]
        ([0.7, 0.7, 0.85, 0.9164, 1.0], [0.8755, 1.0, 1.0])
    """
    by_ranks = tuple((number, min(points[-1][1], power_at(points, every))) for number, points in RATES.items())
    return round(power_at(by_ranks, min(world, max(RATES))), 4)


class OuterSGD(torch.optim.SGD):
    """SGD of the anchors.

    Args:
        params: anchors.
        rate: learning rate; ``None``: ``rate_at`` the number of steps of the round that a step is of.
        momentum: Nesterov's.

    Attributes:
        every: number of steps of the round that the next step is of, on average over the ranks.
        world: number of ranks.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], rate: float | None = None, momentum: float = 0.0) -> None:
        self._fixed = rate
        self.every, self.world = 1, MEASURED_WORLD
        super().__init__(params, lr=rate_at(1) if rate is None else rate, momentum=momentum, nesterov=momentum > 0)

    def step(self, closure: Any = None) -> Any:
        """Make a step, with the rate that its round has."""
        if self._fixed is None:
            for group in self.param_groups:
                group["lr"] = rate_at(self.every, self.world)
        return super().step(closure)
