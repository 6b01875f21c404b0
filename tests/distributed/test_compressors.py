# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Every compressor on real gloo: three processes, several buckets, random delays; and against the ranks in memory."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, Static
from gravac.averaging.in_memory import exchange
from gravac.candidate import Span
from gravac.compressors import COMPRESSORS, Compressor, Context, dgc, quantize, thc, topkc
from gravac.compressors.sparse import as_dense
from gravac.exchange.fuse import fuse
from gravac.exchange.group import GroupTransport
from tests.distributed.training import jitter, network, parallel, train, weights
from tests.policies import adaptive
from tests.ranks import processes

WORLD = 3

VARIANTS = (
    *(compressor for name, compressor in COMPRESSORS.items() if name != "dense"),
    topkc(values=quantize(4)),
    quantize(2, rotate=True),
    quantize(4, exchange="gather"),
    thc(exchange="lanes"),
)


def cf_of(compressor: Compressor) -> float:
    reach = compressor.candidates((1.0, 1000.0))
    return 10.0 if isinstance(reach, Span) else reach[-1]


def gradients() -> list[torch.Tensor]:
    """Rows of clearly different size: which are chosen must not hang on the order of a 16-bit sum."""
    sizes = torch.logspace(0, -2, 40).unsqueeze(1)
    return [torch.randn(40, 33, generator=torch.Generator().manual_seed(seed)) * sizes for seed in range(WORLD)]


def alone(rank: int, compressor: Compressor) -> tuple[torch.Tensor, torch.Tensor]:
    """One tensor over the process group; mean, sent."""
    transport = GroupTransport(dist.group.WORLD)  # type: ignore[arg-type]
    x = gradients()[rank]
    rounds = compressor.rounds(x.view(-1), cf_of(compressor), Context("w", 0, rank, WORLD, 0, (40, 33)))
    job = fuse([rounds])
    requests = next(job)
    while True:
        try:
            requests = job.send(transport.finish(transport.launch(requests)))
        except StopIteration as done:
            (came,) = done.value.reduced
            return as_dense(came.mean, x), as_dense(came.sent, x)


def every(rank: int, world: int) -> list[Any]:
    """Each compressor in turn: one tensor, then a model trained for some steps."""
    results = []
    for compressor in VARIANTS:
        means = alone(rank, compressor)
        ddp = parallel(network(5))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02)
        with adaptive(compressor, cf_range=(1, 1000), controller=Static(cf=cf_of(compressor)), dense_below=64) as made:
            made.attach(ddp, optimizer)
            jitter(made, rank, 0.002)
            train(ddp, optimizer, rank, range(3))
            made.state_dict()
            results.append((*means, weights(ddp), len(made._attachment.source.layout.fixed_groups), made.gain))
    return results


@pytest.fixture(scope="module")
def ran() -> list[list[Any]]:
    return processes(every, WORLD, timeout=250)


@pytest.mark.parametrize("position", range(len(VARIANTS)), ids=[repr(c) for c in VARIANTS])
def test_three_processes_agree_with_three_ranks_in_memory(ran: list[list[Any]], position: int) -> None:
    expected = exchange(VARIANTS[position], gradients(), cf_of(VARIANTS[position]))
    for rank in range(WORLD):
        mean, sent, trained, groups, gain = ran[rank][position]
        x = gradients()[0]
        assert torch.allclose(mean, as_dense(expected[rank].mean, x), rtol=0, atol=0.02), "mean"
        assert torch.allclose(sent, as_dense(expected[rank].sent, x), rtol=0, atol=0.02), "sent"
        assert torch.equal(mean, ran[0][position][0])
        assert torch.equal(trained, ran[0][position][2]), "replicas differ"
        assert bool(trained.isfinite().all())
        assert groups >= 5
        assert gain is not None


def doubled(rank: int, world: int) -> list[str]:
    said = []
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p)):
        ddp = parallel()
        with AdaptiveCompressor(dgc, cf_range=(1, 100)) as compressor:
            try:
                compressor.attach(ddp, make(ddp.parameters()))
            except ValueError as error:
                said.append(str(error))
    return said


def test_momentum_that_would_be_doubled_is_refused() -> None:
    for sgd, adam in processes(doubled, 2):
        assert "SGD has momentum=0.9, but dgc applies momentum itself" in sgd
        assert "AdamW has betas[0]=0.9" in adam
