# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A recorded run tells how often ranks may exchange, and what each number of steps is worth."""

from pathlib import Path
from typing import Any

from gravac import Goodput, topk
from gravac.candidate import Candidate, Forecast
from gravac.modes.outer.candidates import outer_efficiency
from gravac.telemetry import RunRecord, read_jsonl
from tests.outer.ranks import Ranks


def record(folder: Path, steps: int, ranks: int = 2, **settings: Any) -> RunRecord:
    search = Goodput(window=5, trial=5)
    trained = Ranks(ranks, clock=0.01, base=topk, cf_range=(2, 64), controller=search, log_dir=folder, **settings)
    trained.train(steps)
    trained.outer[0].close()
    return next(record for record in read_jsonl(folder / "gravac.jsonl") if isinstance(record, RunRecord))


def test_a_run_tells_when_it_exchanges(tmp_path: Path) -> None:
    run = record(tmp_path / "often", 120, every=(1, 5))
    settings = run.settings
    assert settings["every"] == "(1, 5)"
    assert (settings["outer.delay"], settings["outer.mixing"]) == (0, 0.5)
    assert {forecast.candidate.every for forecast in run.forecasts} == {1, 2, 5}
    assert {forecast.candidate.every for forecast in record(tmp_path / "always", 8, every=1).forecasts} == {1}


def test_what_runs_goes_by_the_number_of_ranks(tmp_path: Path) -> None:
    run = record(tmp_path, 12, 4, every=(1, 10))
    dense = {forecast.candidate.every: forecast.efficiency for forecast in run.forecasts if forecast.candidate.dense}
    assert dense == {
        every: outer_efficiency(Forecast(Candidate("hook", "dense", 1.0), 1.0), every, world=4).efficiency
        for every in (1, 2, 5, 10)
    }
