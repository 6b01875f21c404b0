# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is counted, and what is not."""

from collections.abc import Callable

import pytest
import torch

from tests.device.counting import DEVICE, counting


@pytest.mark.parametrize(
    ("code", "kernels", "waits", "copies"),
    [
        (lambda x: x.view(2, -1)[0].abs().sum(), 2, 0, 0),
        (lambda x: x.sum().item(), 1, 1, 0),
        (lambda x: bool(x.any()), 1, 1, 0),
        (lambda x: x[x > 0], 1, 1, 0),
        (lambda x: x.nonzero(), 0, 1, 0),
        (lambda x: x.cpu(), 0, 0, 1),
        (lambda x: torch.tensor([1, 2]).to(DEVICE), 0, 0, 1),
        (lambda x: x.copy_(torch.ones(8)), 0, 0, 1),
        (lambda x: torch.where(x > 0, x, 0.0).add_(2), 4, 0, 0),
        (lambda x: torch.ones(8).sum().item(), 0, 0, 0),
    ],
)
def test_it_counts(code: Callable[[torch.Tensor], object], kernels: int, waits: int, copies: int) -> None:
    with counting() as seen:
        x = torch.empty(8, device=DEVICE)
        code(x)
    assert (sum(seen.kernels.values()), len(seen.waits), len(seen.copies)) == (kernels, waits, copies), vars(seen)
