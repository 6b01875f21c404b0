# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a rank sends in 16 bit: its share of the mean."""

import pytest
import torch

from gravac.compressors.dense import divide

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("wire", [torch.float16, torch.bfloat16], ids=str)
def test_a_share_is_the_same_in_either_order(world: int, wire: torch.dtype) -> None:
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(world)) * torch.logspace(-3, 3, 100_000)
    kept = x.clone()
    assert torch.equal(divide(x, world, wire), (x / world).to(wire))
    assert torch.equal(x, kept)


def test_a_share_of_what_float16_cannot_hold_may_still_fit() -> None:
    assert torch.isfinite(divide(torch.tensor([1e5]), 2, torch.float16)).all()
