# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The outer optimizer if no other is given: SGD that moves the anchor to the mean of the ranks' weights."""

from collections.abc import Iterable

import torch


class OuterSGD(torch.optim.SGD):
    """SGD of the anchors.

    Args:
        params: anchors.
        rate: learning rate. 1 moves each anchor to the mean of the ranks' weights; less averages it over rounds, as
            Lookahead does (arXiv:1907.08610).
        momentum: Nesterov's.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], rate: float = 1.0, momentum: float = 0.0) -> None:
        super().__init__(params, lr=rate, momentum=momentum, nesterov=momentum > 0)
