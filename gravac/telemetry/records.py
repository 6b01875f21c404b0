# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records of a run: frozen dataclasses, which are handed to sinks. A sink is any callable that takes a record."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gravac.agreed import AgreedNumbers
from gravac.candidate import Candidate, Dropped, Forecast, Mode


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Settings and candidates of a run: written once, before the first step.

    Attributes:
        settings: every setting by dotted name, as plain values.
        world_size: number of ranks.
        forecasts: forecast of each candidate that the controller may choose, dense first.
        dropped: candidates that the controller may not choose, each with the cause.
        timed: CFs of the candidates whose ``coding_s`` was timed on the gradients' device; ``coding_s`` of other
            candidates is computed from what compressors cost on a CPU.
    """

    settings: dict[str, str | int | float | bool]
    world_size: int
    forecasts: tuple[Forecast, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    timed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ForecastsRecord:
    """Candidates of a run, admitted again during training by new measurements; they replace those of ``RunRecord``.

    Attributes:
        step: number of training steps made and measured before the record.
        forecasts: forecast of each candidate that the controller may choose from then on, dense first.
        dropped: candidates that the controller may not choose, each with the cause.
    """

    step: int
    forecasts: tuple[Forecast, ...]
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord(AgreedNumbers):
    """Measurements of a step on this rank; ``gain`` and the fields of ``AgreedNumbers`` are agreed over the ranks.

    A record may stand for several training steps: a round of outer steps, or a stretch of native steps. Its seconds are
    then those of a single training step, and its bytes those of all.

    Attributes:
        step: number of the training step, counted from 0; if the record stands for several, number of the first.
        compressor: name of the compressor that ran.
        cf: compression factor that was requested (1 is dense float32, 2 is 16 bit).
        achieved_cf: dense elements / sent elements of the compressed tensors; 1 when none was compressed.
        gain: ``1 - Σ‖g_ef - sent‖² / Σ‖g_ef‖²`` of this step, whole model, all ranks; ``None`` when not finite.
        wire_ratio: wire bytes of a dense float32 all-reduce / wire bytes really sent, whole model.
        payload_bytes: bytes handed to collectives by this rank.
        wire_bytes: bytes that this rank sent, by each collective's formula.
        dense_wire_bytes: bytes that a dense float32 all-reduce of the model would have sent.
        seconds: end-to-end step time, seconds.
        compute_seconds: time of forward, backward and optimizer, seconds.
        compress_seconds: time of encode, decode and error feedback, seconds; overlaps with compute.
        exchange_seconds: time in which collectives were in flight, seconds (on a GPU: time spent in waiting for
            collectives); overlaps with compute.
        input_wait_seconds: time from the end of the optimizer's step (of backward when no optimizer was given) to the
            next forward, seconds.
        t_system: samples per second over all ranks, this step alone.
        t_compression: ``t_system * max(gain, 0)``; ``None`` when the gain is not known.
        shadow: each CF that was evaluated but did not run, with its gain, ``(cf, gain)``.
        energy: ``Σ‖g_ef‖²`` over the model and the ranks, by which the step's gain is weighted in a window.
        waited_seconds: time in which the step waited for bytes, mean over ranks; nan when not known.
        coded_seconds: ``compress_seconds``, mean over ranks; nan when not known.
        exchanged_seconds: ``exchange_seconds``, mean over ranks; nan when not known.
        every: number of training steps from one exchange to the next: 1, except for a round of outer steps.
        delay: number of training steps during which the exchange is in flight; 0: training waits for the exchange.
        steps_of_ranks: number of steps that each rank made in a round of outer steps; empty for any other step.
        steps: number of training steps that the record stands for.
        mode: who exchanged, see ``gravac.candidate.Mode``; of native steps only the times are known.
    """

    step: int
    compressor: str
    cf: float
    achieved_cf: float
    gain: float | None
    wire_ratio: float
    payload_bytes: int
    wire_bytes: int
    dense_wire_bytes: int
    seconds: float
    compute_seconds: float
    compress_seconds: float
    exchange_seconds: float
    input_wait_seconds: float
    t_system: float
    t_compression: float | None
    shadow: tuple[tuple[float, float], ...] = ()
    energy: float | None = None
    waited_seconds: float = math.nan
    coded_seconds: float = math.nan
    exchanged_seconds: float = math.nan
    every: int = 1
    delay: int = 0
    steps_of_ranks: tuple[int, ...] = ()
    steps: int = 1
    mode: Mode = "hook"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision of the controller, even if it changes nothing: an entry of ``AdaptiveCompressor.history``.

    The controller decides at the end of a window, or when a trigger fires. The same on every rank.

    Attributes:
        step: the first training step that the decision holds for.
        compressor: name of the compressor that will run.
        cf: compression factor that will run.
        changed: whether the decision changes the candidate.
        gain: gain of the window that ended (ratio of sums).
        gain_low: lowest gain of a step of that window.
        gain_high: highest gain of a step of that window.
        t_system: samples per second over all ranks, from the window's median step time.
        t_compression: ``t_system * max(gain, 0)``.
        phase: the controller's phase (such as search or hold) while the window was measured.
        reason: reason of the decision, as text.
        every: number of training steps from one exchange to the next, as decided.
        delay: number of training steps during which the exchange is in flight, as decided.
        mode: who will exchange, see ``gravac.candidate.Mode``.
    """

    step: int
    compressor: str
    cf: float
    changed: bool
    gain: float
    gain_low: float
    gain_high: float
    t_system: float | None
    t_compression: float | None
    phase: str
    reason: str
    every: int = 1
    delay: int = 0
    mode: Mode = "hook"


@dataclass(frozen=True, slots=True)
class ModeRecord:
    """A change of mode, and its cost.

    Attributes:
        step: number of training steps made before the change.
        before: mode of the steps before the change, see ``gravac.candidate.Mode``.
        after: mode of the steps after the change.
        seconds: time that the change took on this rank, exchanges included, seconds.
        wire_bytes: bytes that this rank sent for the change.
    """

    step: int
    before: Mode
    after: Mode
    seconds: float
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """Results of a run's switchback trials of one candidate, after each trial.

    The same on every rank. See ``gravac.controllers.progress``.

    Attributes:
        step: number of training steps made before the newest stretch of the trial began.
        candidate: candidate of the trials.
        reference: candidate that the first was compared with.
        ratio: progress of a step of the candidate / progress of a step of the reference, as measured.
        error: standard error of ``ratio``.
        trials: number of trials so far.
        efficiency: median of the belief about the candidate's statistical efficiency, after these trials.
        low: bound that the efficiency exceeds with a probability of 80 %.
        high: bound that the efficiency stays below with a probability of 80 %.
    """

    step: int
    candidate: Candidate
    reference: Candidate
    ratio: float
    error: float
    trials: int
    efficiency: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class EndRecord:
    """Totals of a run: written once, at ``close()``.

    Attributes:
        steps: number of steps made.
        metrics: totals and final values by name: ``steps``, ``wire_bytes``, ``wire_ratio``, ``gain``, ``cf``; the
            shares of all training steps ``share_dense`` (16 bit included), ``share_lowest_cf``, ``share_higher_cf``,
            ``share_native`` and ``share_outer``; and ``norm_bytes``, payload bytes in which ranks exchanged norms of
            single tensors. ``wire_bytes`` includes neither these nor the bytes by which ranks agree on measurements.
    """

    steps: int
    metrics: dict[str, float] = field(default_factory=dict)


Record = RunRecord | ForecastsRecord | StepRecord | DecisionRecord | ModeRecord | ProgressRecord | EndRecord
"""Any record of a run."""

Sink = Callable[[Record], None]
"""A callable that takes a record. A sink with a ``close()`` method is closed with the run."""
