# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps that a checkpoint restored refuse a mean that is not finite, as those of a new run do."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from tests.distributed.training import parallel, sgd, train
from tests.policies import adaptive
from tests.ranks import processes


def restored(rank: int, world: int, cf: float) -> tuple[bool, list[str]]:
    """Train, and go on in a new model from the state; then rank 1's weights become NaN in a local step."""

    def attached(state: dict[str, Any] | None) -> tuple[AdaptiveCompressor, DistributedDataParallel, torch.optim.SGD]:
        ddp = parallel()
        optimizer = sgd(ddp)
        compressor = adaptive(topk, controller=Static(cf=cf), every=2, dense_below=0)
        if state is not None:
            compressor.load_state_dict(state)
        compressor.attach(ddp, optimizer)
        return compressor, ddp, optimizer

    compressor, ddp, optimizer = attached(None)
    train(ddp, optimizer, rank, range(6))
    state = compressor.state_dict()
    compressor.close()
    compressor, ddp, optimizer = attached(state)

    def spoil(step: int) -> None:
        if rank == 1 and step == 8:
            with torch.no_grad():
                next(ddp.parameters()).fill_(math.nan)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(ddp, optimizer, rank, range(6, 16), spoil)
        with compressor.shared_weights():
            finite = all(bool(parameter.isfinite().all()) for parameter in ddp.parameters())
    compressor.close()
    return finite, [str(one.message) for one in caught]


@pytest.mark.parametrize("cf", [1.0, 10.0])
def test_a_mean_that_is_not_finite_is_not_applied_after_a_restore(cf: float) -> None:
    for finite, warned in processes(restored, 2, cf):
        assert finite
        assert any("not finite" in text for text in warned)
