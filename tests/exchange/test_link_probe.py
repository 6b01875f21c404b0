# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A link is sounded before the first step: alike on all ranks, right, and to some effect."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from gravac import AdaptiveCompressor
from gravac.collectives import AllReduce, Collective
from gravac.exchange.group import GroupTransport
from gravac.exchange.link_probe import LinkProbe, probe_link
from gravac.lab.links.pauses import imitated_link
from tests.distributed.training import parallel, sgd, train
from tests.ranks import processes


class Link:
    """Stands in for a transport of three ranks: an all-reduce takes ``latency`` twice a peer, and its bytes' time."""

    world = 3
    group = None

    def __init__(self, latency: float, rate: float) -> None:
        self.latency, self.rate, self.now = latency, rate, 0.0

    def launch(self, requests: list[Collective]) -> list[Collective]:
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        (asked,) = pending
        self.now += (
            2 * (self.world - 1) * self.latency + 8 * asked.wire_bytes(asked.payload_bytes, self.world) / self.rate
        )
        assert isinstance(asked, AllReduce)
        return [asked.tensor * self.world]


@pytest.mark.parametrize(("latency", "rate"), [(1e-4, 1e6), (1e-3, 1e8), (2e-5, 1e10)])
def test_a_link_is_found_to_be_what_it_is(latency: float, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(latency, rate)
    monkeypatch.setattr("gravac.exchange.link_probe.time", SimpleNamespace(perf_counter=lambda: link.now))
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    found = probe_link(link)  # type: ignore[arg-type]
    assert found is not None
    assert found.latency == pytest.approx(latency, rel=0.02, abs=16 * 8 / rate)  # the least message has its bytes too
    assert found.bandwidth == pytest.approx(rate, rel=0.02)


def sounded(rank: int, world: int, rates: list[float]) -> list[LinkProbe | None]:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    found = []
    for rate in rates:
        with imitated_link(rate):
            found.append(probe_link(GroupTransport(group)))
    return found


def test_a_slow_link_is_found_to_be_no_faster_than_it_is_and_alike_on_every_rank() -> None:
    first, *others = processes(sounded, 3, [1e6, 1e8])
    assert all(other == first for other in others)
    slow, fast = first
    assert slow.bandwidth <= 2e6 and fast.bandwidth <= 2e8  # half of what it took may be put down to latency
    assert min(*slow, *fast) > 0


def of_replicas(rank: int, world: int) -> LinkProbe | None:
    """Averages over pairs whose links differ, agrees over all four."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    everyone = GroupTransport(dist.new_group([0, 1, 2, 3]))  # type: ignore[arg-type]
    with imitated_link((1e6, 1e8)[rank // 2]):
        return probe_link(GroupTransport(pairs[rank // 2]), agreement=everyone)  # type: ignore[arg-type]


def test_groups_that_agree_go_by_the_mean_of_their_links() -> None:
    first, *others = processes(of_replicas, 4)
    assert all(other == first for other in others)
    assert first is not None
    assert first.bandwidth <= 2 * 2 / (1 / 1e6 + 1 / 1e8)  # half of what it took may be put down to latency


def started(rank: int, world: int, rate: float) -> list[Any]:
    ddp = parallel()
    optimizer = sgd(ddp)
    with imitated_link(rate), AdaptiveCompressor() as compressor:
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, range(2))
        return (
            [str(c) for c in compressor._engine.deciding.candidates],
            str(compressor._engine.state.candidate),
            compressor.ledger.wire_bytes,
        )


@pytest.mark.parametrize("rate", [1e6, 1e8])
def test_candidates_know_what_they_should_take_and_a_slow_link_starts_compressed(rate: float) -> None:
    (candidates, ran, sent), other = processes(started, 2, rate)
    assert (candidates, ran, sent) == other
    assert "dense" not in ran or rate > 1e6
    assert sent > 0


def alone(rank: int, world: int) -> LinkProbe | None:
    return sounded(rank, world, [1e7])[0]


def test_one_rank_has_no_link() -> None:
    assert processes(alone, 1) == [None]
