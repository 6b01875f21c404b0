# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac takes of a GPU's memory: what is followed, what is kept, and that coding a group is bounded."""

from typing import Any

import pytest
import torch

from gravac import Compressor, powersgd, quantize, topk
from gravac.stepping.coalescing import LARGEST, TEMPORARIES
from tests.device.steps import steps
from tests.device.storages import Storages

MANY = 6
"""Tensors of a model, each as large as a part may be."""


def test_storages_are_counted_as_long_as_they_live_and_views_are_not() -> None:
    with Storages("cpu") as storages:
        x = torch.zeros(1000)
        y = x.view(10, 100)[2:]
        assert storages.live == 4000
        x = x + 1
        assert storages.live == 8000
        del y
        assert storages.live == 4000
        x.abs().add(1)
        assert storages.live == 4000
        assert storages.peak == 12000
        storages.begin()
        x.mul_(2)
        storages.end()
    assert storages.peak == storages.kept == 4000


def taken(base: Compressor, cf: float, **settings: Any) -> tuple[float, float]:
    """Bytes for each parameter, beside its gradient, between steps and at most in one; one bucket holds them all."""
    storages = Storages("npy")
    steps(base, {str(n): (256, LARGEST // 256) for n in range(MANY)}, cf=cf, apart=False, storages=storages, **settings)
    return storages.kept / (MANY * LARGEST) - 4, storages.peak / (MANY * LARGEST) - 4


@pytest.mark.parametrize(("base", "cf"), [(quantize(4), 8), (topk, 100), (powersgd(4), 128)], ids=repr)
def test_one_bucket_of_a_whole_model_is_coded_in_bounded_memory(base: Compressor, cf: float) -> None:
    kept, most = taken(base, cf)
    assert (most - kept) * MANY * LARGEST < TEMPORARIES
    assert kept == pytest.approx(0 if base.name == "quantize" else 4, abs=0.1)


def test_a_second_copy_of_residuals_is_kept_under_overflow_safety_alone() -> None:
    kept, _ = taken(topk, 100, overflow_safety=True)
    assert kept == pytest.approx(8, abs=0.01)
