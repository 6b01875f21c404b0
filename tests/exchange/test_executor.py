# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Jobs that every executor runs: sums over all ranks, and whether numbers are finite on all of them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gravac.exchange.executor import Round, everywhere, sums_over_all
from gravac.exchange.lockstep import Lockstep
from gravac.exchange.reading import AT_ONCE

SHARDS: Any = SimpleNamespace(world=2, agree_world=4, vector=AT_ONCE.vector)
"""Executor of a rank that averages with one other, and agrees with three."""


@pytest.mark.parametrize(("own", "others", "expected"), [(True, 3, True), (True, 2, False), (False, 3, False)])
def test_a_flag_is_true_if_it_is_on_all_ranks(own: bool, others: int, expected: bool) -> None:
    job = everywhere(SHARDS, torch.tensor(own))
    asked = next(job)
    assert isinstance(asked, Round)
    assert asked.over_all and not asked.last
    (request,) = asked
    with pytest.raises(StopIteration) as end:
        job.send([request.tensor + others])  # type: ignore[union-attr]
    assert bool(end.value.value) == expected


def test_what_was_not_checked_counts_as_finite_on_other_shards() -> None:
    job = everywhere(SHARDS, None)
    (request,) = next(job)
    with pytest.raises(StopIteration) as end:
        job.send([request.tensor + 3])  # type: ignore[union-attr]
    assert bool(end.value.value)


@pytest.mark.parametrize("executor", [None, SimpleNamespace(world=2, agree_world=2)])
def test_ranks_that_average_with_all_others_ask_nobody(executor: Any) -> None:
    flag = torch.tensor(False)
    with pytest.raises(StopIteration) as end:
        next(everywhere(executor, flag))
    assert end.value.value is flag


@pytest.mark.parametrize("host_looks", [True, False])
def test_vectors_are_summed_over_all_ranks_in_float64(host_looks: bool) -> None:
    lockstep = Lockstep(3, host_looks)
    futures = [
        executor.submit(sums_over_all(executor, [[1.0, torch.tensor(1e-12)], [float(executor.rank)]]))
        for executor in lockstep.executors
    ]
    lockstep.run()
    for future in futures:
        first, second = (sums.read() for sums in future.result(timeout=0))
        assert first == pytest.approx([3.0, 3e-12], rel=1e-6)
        assert second == [3.0]
