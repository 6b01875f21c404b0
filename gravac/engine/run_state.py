# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a run on one rank, which steps read and update. A checkpoint contains its dump."""

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
"""Exchange groups: names of parameters that are exchanged together, in order."""


class ModeState(Protocol):
    """State that only one mode has, such as that of outer steps."""

    def dump(self) -> dict[str, Any]:
        """Return the state as a dict of tensors and JSON types."""


@dataclass(slots=True)
class RunTotals:
    """Totals over the steps of a run, on this rank.

    A checkpoint has the bytes, which therefore count all steps of the run, but not ``steps_at``.

    Attributes:
        wire_bytes: bytes that this rank sent for gradients.
        dense_wire_bytes: bytes that dense float32 all-reduces would have sent.
        norm_bytes: payload bytes of single tensors' norms, which some controllers request; not part of ``wire_bytes``.
        steps_at: number of training steps that each candidate ran, since this process began or restored the run.
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
    """State of a stretch: native steps in a row, which DDP exchanges by itself and gravac times together.

    Attributes:
        made: number of steps made in the current stretch.
        travels: whether the sums over ranks of the previous stretch's times are in flight, so that the controller has
            not decided by them yet.
        uncounted: whether a step has been made that ``made`` does not include yet.
    """

    made: int = 0
    travels: bool = False
    uncounted: bool = False


@dataclass(slots=True, eq=False)
class RunState:
    """State of a run on one rank, after all steps made so far.

    Ranks differ in ``rank``, ``pending``, tensors, ``wire_ratio``, the bytes in ``totals``, and ``outer``. All other
    fields are the same on all ranks.

    Attributes:
        step: number of the engine's steps made.
        trained: number of training steps made: more than ``step`` after rounds of outer steps or native stretches.
        rank: number of this rank among the ranks that average.
        world: number of ranks that average.
        candidate: candidate of the last step; ``None`` before the first.
        factors: compression factors of the last step.
        controller: state of the controller; ``None`` before the first step.
        pending: measurements that the ranks have not agreed on yet, oldest first: at most as many as the executor's
            latency, or one fewer if the host may look at tensors' numbers.
        residual: unsent part of each parameter's gradients, flat; see ``gravac.averaging.feedback``.
        releasing: residuals that were set aside when the CF fell, and are added to gradients part by part, flat; see
            ``gravac.averaging.feedback``.
        memory: tensors that the compressor remembers, by parameter name and by a name that the compressor chooses.
        sums: sums of gradients over steps that the controller requested (``Decision.sums``), flat.
        loss_scale: factor that the last gradients were multiplied with, a scalar (0-d tensor) if only the device knows
            it; ``None`` without a scaler.
        layout: exchange groups; empty before they are known.
        gain: gain of the last step that all ranks agreed on; ``None`` before the first, or if it was not finite.
        wire_ratio: bytes of a dense float32 all-reduce / bytes that this rank sent, in the last step that all ranks
            agreed on; ``None`` before the first.
        totals: sums of bytes, and of each candidate's steps.
        history: the newest decision records; the run's setting ``history`` is their largest number.
        compute_s: seconds of a step without exchange, mean over ranks; ``None``: not known. A source may set the number
            before the first step, the same on all ranks.
        candidates: identity of each candidate that the controller chooses from, a list that
            ``gravac.controllers.state_dicts.identify`` returns; empty before the first step.
        native: state of successive native steps (a stretch). The object is never replaced, since the watch of native
            steps (``gravac.modes.native``) also has it.
        outer: state of outer steps; ``None`` without outer steps.
    """

    step: int = 0
    trained: int = 0
    rank: int = 0
    world: int = 1
    candidate: Candidate | None = None
    factors: Factors = field(default_factory=Factors)
    controller: Any = None
    pending: list[LocalMeasurement] = field(default_factory=list)
    residual: Tensors = field(default_factory=dict)
    releasing: Tensors = field(default_factory=dict)
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

    def dump(self) -> dict[str, Any]:
        """Return all but the controller's state, as a dict of JSON types and of the tensors themselves, not copies.

        The host waits for numbers that only the device knows. Measurements that were not converted to numbers yet are
        left out; they exist only if the exchange failed.
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
            "releasing": dict(self.releasing),
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
        """Restore all fields of a dump except rank, world, tensors and ``outer``, which stay as they are."""
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
