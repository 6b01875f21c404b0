# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The default outer optimizer: SGD that moves the anchor to the mean of the ranks' weights."""

from collections.abc import Iterable

import torch


class OuterSGD(torch.optim.SGD):
    """The default outer optimizer: SGD on the anchor, with Nesterov momentum.

    Args:
        params: weights of the anchor (the weights that all ranks shared last), which the optimizer trains.
        rate: learning rate; default: 1, which moves the anchor to the mean of the ranks' weights. A lower rate
            moves the anchor a part of the way to that mean, as Lookahead does (arXiv:1907.08610).
        momentum: Nesterov momentum; default: 0, no momentum.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], rate: float = 1.0, momentum: float = 0.0) -> None:
        super().__init__(params, lr=rate, momentum=momentum, nesterov=momentum > 0)
