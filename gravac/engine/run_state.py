# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of a run on one rank, which steps read and change; a checkpoint is its dump (``gravac.saved``)."""

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.engine.factors import Factors
from gravac.exchange.reading import Number
from gravac.measurement import OVER_RANKS, Measurement
from gravac.ranges import Count, FiniteFloat, Seconds
from gravac.saved import FiniteTensor, FlatTensor, dump_fields, load_fields
from gravac.telemetry.records import DecisionRecord

NotSaved = Field(exclude=True)
"""Marks a field that a checkpoint does not have."""

SMALLEST_LOSS_SCALE, LARGEST_LOSS_SCALE = 2.0**-100, 2.0**100

Groups = tuple[tuple[str, ...], ...]
"""Exchange groups: for each group, the names of the parameters that are exchanged together, in order."""


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

    wire_bytes: Count = 0
    dense_wire_bytes: Count = 0
    norm_bytes: Count = 0
    steps_at: Annotated[dict[Candidate, int], NotSaved] = field(default_factory=dict)

    def add(self, measurement: StepRecording) -> None:
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

    made: Count = 0
    travels: bool = False
    uncounted: bool = False


def _dump_pending(pending: list[StepRecording]) -> list[dict[str, Any]]:
    """Return the ranks' own measurements as plain values; the host waits for numbers that are on the device.

    Measurements that were not read yet are left out; there are such measurements only if the exchange failed.
    """
    dumped = []
    for own in [recording.own for recording in pending if recording.own is not None]:
        numbers = {name: float(getattr(own, name)) for name in OVER_RANKS}
        pairs = {
            name: tuple((key, float(number)) for key, number in getattr(own, name)) for name in ("shadow", "norms")
        }
        dumped.append({**dump_fields(own), **numbers, **pairs})
    return dumped


def _load_pending(dumped: Any) -> list[StepRecording]:
    if not isinstance(dumped, (list, tuple)):
        raise ValueError("it should be a list of measurements")
    return [
        StepRecording.restored_from(load_fields(Measurement, own, f"pending/{index}"))
        for index, own in enumerate(dumped)
    ]


def _check_loss_scale(scale: Any) -> Any:
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not (scale is None or (is_number and SMALLEST_LOSS_SCALE <= scale <= LARGEST_LOSS_SCALE)):
        raise ValueError("it should be None or a number from 2^-100 to 2^100")
    return scale


def _check_layout(layout: Groups) -> Groups:
    counts = Counter(name for group in layout for name in group)
    for name, count in counts.most_common(1):
        if count > 1:
            raise ValueError(f"it should have each parameter once, but has {name!r} {count} times")
    return layout


def _dump_outer(outer: Any) -> Any:
    return outer if outer is None or isinstance(outer, dict) else outer.dump()


def _check_outer(outer: Any) -> Any:
    if not (outer is None or isinstance(outer, dict)):
        raise ValueError("it should be a dict or None")
    return outer


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
        candidates: candidates of the controller; empty before the first step.
        native: state of the current stretch of native steps. This object is never replaced, since
            ``gravac.modes.native`` also refers to it.
        outer: state of outer steps; ``None`` without outer steps.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    step: Count = 0
    trained: Count = 0
    covered: Annotated[int, NotSaved] = 1
    rank: Annotated[int, NotSaved] = 0
    world: Annotated[int, NotSaved] = 1
    candidate: Candidate | None = None
    factors: Factors = field(default_factory=Factors)
    controller: Annotated[Any, NotSaved] = None
    pending: Annotated[list[StepRecording], PlainSerializer(_dump_pending), PlainValidator(_load_pending)] = field(
        default_factory=list
    )
    residual: dict[str, FlatTensor] = field(default_factory=dict)
    memory: dict[str, dict[str, FiniteTensor]] = field(default_factory=dict)
    sums: dict[str, FlatTensor] = field(default_factory=dict)
    loss_scale: Annotated[
        Number | None,
        PlainSerializer(lambda scale: None if scale is None else float(scale)),
        PlainValidator(_check_loss_scale),
    ] = None
    layout: Annotated[Groups, AfterValidator(_check_layout)] = ()
    gain: FiniteFloat | None = None
    wire_ratio: Annotated[float | None, NotSaved] = None
    totals: RunTotals = field(default_factory=RunTotals)
    history: list[DecisionRecord] = field(default_factory=list)
    compute_s: Seconds | None = None
    candidates: list[Candidate] = field(default_factory=list)
    native: NativeState = field(default_factory=NativeState)
    outer: Annotated[Any, PlainSerializer(_dump_outer), AfterValidator(_check_outer)] = None

    @property
    def training_step(self) -> int:
        """Number of the present training step, counted from 0; the last one that the engine's present step covers."""
        return self.trained + self.covered - 1

    def restore(self, loaded: "RunState") -> None:
        """Take over the saved fields of a loaded state, but for tensors and ``outer``, which others restore."""
        for name in SAVED_FIELDS:
            if name not in ("native", "residual", "memory", "sums", "outer"):
                setattr(self, name, getattr(loaded, name))
        for native_field in fields(loaded.native):
            setattr(self.native, native_field.name, getattr(loaded.native, native_field.name))


SAVED_FIELDS = (*dump_fields(RunState()),)
"""Names of the fields of ``RunState`` that a checkpoint has."""
