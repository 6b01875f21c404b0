# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records of what a run does: frozen dataclasses, which gravac passes to sinks (callables that take a record)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gravac.candidate import Candidate, Dropped, Forecast, Mode
from gravac.measurement import AgreedNumbers
from gravac.ranges import Count, Factor, PositiveCount


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Settings of a run, and its candidates (ways to run steps); written once, before the first step.

    Attributes:
        settings: value of every setting, by dotted name such as ``controller.window``.
        world_size: number of ranks.
        forecasts: forecast of each candidate that the controller may choose, dense first.
        dropped: candidates that the controller may not choose, each with the cause.
        timed: compression factors (CFs) of the candidates whose encode and decode were timed on the gradients' device;
            their forecasts have this time as ``coding_s``. For other candidates, ``coding_s`` is computed from the
            compressors' costs on a CPU.
        begun: time at which the record was written to a file, in UTC, as ISO 8601 text such as
            ``"2026-11-29T13:05:09+00:00"``. ``JSONLSink`` sets this field and the next two, which are empty in other
            sinks and in older files: a record alone knows no clock.
        host: name of the machine that wrote the file.
        versions: versions of gravac, torch and Python, by these names in lower case.
        controller_note: text that names the controller, says why it runs, and how to get another.
    """

    settings: dict[str, str | int | float | bool]
    world_size: int
    forecasts: tuple[Forecast, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    timed: tuple[float, ...] = ()
    begun: str = ""
    host: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    controller_note: str = ""


@dataclass(frozen=True, slots=True)
class ForecastsRecord:
    """New selection of a run's candidates, made during training; replaces the candidates in the ``RunRecord``.

    Attributes:
        step: number of training steps made and measured before the selection.
        forecasts: forecast of each candidate that the controller may choose from then on, dense first.
        dropped: candidates that the controller may not choose, each with the cause.
    """

    step: int
    forecasts: tuple[Forecast, ...]
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True, slots=True)
class StepRecord(AgreedNumbers):
    """Measurements of a step on this rank; ``gain`` and the fields of ``AgreedNumbers`` are the same on all ranks.

    A record may stand for several training steps: a round of outer steps, or native steps that were timed together. Its
    seconds are then those of a single training step; its bytes are those of all steps.

    Attributes:
        step: number of the training step, counted from 0; if the record stands for several steps, number of the first.
        compressor: name of the compressor that ran.
        cf: compression factor (CF) that was requested (1 is dense float32, 2 is 16 bit).
        achieved_cf: dense elements / sent elements of the compressed tensors; 1 if no tensor was compressed.
        gain: ``1 - Σ‖g_ef - sent‖² / Σ‖g_ef‖²`` of this step, over the model and the ranks; ``None`` if not finite.
            ``g_ef`` is the gradient plus the residual.
        wire_ratio: wire bytes of a dense float32 all-reduce of the model / wire bytes that were sent.
        payload_bytes: bytes that this rank handed to collectives.
        wire_bytes: bytes that this rank sent, computed by each collective's formula.
        dense_wire_bytes: bytes that this rank would have sent by a dense float32 all-reduce of the model.
        seconds: end-to-end time of a step, seconds.
        compute_seconds: time of forward, backward and optimizer, seconds.
        compress_seconds: time of encode, decode and error feedback, seconds; overlaps with compute.
        exchange_seconds: time for which collectives were in flight, seconds (on a GPU: time of waiting for
            collectives); overlaps with compute.
        input_wait_seconds: time from the end of the optimizer's step to the next forward, seconds. Without a known
            optimizer, the time starts at the end of backward.
        t_system: samples per second over all ranks, of this step alone.
        t_compression: ``t_system * max(gain, 0)``, samples per second; ``None`` if the gain is not known.
        shadow: ``(cf, gain)`` of each CF whose gain was computed without sending anything.
        energy: ``Σ‖g_ef‖²`` over the model and the ranks; weights the step's gain when gains of several steps are
            averaged.
        waited_seconds: time for which the step waited for the exchange, seconds, mean over ranks; nan if not known.
        coded_seconds: ``compress_seconds``, mean over ranks; nan if not known.
        exchanged_seconds: ``exchange_seconds``, mean over ranks; nan if not known.
        every: number of training steps from one exchange to the next: 1, except for a round of outer steps.
        delay: number of training steps for which the exchange is in flight; 0: training waits for the exchange.
        steps: number of training steps that the record stands for.
        mode: mode of the step, see ``gravac.candidate.Mode``. In native steps gravac measures only times.
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
    steps: int = 1
    mode: Mode = "hook"

    @property
    def candidate(self) -> Candidate:
        """The candidate that ran. ``gravac.candidate.named`` adds what it sends in words."""
        return Candidate(self.mode, self.compressor, self.cf, self.every, self.delay)


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision of the controller, also if it changes nothing; ``AdaptiveCompressor.history`` has these records.

    The controller decides before the first step, at the end of a window (a number of steps), or earlier if a trigger
    fires. The record is the same on every rank. ``str(record)`` is a sentence that names step, candidate and reason.

    Attributes:
        step: number of the first training step that the decision holds for.
        compressor: name of the compressor that will run.
        cf: compression factor at which the compressor will run.
        changed: whether the decision changes the candidate that runs; true for the first decision of a run.
        gain: gain of the window that ended, ``1 - Σ error / Σ energy`` over the window's steps; of the newest measured
            step if no window ended; ``None`` if not known.
        gain_low: lowest gain of a step in that window; ``None`` if not known.
        gain_high: highest gain of a step in that window; ``None`` if not known.
        t_system: samples per second over all ranks, from the window's median step time; ``None`` if not known.
        t_compression: ``t_system * max(gain, 0)``, samples per second; ``None`` if not known.
        phase: the controller's phase (such as search or hold) while the window was measured.
        reason: reason of the decision, as text.
        every: number of training steps from one exchange to the next, from now on.
        delay: number of training steps for which an exchange is in flight, from now on; 0: training waits for it.
        mode: mode of the steps from now on, see ``gravac.candidate.Mode``.
        sends: what an exchange sends from now on, in words, such as ``"4 bits (7.5x fewer bytes)"``; see
            ``gravac.candidate.Candidate``.

    Example:
        >>> decision = DecisionRecord(
        ...     step=14, compressor="ladder", cf=7.76, changed=True, gain=None, gain_low=None, gain_high=None,
        ...     t_system=None, t_compression=None, phase="", reason="the link became slower",
        ...     sends="4 bits (7.5x fewer bytes)",
        ... )
        >>> print(decision)
        step 14: run 4 bits (7.5x fewer bytes): the link became slower
        >>> decision.candidate.every
        1
    """

    step: Count
    compressor: str
    cf: Factor
    changed: bool
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    t_system: float | None
    t_compression: float | None
    phase: str
    reason: str
    every: PositiveCount = 1
    delay: Count = 0
    mode: Mode = "hook"
    sends: str = ""

    @property
    def candidate(self) -> Candidate:
        """The candidate that runs from ``step`` on; its ``str`` is its name."""
        return Candidate(self.mode, self.compressor, self.cf, self.every, self.delay, self.sends)

    def __str__(self) -> str:
        sentence = f"step {self.step}: {'run' if self.changed else 'keep'} {self.candidate}"
        return f"{sentence}: {self.reason}" if self.reason else sentence


@dataclass(frozen=True, slots=True)
class ModeRecord:
    """A change of the mode in which steps run, with the seconds and bytes that the change took.

    Attributes:
        step: number of training steps made before the change.
        before: mode of the steps before the change, see ``gravac.candidate.Mode``.
        after: mode of the steps after the change.
        seconds: time that the change took on this rank, exchanges included, seconds.
        wire_bytes: bytes that this rank sent for the change.
        dropped_norm: norm of the residuals (unsent parts of gradients) that this rank dropped, since what the new mode
            exchanges has no residuals.
    """

    step: int
    before: Mode
    after: Mode
    seconds: float
    wire_bytes: int
    dropped_norm: float = 0.0


@dataclass(frozen=True, slots=True)
class EndRecord:
    """Totals of a run, written once, when the run is closed (``close()``).

    Attributes:
        steps: number of training steps made.
        metrics: totals and final numbers, by name. ``steps``: training steps. ``wire_bytes``: bytes that this rank sent
            for gradients. ``wire_ratio``: wire bytes of dense float32 all-reduces in all steps / ``wire_bytes``.
            ``gain``: gain of the last step that ranks agreed on. ``cf``: compression factor of the newest decision.
            ``norm_bytes``: payload bytes in which ranks exchanged norms of single tensors, not part of ``wire_bytes``.
            Shares of all training steps, 0 to 1: ``share_dense`` (16 bit included), ``share_lowest_cf``,
            ``share_higher_cf``, ``share_native`` and ``share_outer``.
        steps_at: ``(candidate, number of training steps)`` of each candidate that ran, in the order in which they first
            ran, since this process began or resumed the run.
    """

    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    steps_at: tuple[tuple[Candidate, int], ...] = ()


Record = RunRecord | ForecastsRecord | StepRecord | DecisionRecord | ModeRecord | EndRecord
"""Any record of a run."""

Sink = Callable[[Record], None]
"""A function that is called with each record; what it returns is not used. A sink with a method ``close()``, without
arguments, is closed with the run."""
