# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""16 bit as a candidate of its own, on real gloo: from dense over 16 bit to the base and back, nothing is lost."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import pytest
import torch

from gravac import AdaptiveCompressor, topk
from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers import Decision, Measurement
from gravac.settings import Settings
from gravac.telemetry.records import Record, StepRecord
from tests.distributed.training import batch, network, parallel, sgd, weights
from tests.ranks import processes

EACH = 4
"""Steps of a candidate."""

PATH = (0, 1, 2, 1, 0)
"""Positions: dense, 16 bit, top-k, and back."""

State = tuple[tuple[Candidate, ...], int]


class Scripted(Settings):
    """Runs ``PATH``."""

    name: ClassVar[str] = "scripted"
    keeps_all: ClassVar[bool] = False
    chooses_sixteen_bit: ClassVar[bool] = True

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        return (10.0,)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[State, Decision]:
        candidates = tuple(forecast.candidate for forecast in forecasts)
        return (candidates, 0), Decision(candidates[0], reason="start")

    def observe(self, state: State, measurement: Measurement) -> tuple[State, Decision]:
        candidates, step = state
        assert step == measurement.step
        return (candidates, step + 1), self._at(candidates, step + 2)

    def dump(self, state: State) -> dict[str, Any]:
        return {"step": state[1]}

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[State, Decision]:
        step, candidates = plain["step"], tuple(forecast.candidate for forecast in forecasts)
        return (candidates, step), self._at(candidates, step + 1 if step else 0)

    def _at(self, candidates: Sequence[Candidate], step: int) -> Decision:
        return Decision(candidates[PATH[min(step // EACH, len(PATH) - 1)]])


def there_and_back(rank: int, world: int, resumed: bool) -> dict[str, Any]:
    """Trains, by halves where ``resumed``; what was applied, what this rank's gradients were, and what is kept."""
    records: list[Record] = []

    def made() -> AdaptiveCompressor:
        return AdaptiveCompressor(topk, controller=Scripted(), sinks=[records.append])

    ddp, compressor = parallel(network(2)), made()
    optimizer = sgd(ddp)
    compressor.attach(ddp, optimizer)
    alone = copy.deepcopy(ddp.module)
    applied = terms = own = torch.zeros(())
    for step in range(EACH * len(PATH)):
        if resumed and step == EACH + 2:
            state, trained = copy.deepcopy(compressor.state_dict()), ddp.module
            compressor.close()
            ddp, compressor = parallel(trained), made()
            compressor.attach(ddp, optimizer)
            compressor.load_state_dict(state)
        alone.load_state_dict(ddp.module.state_dict())
        x, y = batch(rank, step)
        optimizer.zero_grad()
        alone.zero_grad()
        torch.nn.functional.cross_entropy(alone(x), y).backward()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        mine = torch.cat([p.grad.flatten().double() for p in alone.parameters() if p.grad is not None])
        total = torch.cat([p.grad.flatten().double() for p in ddp.parameters() if p.grad is not None])
        own, terms, applied = own + mine, terms + mine.abs(), applied + total
        optimizer.step()
    kept = compressor.state_dict()
    compressor.close()
    return {
        "weights": weights(ddp),
        "own": own,
        "terms": terms,
        "applied": applied,
        "kept": float(sum(r.double().norm() for r in kept["residual"].values())),
        "ran": [asdict(record) for record in records if isinstance(record, StepRecord)],
        "candidates": [str(candidate) for candidate in compressor._engine.deciding.candidates],
        "predicted": [forecast.wire_ratio for forecast in compressor._engine.deciding.forecasts],
    }


@pytest.mark.parametrize(
    "resumed", [pytest.param(False, marks=pytest.mark.long, id="straight"), pytest.param(True, id="resumed in 16 bit")]
)
def test_from_dense_over_16_bit_to_the_base_and_back(resumed: bool) -> None:
    ranks = processes(there_and_back, 3, resumed)
    first = ranks[0]
    assert first["candidates"][:2] == ["dense float32", "dense bfloat16"]
    assert first["candidates"][2].startswith("topk 10x (")
    assert all(torch.equal(first["weights"], other["weights"]) for other in ranks)
    assert all(torch.equal(first["applied"], other["applied"]) for other in ranks)

    # all residuals have left again, so what was applied is the sum of mean gradients, rounded to 16 bit on its way
    assert all(one["kept"] == 0 for one in ranks)
    wanted, terms = (sum(one[name] for one in ranks) / 3 for name in ("own", "terms"))
    assert bool(((first["applied"] - wanted).abs() <= 2 * 3 * 2**-8 * terms + 1e-6).all())

    ran = [(step["compressor"], step["cf"]) for step in first["ran"]]
    path = [one for one, _ in itertools.groupby(ran)]
    assert path == [("dense", 1), ("dense", 2), ("topk", 10), ("dense", 2), ("dense", 1)]
    ratios = dict(zip([("dense", 1), ("dense", 2), ("topk", 10)], first["predicted"], strict=True))
    for step, what in zip(first["ran"], ran, strict=True):
        assert step["wire_ratio"] == pytest.approx(ratios[what], rel=0.01)
        if step["compressor"] == "dense":
            assert step["gain"] == pytest.approx(1, abs=1e-6)
