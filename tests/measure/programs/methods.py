# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods that programs on links are trained by, and what a run with gravac reports at its end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gravac import AdaptiveCompressor
from gravac.beliefs import Beliefs, read_beliefs, shipped_beliefs
from gravac.telemetry.records import DecisionRecord, ModeRecord, ProgressRecord, Record, RunRecord

FLOAT32, FLOAT16, HOOK, OUTER, ADAPTIVE = "float32", "float16", "hook", "outer, every 10", "adaptive"
CAREFUL = "least_efficiency=0.98"
BFLOAT16 = "bfloat16"
"""torch's own exchange of a model in shards, reduced in bfloat16 within a replica and over the replicas."""

MISLED = "adaptive, believing too much"
"""``ADAPTIVE`` with ``believing_too_much``."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    HOOK: {"native": False},
    OUTER: {"every": 10},
    ADAPTIVE: {"every": (1, 100)},
    CAREFUL: {"every": (1, 100), "least_efficiency": 0.98},
    MISLED: {"every": (1, 100)},
}
"""Settings of ``AdaptiveCompressor`` by method; the others are DistributedDataParallel without and with float16."""

PROBING = (ADAPTIVE, CAREFUL, MISLED)
"""Methods that are given a probe."""


def believing_too_much() -> Beliefs:
    """Return the beliefs that ship, with the medians of outer steps that gravac shipped before: 0.99 every 10 steps."""
    before = read_beliefs(Path(__file__).parents[1] / "beliefs_before.json")
    return shipped_beliefs()(outer=before.outer, delay=before.delay, delay_every=before.delay_every)


class RunReport:
    """A sink that keeps beliefs, decisions, changes of mode and results of switchback trials."""

    def __init__(self) -> None:
        self._beliefs: dict[str, tuple[float, float, float]] = {}
        self._turns: list[Any] = []
        self._changes: list[Any] = []
        self._progress: list[Any] = []

    def __call__(self, record: Record) -> None:
        """Keep a decision that changes anything, a change of mode, results of trials, or the beliefs at the start."""
        if isinstance(record, RunRecord):
            for forecast in record.forecasts:
                self._beliefs[str(forecast.candidate)] = forecast.belief.band
        elif isinstance(record, DecisionRecord) and record.changed:
            candidate = f"{record.mode}, {record.compressor} {record.cf:g}, every {record.every}, delay {record.delay}"
            self._turns.append([record.step, candidate, record.phase, record.reason])
        elif isinstance(record, ModeRecord):
            self._changes.append([record.step, record.before, record.after, record.seconds, record.wire_bytes])
        elif isinstance(record, ProgressRecord):
            numbers = (record.ratio, record.error, record.trials, record.efficiency, record.low, record.high)
            self._progress.append([record.step, str(record.candidate), str(record.reference), *numbers])

    def as_plain(self, compressor: AdaptiveCompressor) -> dict[str, Any]:
        """Return the report as plain values. Called on every rank."""
        last = compressor.history[-1] if compressor.history else None
        return {
            "beliefs": {name: self._beliefs[name] for _, name, *_ in self._progress if name in self._beliefs},
            "turns": self._turns,
            "changes": self._changes,
            "progress": self._progress,
            "mode": compressor.mode,
            "wire_ratio": compressor.wire_ratio,
            "reason": "" if last is None else last.reason,
        }
