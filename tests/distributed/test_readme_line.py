# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A user's line on two real ranks, by the hook in each step: top-k from 10 to 1000 by GraVAC's rule.

TensorBoard's own reader reads back what it wrote.
"""

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from gravac import AdaptiveCompressor, GraVAC, topk
from gravac.exchange.fifo import Fifo
from gravac.telemetry import DecisionRecord
from tests.distributed.training import network, parallel, sgd, train
from tests.ranks import processes

# TensorBoard has no type hints: a module as a plain value
reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")

STEPS = {None: 91, 5: 51}
"""Training steps by ``window``: enough for the rule to try more than one candidate."""

DEFAULT = GraVAC()
"""What the controller is by its name."""

LATENCY = Fifo.latency

Curve = list[tuple[int, float]]


def trained(rank: int, world: int, log_dir: Path, window: int | None) -> list[DecisionRecord]:
    """Train as a user does who gives no optimizer; return the decisions. Without ``window`` it is the line itself."""
    ddp = parallel(network(2))
    controller = None if window is None else GraVAC(window=window)
    compressor = AdaptiveCompressor(topk, cf_range=(10, 1000), controller=controller, native=False, log_dir=log_dir)
    compressor.attach(ddp)
    train(ddp, sgd(ddp), rank, range(STEPS[window]))
    compressor.close()
    return compressor.history


@pytest.fixture(scope="module", params=[None, 5], ids=["as it stands", "with a window"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[DecisionRecord]]:
    """What rank 0 wrote, as TensorBoard reads it, and the decisions of all ranks."""
    log_dir = tmp_path_factory.mktemp("runs")
    first, other = processes(trained, 2, log_dir, request.param)
    assert first == other
    window = (request.param or DEFAULT.window) + LATENCY  # after a change, steps on their way still run the old one
    assert len(first) >= (STEPS[request.param] - DEFAULT.warmup - LATENCY) // window
    events = reader.EventAccumulator(str(log_dir), size_guidance={"scalars": 0})
    events.Reload()
    for tag in ("gravac/gain_of_steps", "gravac/t_system"):
        assert len(events.Scalars(tag)) >= STEPS[request.param] // 10 - 1
    return events, first


def curve(events: Any, tag: str) -> Curve:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def cf_at(step: int, history: list[DecisionRecord]) -> float:
    """Return the CF that the history says runs in a step."""
    return next(record.cf for record in reversed(history) if record.step <= step)


def test_the_cf_is_dense_16_bit_or_in_the_range_and_is_what_the_history_says(run: tuple[Any, Any]) -> None:
    events, history = run
    trace = curve(events, "gravac/cf")
    assert all(cf in (1, 2) or 10 <= cf <= 1000 for _, cf in trace)
    assert any(cf >= 10 for _, cf in trace), "it compresses"
    assert history[0].step == 0 and history[0].changed
    assert [(step, cf_at(step, history)) for step, _ in trace] == trace
    changes = {record.step: record.cf for record in history[1:] if record.changed and record.step <= trace[-1][0]}
    assert changes, "the rule tried another candidate"
    assert {after: cf for (_, before), (after, cf) in itertools.pairwise(trace) if cf != before} == changes


def test_the_gain_of_each_window_and_step_lies_between_0_and_1(run: tuple[Any, Any]) -> None:
    events, history = run
    gains = curve(events, "gravac/gain")
    expected: list[Any] = [(record.step, pytest.approx(record.gain)) for record in history[1:]]
    assert gains == expected
    steps = curve(events, "gravac/gain_of_steps")
    assert all(0 <= gain <= 1 for _, gain in gains + steps)
    assert any(gain < 1 for _, gain in gains), "something was left out"


def test_system_and_compression_throughput_are_positive(run: tuple[Any, Any]) -> None:
    events, _ = run
    system, compression = curve(events, "gravac/t_system"), curve(events, "gravac/t_compression")
    assert [step for step, _ in system] == [step for step, _ in compression]
    assert all(value > 0 for _, value in system + compression)
    assert all(worth <= speed for (_, worth), (_, speed) in zip(compression, system, strict=True))
