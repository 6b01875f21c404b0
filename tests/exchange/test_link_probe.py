# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A link is sounded before the first step: alike on all ranks, about right, and to some effect."""

from typing import Any

import pytest
import torch.distributed as dist

from gravac import AdaptiveCompressor
from gravac.exchange.group import GroupTransport
from gravac.exchange.link_probe import LinkProbe, probe_link
from tests.distributed.training import parallel, sgd, train
from tests.ranks import processes


def sounded(rank: int, world: int, paces: list[float]) -> list[LinkProbe | None]:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return [probe_link(GroupTransport(group, pace)) for pace in paces]


def test_a_paced_link_is_found_to_be_no_faster_than_it_is_and_alike_on_every_rank() -> None:
    first, *others = processes(sounded, 3, [1e6, 1e8])
    assert all(other == first for other in others)
    slow, fast = first
    assert slow.bandwidth <= 2e6 and fast.bandwidth <= 2e8  # half of what it took may be put down to latency
    assert slow.bandwidth < fast.bandwidth / 5
    assert min(*slow, *fast) > 0


def started(rank: int, world: int, pace: float) -> list[Any]:
    ddp = parallel()
    optimizer = sgd(ddp)
    with AdaptiveCompressor(pace=pace) as compressor:
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, range(2))
        return [str(c) for c in compressor._steps.candidates], str(compressor._steps.ran), compressor.ledger.wire_bytes


@pytest.mark.parametrize("pace", [1e6, 1e8])
def test_candidates_know_what_they_should_take_and_a_slow_link_starts_compressed(pace: float) -> None:
    (candidates, ran, sent), other = processes(started, 2, pace)
    assert (candidates, ran, sent) == other
    assert "dense" not in ran or pace > 1e6
    assert sent > 0


def alone(rank: int, world: int) -> LinkProbe | None:
    return sounded(rank, world, [1e7])[0]


def test_one_rank_has_no_link() -> None:
    assert processes(alone, 1) == [None]
