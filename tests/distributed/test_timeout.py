# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank that stalls: the others stop at the process group's own timeout, and say at what."""

import datetime
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.group import private_group, timeout_of
from tests.distributed.training import batch, network
from tests.ranks import processes

SHORT = datetime.timedelta(seconds=3)
STALLS_AT = 4


def stalled(rank: int, world: int, cf: float, subgroup: bool, folder: Path) -> str:
    """What ``backward()`` raises; the last rank stalls until all others have raised."""
    group = dist.new_group(list(range(world)), timeout=SHORT) if subgroup else None
    if not subgroup:
        dist.distributed_c10d._set_pg_timeout(SHORT)
    ddp = DistributedDataParallel(network(2), process_group=group, bucket_cap_mb=0.03)
    compressor = AdaptiveCompressor(topk, controller=Static(cf=cf))
    compressor.attach(ddp)
    try:
        for step in range(STALLS_AT + 2):
            if rank == world - 1 and step == STALLS_AT:
                while len(list(folder.iterdir())) < world - 1:
                    time.sleep(0.05)
            ddp(batch(rank, step)[0]).square().mean().backward()
            compressor._engine.drain()
        return "nothing"
    except RuntimeError as failure:
        return str(failure)
    finally:
        (folder / str(rank)).touch()
        compressor.close()


@pytest.mark.parametrize(
    ("cf", "subgroup"), [(1, False), (10, True), pytest.param(10, False, marks=pytest.mark.long)], ids=str
)
def test_after_the_groups_timeout_backward_raises_on_every_living_rank(
    cf: float, subgroup: bool, tmp_path: Path
) -> None:
    for rank, said in enumerate(processes(stalled, 3, cf, subgroup, tmp_path)):
        assert "gravac: step 4" in said
        assert f"rank {rank} of 3 got no answer" in said
        assert "timeout of 3 s" in said
        exchanges = "elements)", "agreement on the step before", "the ranks' checksums of weights"
        assert any(exchange in said for exchange in exchanges)


def inherited(rank: int, world: int) -> list[float | None]:
    apart = dist.new_group(list(range(world)), timeout=datetime.timedelta(seconds=70))
    other = dist.new_group(list(range(world)))
    assert isinstance(apart, dist.ProcessGroup)
    assert isinstance(other, dist.ProcessGroup)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=90))
    found = [timeout_of(private_group(one)) for one in (apart, other, None)]
    torch.manual_seed(0)
    return [None if one is None else one.total_seconds() for one in found]


def test_the_exchanges_own_group_inherits_the_timeout_of_the_users() -> None:
    for found in processes(inherited, 2):
        assert found == [70, 1800, 90]
