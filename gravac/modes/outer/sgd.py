# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The default outer optimizer: SGD that moves the anchor to the mean of the ranks' weights."""

from collections.abc import Iterable

import torch


class OuterSGD(torch.optim.SGD):
    """SGD of the anchors.

    Args:
        params: anchors.
        rate: learning rate. 1 moves each anchor to the mean of the ranks' weights; a lower rate averages the anchor
            over rounds, as Lookahead does (arXiv:1907.08610).
        momentum: Nesterov momentum; 0 for none.
    """

    def __init__(self, params: Iterable[torch.nn.Parameter], rate: float = 1.0, momentum: float = 0.0) -> None:
        super().__init__(params, lr=rate, momentum=momentum, nesterov=momentum > 0)
