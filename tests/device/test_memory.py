# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac takes of a GPU's memory: what is followed, what is kept, and that coding a group is bounded."""

from typing import Any

import pytest
import torch

from gravac import Compressor, dgc, powersgd, quantize, topk, topkc
from gravac.engine.coalescing import MAX_CODING_BYTES, MAX_SEGMENT_ELEMENTS
from tests.device.steps import steps
from tests.device.storages import Storages

MANY = 6
"""Tensors of a model, each as large as a part may be."""

SMALL = 4
"""Tensors in place of each, where they are small."""


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


def taken(base: Compressor, cf: float, small: int = 1, **settings: Any) -> tuple[float, float]:
    """Bytes for each parameter, beside its gradient, between steps and at most in one; one bucket holds them all."""
    storages = Storages("npy")
    shapes = {str(n): (256, MAX_SEGMENT_ELEMENTS // small // 256) for n in range(MANY * small)}
    steps(base, shapes, cf=cf, apart=False, storages=storages, **settings)
    return storages.kept / (MANY * MAX_SEGMENT_ELEMENTS) - 4, storages.peak / (MANY * MAX_SEGMENT_ELEMENTS) - 4


@pytest.mark.parametrize("small", [1, pytest.param(SMALL, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("base", "cf"),
    [
        *((quantize(bits), 32 / bits) for bits in (8, 1)),
        *((topk, cf) for cf in (10, 100)),
        *((topkc, cf) for cf in (2, 100)),
        (topkc(values=quantize(1)), 2),
        (powersgd(4), 128),
        (powersgd, 2),
    ],
    ids=repr,
)
def test_one_bucket_of_a_whole_model_is_coded_in_bounded_memory(base: Compressor, cf: float, small: int) -> None:
    kept, most = taken(base, cf, small)
    assert (most - kept) * MANY * MAX_SEGMENT_ELEMENTS < MAX_CODING_BYTES
    assert kept == pytest.approx(0 if base.name == "quantize" else 4, abs=2)


def test_memories_of_a_compressor_are_there_once() -> None:
    kept, most = taken(dgc, 100)
    assert kept == pytest.approx(8, abs=0.01)
    assert (most - kept) * MANY * MAX_SEGMENT_ELEMENTS < MAX_CODING_BYTES


@pytest.mark.parametrize("small", [1, SMALL])
def test_a_second_copy_of_residuals_is_there_within_a_step_under_overflow_safety_alone(small: int) -> None:
    kept, most = taken(topk, 100, small, overflow_safety=True)
    assert kept == pytest.approx(4, abs=0.01)
    assert (most - kept - 4) * MANY * MAX_SEGMENT_ELEMENTS < MAX_CODING_BYTES
