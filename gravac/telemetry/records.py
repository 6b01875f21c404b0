# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run tells the outside: plain, frozen records, handed to any callable."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gravac.candidate import Candidate, Dropped, Forecast, Mode


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run is: written once, before the first step.

    Attributes:
        settings: every setting by dotted name, as plain values.
        world_size: number of ranks.
        forecasts: what is expected of each candidate that may be chosen, dense first.
        dropped: what may not be chosen, each with the cause.
        timed: CFs of the candidates whose ``coding_s`` was timed on the gradients' device; that of the others comes
            from what compressors cost on a CPU.
    """

    settings: dict[str, str | int | float | bool]
    world_size: int
    forecasts: tuple[Forecast, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    timed: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ForecastsRecord:
    """Candidates that were admitted anew while training, once more was known: they take the place of the run's.

    Attributes:
        step: number of training steps that were made and measured before.
        forecasts: what is expected of each candidate that may be chosen from now on, dense first.
        dropped: what may not be chosen, each with the cause.
    """

    step: int
    forecasts: tuple[Forecast, ...]
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, as this rank saw it; ``gain`` is agreed over the ranks.

    It may stand for several training steps: a round of outer steps, or a stretch of native ones. Seconds are then those
    of one of them, and bytes those of all.

    Attributes:
        step: number of the training step, counted from 0; of the first one, if the record stands for several.
        compressor: name of what ran.
        cf: compression factor asked for (1 is dense float32, 2 is 16 bit).
        achieved_cf: dense elements / sent elements of the compressed tensors; 1 when none was compressed.
        gain: ``1 - Σ‖g_ef - sent‖² / Σ‖g_ef‖²`` of this step, whole model, all ranks; ``None`` when not finite.
        wire_ratio: wire bytes of a dense float32 all-reduce / wire bytes really sent, whole model.
        payload_bytes: bytes handed to collectives by this rank.
        wire_bytes: bytes this rank sent, by each collective's formula.
        dense_wire_bytes: bytes a dense float32 all-reduce of the model would have sent.
        seconds: end-to-end step time, seconds.
        compute_seconds: time of forward, backward and optimizer, seconds.
        compress_seconds: time of encode, decode and error feedback, seconds; overlaps with compute.
        exchange_seconds: time in which collectives were under way, seconds (on a GPU, in which they were waited for);
            overlaps with compute.
        input_wait_seconds: time from the end of the optimizer's step (of backward when no optimizer was given) to the
            next forward, seconds.
        t_system: samples per second over all ranks, this step alone.
        t_compression: ``t_system * max(gain, 0)``; ``None`` when the gain is not known.
        shadow: each CF that was evaluated but not run, with its gain, ``(cf, gain)``.
        energy: ``Σ‖g_ef‖²`` over the model and the ranks: what a window weighs its steps' gains with.
        waited_seconds: time in which the step waited for bytes, mean over ranks; nan when not known.
        coded_seconds: ``compress_seconds``, mean over ranks; nan when not known.
        exchanged_seconds: ``exchange_seconds``, mean over ranks; nan when not known.
        learning_rate: highest learning rate of the optimizer's parameter groups, mean over ranks; nan when no optimizer
            was given.
        drift: ``Measurement``'s, where there are outer steps; nan when not known.
        loss: training loss reported by ``AdaptiveCompressor.loss``, mean over ranks; nan if a rank reported none.
        probe: loss on the run's fixed batches, mean over ranks, by the weights before the step; nan if it was not read.
        every: number of training steps from one exchange to the next: 1, but for a round of outer steps.
        delay: number of training steps behind which its exchange travels; 0: training waits for it.
        steps_of_ranks: number of steps that each rank made in a round of outer steps; none in any other step.
        steps: number of training steps that it stands for.
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
    learning_rate: float = math.nan
    drift: float = math.nan
    loss: float = math.nan
    probe: float = math.nan
    every: int = 1
    delay: int = 0
    steps_of_ranks: tuple[int, ...] = ()
    steps: int = 1
    mode: Mode = "hook"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """The end of a window, or a trigger, also when nothing changes: one entry of ``AdaptiveCompressor.history``.

    The same on every rank.

    Attributes:
        step: the first training step that the decision holds for.
        compressor: name of what will run.
        cf: compression factor that will run.
        changed: whether that differs from before.
        gain: gain of the window that ended (ratio of sums).
        gain_low: lowest gain of a step of that window.
        gain_high: highest gain of a step of that window.
        t_system: samples per second over all ranks, from the window's median step time.
        t_compression: ``t_system * max(gain, 0)``.
        phase: the controller's state while the window was measured.
        reason: why it was decided, in words.
        every: number of training steps from one exchange to the next, as decided.
        delay: number of these behind which the exchange travels, as decided.
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
    """A change of mode: who exchanges from a training step on, and what the change took.

    Attributes:
        step: number of training steps made before it.
        before: mode of the steps before, see ``gravac.candidate.Mode``.
        after: mode of the steps that follow.
        seconds: time that it took on this rank, exchanges included, seconds.
        wire_bytes: bytes that this rank sent for it.
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
        step: number of training steps made before the stretch whose end was read last.
        candidate: candidate that was tried.
        reference: candidate that it was compared with.
        ratio: progress of a step of the candidate / progress of a step of the reference, as measured.
        error: standard error of ``ratio``.
        trials: number of trials so far.
        efficiency: median of the belief about the candidate's statistical efficiency, after these trials.
        low: efficiency that it exceeds with a probability of 80 %.
        high: efficiency that it stays below with a probability of 80 %.
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
    """What a run came to: written once, at ``close()``.

    Attributes:
        steps: number of steps made.
        metrics: totals and final values by name (``steps``, ``wire_bytes``, ``wire_ratio``, ``gain``, ``cf``,
            ``share_dense``, 16 bit included, ``share_lowest_cf``, ``share_higher_cf``, ``share_native``,
            ``share_outer``: of all training steps; ``norm_bytes``: payload of what ranks told each other of single
            tensors, which ``wire_bytes``, like the agreement's, leaves out).
    """

    steps: int
    metrics: dict[str, float] = field(default_factory=dict)


Record = RunRecord | ForecastsRecord | StepRecord | DecisionRecord | ModeRecord | ProgressRecord | EndRecord
"""Whatever a run tells the outside."""

Sink = Callable[[Record], None]
"""Anything that can be called with a record. A sink with a ``close()`` method is closed with the run."""
