# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a run on one rank, which steps read and change; ``dump`` returns it for a checkpoint."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from gravac.candidate import Candidate
from gravac.engine.factors import Factors
from gravac.exchange.executor import Number
from gravac.measurement import LocalMeasurement
from gravac.telemetry.records import DecisionRecord

Tensors = dict[str, torch.Tensor]
"""Tensors by parameter name."""

Groups = tuple[tuple[str, ...], ...]
"""Exchange groups: for each group, the names of the parameters that are exchanged together, in order."""


class ModeState(Protocol):
    """State that only one mode of running steps has, such as the anchors of outer steps."""

    def dump(self) -> dict[str, Any]:
        """Return the state as a dict of tensors and JSON types."""


@dataclass(slots=True)
class RunTotals:
    """Totals of bytes and steps over a run, on this rank.

    A checkpoint contains the bytes, which therefore count all steps of the run. It does not contain ``steps_at``.

    Attributes:
        wire_bytes: bytes that this rank sent for gradients.
        dense_wire_bytes: bytes that this rank would have sent by dense float32 all-reduces.
        norm_bytes: bytes that this rank handed to collectives for norms of single tensors, which some controllers
            request; not part of ``wire_bytes``.
        steps_at: number of training steps that each candidate ran, since this process started or restored the run.
    """

    wire_bytes: int = 0
    dense_wire_bytes: int = 0
    norm_bytes: int = 0
    steps_at: dict[Candidate, int] = field(default_factory=dict)

    def add(self, measurement: LocalMeasurement) -> None:
        """Add a step's bytes and number of training steps to the totals."""
        self.wire_bytes += measurement.wire_bytes
        self.dense_wire_bytes += measurement.dense_wire_bytes
        self.steps_at[measurement.candidate] = self.steps_at.get(measurement.candidate, 0) + measurement.steps


@dataclass(slots=True)
class NativeState:
    """State of a stretch: consecutive native steps, in which DDP exchanges by itself, and which gravac times together.

    Attributes:
        made: number of training steps made in the current stretch.
        travels: whether the ranks' times of the previous stretch are being summed, so that the controller has not
            decided by them yet.
        uncounted: whether a step has been made that ``made`` does not include yet.
    """

    made: int = 0
    travels: bool = False
    uncounted: bool = False


@dataclass(slots=True, eq=False)
class RunState:
    """State of a run on one rank, after all steps made so far.

    These fields differ between ranks: ``rank``, ``pending``, tensors, ``wire_ratio``, the bytes in ``totals``, and
    ``outer``. All other fields are the same on all ranks.

    A step of the engine covers one training step, or several: a round of outer steps, or a stretch of native steps.

    Attributes:
        step: number of the engine's steps made.
        trained: number of training steps made.
        covered: number of training steps that the engine's present step covers; 1 between two steps.
        rank: number of this rank among the ranks that average.
        world: number of ranks that average.
        candidate: candidate of the last step; ``None`` before the first.
        factors: compression factors of the last step.
        controller: state of the controller; ``None`` before the first step.
        pending: measurements that the ranks have not agreed on yet, oldest first; at most as many as the executor's
            latency.
        residual: unsent part of each parameter's gradients, flat, by parameter name; see
            ``gravac.averaging.residuals``.
        memory: tensors that the compressor keeps from step to step, by parameter name, then by the compressor's own
            key.
        sums: sums of gradients over steps, flat, by parameter name, if the controller requested them
            (``Decision.sums``).
        loss_scale: factor that the last gradients were multiplied with; a 0-d tensor if only the device knows it;
            ``None`` without a scaler.
        layout: exchange groups; empty before they are known.
        gain: gain of the last step that all ranks agreed on; ``None`` if there was none yet, or if it was not finite.
        wire_ratio: bytes of a dense float32 all-reduce / bytes that this rank sent, in the last step that all ranks
            agreed on; ``None`` if there was none yet.
        totals: sums of bytes over all steps, and number of training steps of each candidate.
        history: the newest decision records; the run's setting ``history`` limits their number.
        compute_s: seconds of a training step without exchange, mean over ranks; ``None``: not known. The engine's
            caller may set this number before the first step, the same on all ranks.
        candidates: identity of each candidate of the controller: the list that
            ``gravac.controllers.state_dicts.identify`` returns; empty before the first step.
        native: state of the current stretch of native steps. This object is never replaced, since
            ``gravac.modes.native`` also refers to it.
        outer: state of outer steps; ``None`` without outer steps.
    """

    step: int = 0
    trained: int = 0
    covered: int = 1
    rank: int = 0
    world: int = 1
    candidate: Candidate | None = None
    factors: Factors = field(default_factory=Factors)
    controller: Any = None
    pending: list[LocalMeasurement] = field(default_factory=list)
    residual: Tensors = field(default_factory=dict)
    memory: dict[str, Tensors] = field(default_factory=dict)
    sums: Tensors = field(default_factory=dict)
    loss_scale: Number | None = None
    layout: Groups = ()
    gain: float | None = None
    wire_ratio: float | None = None
    totals: RunTotals = field(default_factory=RunTotals)
    history: list[DecisionRecord] = field(default_factory=list)
    compute_s: float | None = None
    candidates: list[list[str | float]] = field(default_factory=list)
    native: NativeState = field(default_factory=NativeState)
    outer: ModeState | None = None

    @property
    def training_step(self) -> int:
        """Number of the present training step, counted from 0; the last one that the engine's present step covers."""
        return self.trained + self.covered - 1

    def dump(self) -> dict[str, Any]:
        """Return the state as a dict of JSON types and tensors (not copies), without the controller's state.

        The host waits for numbers that only the device knows. Measurements that were not converted to numbers yet are
        left out; there are such measurements only if the exchange failed.
        """
        totals = self.totals
        return {
            "step": self.step,
            "trained": self.trained,
            "rank": self.rank,
            "world": self.world,
            "candidate": None if self.candidate is None else asdict(self.candidate),
            "factors": {"cf": self.factors.cf, "cfs": dict(self.factors.cfs)},
            "pending": [measurement.dump() for measurement in self.pending if measurement.numbers],
            "residual": dict(self.residual),
            "memory": {name: dict(memory) for name, memory in self.memory.items() if memory},
            "sums": dict(self.sums),
            "loss_scale": None if self.loss_scale is None else float(self.loss_scale),
            "layout": [list(names) for names in self.layout],
            "gain": self.gain,
            "totals": {name: getattr(totals, name) for name in ("wire_bytes", "dense_wire_bytes", "norm_bytes")},
            "history": [asdict(record) for record in self.history],
            "compute_s": self.compute_s,
            "candidates": [[*identity] for identity in self.candidates],
            "native": asdict(self.native),
            "outer": None if self.outer is None else self.outer.dump(),
        }

    def restore(self, dumped: Mapping[str, Any]) -> None:
        """Restore the fields of a dumped state; ``rank``, ``world``, tensors and ``outer`` do not change."""
        self.step, self.trained = dumped["step"], dumped["trained"]
        self.loss_scale, self.gain = dumped["loss_scale"], dumped["gain"]
        self.candidate = None if dumped["candidate"] is None else Candidate(**dumped["candidate"])
        self.factors = Factors(dumped["factors"]["cf"], dumped["factors"]["cfs"])
        self.pending = [LocalMeasurement.load(measurement) for measurement in dumped["pending"]]
        self.layout = tuple(tuple(names) for names in dumped["layout"])
        self.totals = RunTotals(**dumped["totals"])
        self.history = [DecisionRecord(**record) for record in dumped["history"]]
        self.compute_s = dumped["compute_s"]
        for name, number in dumped["native"].items():
            setattr(self.native, name, number)
        self.candidates = [[*identity] for identity in dumped["candidates"]]
