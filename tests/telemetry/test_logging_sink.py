# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Python's logging: what rank 0 writes of a run without a log_dir, and that no handler of the user's breaks a step."""

import logging
from collections.abc import Callable

import pytest
import torch

from gravac import AdaptiveCompressor, topk
from gravac.candidate import Candidate
from gravac.controllers import Warmup
from gravac.exchange.lockstep import Lockstep
from gravac.telemetry.logging_sink import LOGGER, LoggingSink
from gravac.telemetry.records import DecisionRecord, ModeRecord

STEPS = 16


def trained(close: Callable[[AdaptiveCompressor], None] = AdaptiveCompressor.close) -> list[AdaptiveCompressor]:
    """Two ranks in memory whose CF rises once, closed in the order of ranks."""
    lockstep = Lockstep(2, seconds=0.001)
    controller = Warmup(first=4, cf=16, every=6, window=2)
    compressors = [AdaptiveCompressor(topk, (2, 100), controller=controller) for _ in range(2)]
    engines = [
        compressor.attach_parameters({"w": torch.ones(64, 64)}, executor=executor)
        for compressor, executor in zip(compressors, lockstep.executors, strict=True)
    ]
    for _ in range(STEPS):
        handles = []
        for engine in engines:
            engine.begin()
            handles.append(engine.ready([("w", torch.ones(64, 64))]))
            engine.end()
        lockstep.run()
        for handle in handles:
            handle.wait()
    for compressor in compressors:
        close(compressor)
    return compressors


def test_rank_0_logs_changes_and_the_end_at_info_and_other_decisions_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="gravac"):
        history = trained()[0].history
    lines = {level: [r.getMessage() for r in caplog.records if r.levelno == level] for level in (10, 20)}
    assert {record.name for record in caplog.records} == {"gravac"}
    note, *changes, end = lines[logging.INFO]
    assert note.startswith("controller 'warmup' runs, as set")
    assert changes == [str(record) for record in history if record.changed]
    assert lines[logging.DEBUG] == [str(record) for record in history if not record.changed] != []
    assert changes[0].startswith(
        "step 0: run topk 4x (2.7x fewer bytes): warm-up: stage 1 of 2, topk 4x (2.7x fewer bytes)"
    )
    assert [line.split(": ")[1].split(" (")[0] for line in changes] == ["run topk 4x", "run topk 16x"]
    assert end.startswith(f"closed after {STEPS} steps: ")
    assert "topk 4x (" in end and "topk 16x (" in end and "; wire ratio " in end
    assert all("\n" not in line for line in (*changes, end))


def test_only_rank_0_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="gravac"):
        trained(close=lambda compressor: None)
        before = len(caplog.records)
        for compressor in trained(close=lambda compressor: None)[1:]:
            compressor.close()
    closed = [record for record in caplog.records if record.getMessage().startswith("closed after")]
    assert before and not closed, "rank 1 has no line of its end"
    firsts = [record for record in caplog.records if record.getMessage().startswith("step 0: ")]
    assert len(firsts) == 2, "one for each run, of rank 0"


def test_gravac_installs_no_handler_and_sets_no_level() -> None:
    trained()
    assert LOGGER.handlers == []
    assert LOGGER.level == logging.NOTSET
    assert LOGGER.propagate


class Raising(logging.Handler):
    """A handler that raises, and does not catch what it raises as a handler should."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise ValueError("boom")


class Failing(logging.Handler):
    """A handler whose ``emit`` fails."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            raise ValueError("boom")
        except ValueError:
            self.handleError(record)


@pytest.mark.parametrize("handler", [Raising(), Failing()], ids=lambda one: type(one).__name__)
def test_a_handler_that_raises_breaks_no_step(handler: logging.Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    monkeypatch.setattr(logging, "raiseExceptions", False)
    LOGGER.setLevel(logging.DEBUG)
    try:
        if isinstance(handler, Raising):
            with pytest.warns(
                UserWarning, match=r"LoggingSink\(\) failed and gets no more records: ValueError\(.boom.\); training"
            ):
                compressors = trained()
        else:
            compressors = trained()
    finally:
        LOGGER.setLevel(logging.NOTSET)
    assert len(compressors[0].history) == len(compressors[1].history) > 2


def test_a_change_of_mode_is_a_line_and_a_reason_of_several_lines_too(caplog: pytest.LogCaptureFixture) -> None:
    sink, candidate = LoggingSink(), Candidate("hook", "topk", 10.0, sends="topk 10x (4.8x fewer bytes)")
    numbers = (None, None, None, None, None)
    with caplog.at_level(logging.INFO, logger="gravac"):
        sink(ModeRecord(8, "native", "hook", 0.002, 0))
        sink(DecisionRecord(8, "topk", 10.0, True, *numbers, "", "first\nsecond", sends=candidate.sends))
    assert [record.getMessage() for record in caplog.records] == [
        "from step 8 on: DDP exchanges by itself → gravac exchanges gradients in each step; the change took 2 ms",
        "step 8: run topk 10x (4.8x fewer bytes): first second",
    ]
