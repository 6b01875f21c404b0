# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The history of decisions is bounded in memory and in checkpoints; a log has all of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, Static, topk
from gravac.engine import decisions
from gravac.engine.engine import Engine
from gravac.exchange.lockstep import Lockstep
from gravac.telemetry.jsonl import read_jsonl
from gravac.telemetry.records import DecisionRecord
from tests.outer.ranks import Ranks


def opened(**settings: Any) -> tuple[AdaptiveCompressor, Engine]:
    """A compressor of one rank, with a record for every step."""
    compressor = AdaptiveCompressor(topk, controller=Static(cf=10, window=1), **settings)
    return compressor, compressor.attach_parameters(
        {"w": torch.ones(64, 64)}, executor=Lockstep(1, seconds=0.001).executors[0]
    )


def train(engine: Engine, steps: int) -> None:
    for _ in range(steps):
        engine.begin()
        handle = engine.ready([("w", torch.ones(64, 64))])
        engine.end()
        handle.wait()


def test_history_and_checkpoints_hold_the_newest_records_and_the_log_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "DECISIONS_KEPT", 3)
    compressor, engine = opened(log_dir=tmp_path)
    train(engine, 12)
    saved = [record["step"] for record in compressor.state_dict()["history"]]
    kept = compressor.history
    compressor.close()
    logged = [record for record in read_jsonl(tmp_path / "gravac.jsonl") if isinstance(record, DecisionRecord)]
    assert len(logged) > 6
    assert [record.step for record in kept] == saved == [record.step for record in logged[-3:]]


def test_a_state_with_a_longer_history_loads_and_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    before, engine = opened()
    train(engine, 12)
    state = before.state_dict()
    assert len(state["history"]) > 6
    monkeypatch.setattr(decisions, "DECISIONS_KEPT", 4)
    after, _ = opened()
    after.load_state_dict(state)
    assert after.history == before.history[-4:]
    assert len(state["history"]) > 6


def test_the_history_of_outer_steps_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "DECISIONS_KEPT", 2)
    ranks = Ranks(2, controller=Static(cf=1, window=1)).train(8)
    assert [record.step for record in ranks.outer[0].history] == [record.step for record in ranks.outer[1].history]
    assert len(ranks.outer[0].history) == 2
    assert len(ranks.outer[0].state_dict()["history"]) == 2
