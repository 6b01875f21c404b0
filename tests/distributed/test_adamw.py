# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The default with AdamW: no method whose lost progress raised the loss of such a run, on real gloo."""

import torch

from gravac.engine.admission import LEAST_HOOK_EFFICIENCY
from gravac.telemetry.records import Record, RunRecord
from tests.distributed.training import parallel, train
from tests.policies import adaptive
from tests.ranks import processes


def candidates_with_adamw(rank: int, world: int) -> list[tuple[str, float]]:
    """Train a few steps by default; return method and lower bound of efficiency of each hook candidate, on rank 0."""
    records: list[Record] = []
    ddp = parallel()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    compressor = adaptive(dense_below=0, sinks=[records.append])
    compressor.attach(ddp, optimizer)
    train(ddp, optimizer, rank, range(12))
    compressor.close()
    runs = [record for record in records if isinstance(record, RunRecord)]
    return [(f.method, f.least_efficiency) for run in runs for f in run.forecasts if f.candidate.mode == "hook"]


def test_the_default_does_not_choose_low_rank_2_for_adamw() -> None:
    candidates, _ = processes(candidates_with_adamw, 2)
    methods = {method for method, _ in candidates}
    assert "low rank 4" in methods and "low rank 2" not in methods
    assert min(bound for _, bound in candidates) >= LEAST_HOOK_EFFICIENCY
