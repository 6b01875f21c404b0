# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run that may make outer steps gets candidates of them on its own, once it has timed some steps."""

import torch

from gravac import AdaptiveCompressor
from gravac.candidate import Candidate
from gravac.engine.decisions import COMPUTE_STEPS, SETTLING
from gravac.telemetry.records import ForecastsRecord, Record, RunRecord
from tests.distributed.training import batch, network, parallel
from tests.ranks import processes

STEPS = 4 * (COMPUTE_STEPS + SETTLING)
"""More than the candidates of outer steps need, whatever stretches of native steps are made before."""


def candidates_of(rank: int, world: int, native: bool) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Train as a user does; return the candidates of the first step, those announced later, and those of the end."""
    ddp = parallel(network(2))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    first: list[Candidate] = []
    later: list[Candidate] = []

    def sink(record: Record) -> None:
        if isinstance(record, RunRecord):
            first.extend(forecast.candidate for forecast in record.forecasts)
        elif isinstance(record, ForecastsRecord):
            later.extend(forecast.candidate for forecast in record.forecasts)

    compressor = AdaptiveCompressor(every=(1, 100), native=native, sinks=[sink])
    compressor.attach(ddp, optimizer)
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    compressor.synchronize()
    last = [*compressor._engine.deciding.candidates]
    compressor.close()
    return first, later, last


def candidates_by_native(rank: int, world: int) -> dict[bool, tuple[list[Candidate], ...]]:
    return {native: candidates_of(rank, world, native) for native in (False, True)}


def test_outer_steps_become_candidates_of_an_adaptive_run() -> None:
    by_rank = processes(candidates_by_native, 2)
    for native in (False, True):
        (first, later, last), *others = (found[native] for found in by_rank)
        assert first and "outer" not in {candidate.mode for candidate in first}
        assert {"hook", "outer"} <= {candidate.mode for candidate in later}
        assert later == last
        assert all(candidates == last for *_, candidates in others)
