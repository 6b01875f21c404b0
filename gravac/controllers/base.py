# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The contract of a controller: a pure function of agreed measurements.

A controller is a frozen settings object. It holds no torch, no clock and no randomness: the same measurements give
the same decisions, so ranks that are fed the same measurements agree without talking, a run can be replayed from its
trace, and the state is plain data that a checkpoint can hold.

Time runs in steps. ``observe`` is called once for every step, in order, with that step's measurement; its decision
takes effect ``latency`` steps later: two where a host runs the exchange (the measurement of step t travels with step
t+1), three where streams do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from gravac.candidate import Candidate, Forecast, Span

SHADOWS = 5
"""Most shadow CFs a decision may ask for: each evaluates every tensor once more, and is one more number to agree on."""


Sums = Literal["none", "add", "report"]
"""Values of ``Decision.sums``: what becomes of each tensor's gradients."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One step as all ranks agreed on it: every field has the same value on every rank.

    It may stand for several training steps: a round of outer steps, from one exchange to the next, or a stretch of
    native steps, which are only timed from outside. Seconds and samples are then those of one of them.

    Attributes:
        step: number of the engine's step that was measured, counted from 0.
        candidate: candidate that ran in it.
        seconds: end-to-end step time, mean over ranks.
        samples: samples processed in it, over all ranks.
        error: squared norm of what was not sent, ``Σ‖g_ef - sent‖²``, over the model and the ranks. Not finite when
            a gradient was not.
        energy: squared norm of what was to be sent, ``Σ‖g_ef‖²``, over the model and the ranks.
        shadow: ``(cf, error)`` of each CF that was evaluated but not run; ``error`` as for the CF that ran, of the same
            energy.
        waited: seconds in which the step waited for bytes: what sending less can save at most; mean over ranks, nan
            when not known.
        coded: seconds of encode, decode and error feedback, hidden or not; mean over ranks, nan when not known.
        exchanged: seconds in which collectives were under way, hidden or not: at most this part of a step grows with
            bytes; mean over ranks, nan when not known.
        learning_rate: learning rate of the optimizer, the highest of its parameter groups, mean over ranks; nan when
            not known (no optimizer was given to ``attach``).
        norms: ``(name, norm)`` of every tensor that may be compressed, by ascending name, where the decision said
            ``sums="report"``: the norm of the sum of its gradients since the last such step, ``√(Σ‖Σg‖² / ranks)``.
        first: number of training steps that were made before it.
        steps: number of training steps that it stands for.
        loss: training loss reported by ``AdaptiveCompressor.loss``: mean over ranks and training steps; nan if a rank
            reported none.
        probe: loss on the run's fixed batches, mean over ranks, by the weights before the step (in a native stretch
            before its second step); nan unless a decision asked for it (``Decision.probe``) and a probe was given.
        drift: norm of the mean that came of all ranks' pseudo-gradients over the mean of their norms: 1 where all went
            the same way, more where residuals come on top; nan where there are none (no outer steps).
    """

    step: int
    candidate: Candidate
    seconds: float
    samples: float
    error: float
    energy: float
    shadow: tuple[tuple[float, float], ...] = ()
    waited: float = math.nan
    coded: float = math.nan
    exchanged: float = math.nan
    learning_rate: float = math.nan
    norms: tuple[tuple[str, float], ...] = ()
    drift: float = math.nan
    loss: float = math.nan
    probe: float = math.nan
    first: int = 0
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Gain and throughput of a window (or up to a trigger): one record of ``AdaptiveCompressor.history``.

    Attributes:
        phase: the controller's named state while it was measured.
        gain: ``1 - Σ error / Σ energy`` over the window's steps (ratio of sums); not clipped.
        gain_low: lowest gain of a single step in the window.
        gain_high: highest gain of a single step in the window.
        t_system: samples per second over all ranks, from the median step time; ``None`` when no step was clean.
        t_compression: ``t_system * max(gain, 0)`` ("compression throughput"); ``None`` when no step was clean.
    """

    phase: str
    gain: float
    gain_low: float
    gain_high: float
    t_system: float | None
    t_compression: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Results of a run's switchback trials of one candidate (``gravac.controllers.progress``).

    Attributes:
        candidate: the candidate.
        reference: candidate that it was compared with.
        ratio: progress of its step / progress of a step of the reference, as measured.
        error: standard error of ``ratio``.
        trials: number of trials.
        efficiency: median of the belief about the candidate's statistical efficiency, after these trials.
        low: efficiency that it exceeds with a probability of 80 %.
        high: efficiency that it stays below with a probability of 80 %.
    """

    candidate: Candidate
    reference: Candidate
    ratio: float
    error: float
    trials: int
    efficiency: float
    low: float
    high: float


WATCH = 8
"""Number of training steps of a native stretch after which the ranks look at each other's times, unless a controller
says otherwise (``Decision.watch``)."""

LATENCY = 2
"""Steps from a measurement to the decision that it leads to, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A candidate to run from ``latency`` steps after the one observed, and what to evaluate beside it.

    Attributes:
        candidate: candidate to run.
        shadow: CFs of the base compressor to evaluate without sending, ascending, at most ``SHADOWS``.
        reason: why, in words; empty in the middle of a window.
        summary: set at the end of a window or at a trigger, also when nothing changes; ``None`` otherwise.
        tensors: ``(name, candidate)`` of the tensors that run another than ``candidate``, by ascending name.
        sums: what becomes of each tensor's gradients of this rank, as they are before error feedback: ``"add"`` adds
            them up, at the cost of a copy of the model; ``"report"`` does, and tells the sums' norms; ``"none"``
            forgets the sums.
        watch: number of training steps after which the ranks next tell each other what a native step takes: the length
            of the next native stretch, and nothing else. ``WATCH`` after each decision that changes anything, or that
            waits to see a change once more; longer and longer while nothing changes.
        probe: whether the ranks read the loss on their fixed batches before the next step.
        progress: results of switchback trials, if the measurement completed one; ``None`` otherwise.
    """

    candidate: Candidate
    shadow: tuple[float, ...] = ()
    reason: str = ""
    summary: Summary | None = None
    tensors: tuple[tuple[str, Candidate], ...] = ()
    sums: Sums = "none"
    watch: int = WATCH
    probe: bool = False
    progress: Progress | None = None

    @property
    def runs(self) -> tuple[Candidate, tuple[tuple[str, Candidate], ...]]:
        """The model's candidate, and ``(name, candidate)`` of tensors that run another; a change if it differs."""
        return self.candidate, self.tensors


StateT = TypeVar("StateT")


class Controller(Protocol[StateT]):
    """Decides which candidate runs. See the module's text for when each method is called.

    One that counts epochs may also offer ``for_run(steps_per_epoch: int)``: itself as a run of such epochs has it. It
    is called once, before ``propose``, where the user says how long an epoch is.

    One that also chooses between candidates that differ in ``every`` and ``delay`` alone says so by a true
    ``chooses_every``. One that may choose candidates of mode ``native``, of which only times are known, says so by a
    true ``native``; beside such a candidate it may also decide for the same of mode ``hook``. One whose reasons
    state a candidate's cost (``cost_at_equal_samples``) says so by a true ``states_cost``; to the reasons of others the
    engine adds the cost by the candidate's forecast.

    One that can use the loss on fixed batches (``Decision.probe``) offers ``with_probe(total_steps: int | None)``. That
    returns the controller for a run with a probe and that number of steps (``None``: not known). It is called once,
    before ``propose``, if the user gave a probe.

    One that must know in which step its decision takes effect may offer ``for_latency(latency: int)``: itself with that
    many steps from a measurement to its decision, instead of 2. It is called once, before ``start``.

    One that can tell a wrong state before it is restored may offer ``check(plain: dict[str, Any])``, which raises
    ``SettingsError`` where ``plain`` is not what ``dump`` gives. It is called when a checkpoint is loaded.
    """

    @property
    def name(self) -> str:
        """Name of the controller in policies and traces."""

    @property
    def keeps_all(self) -> bool:
        """Tell whether its candidates are admitted even when they would send no less than dense (a static choice)."""

    @property
    def sixteen_bit(self) -> bool:
        """Tell whether its second candidate may be dense in 16 bit, besides dense in float32."""

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the CFs it wants to choose from, ascending.

        Args:
            cf_range: lowest and highest CF the user allows.
            reach: what the compressor can do inside that range: all of a span, or a list.
        """

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StateT, Decision]:
        """Return the state before the first step, and the decision for the first step.

        Args:
            forecasts: what is expected of each candidate that may be chosen, ascending by wire ratio. The first is of
                dense, and so may be the second, in 16 bit.
        """

    def observe(self, state: StateT, measurement: Measurement) -> tuple[StateT, Decision]:
        """Take in one step's measurement and return the new state and a decision; called once per step, in order."""

    def dump(self, state: StateT) -> dict[str, Any]:
        """Return the state as plain values (dict, list, str, int, float, bool, None), for a checkpoint."""

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[StateT, Decision]:
        """Return the state that ``dump`` made plain, and the decision that was in force.

        The candidates may be others than at the dump (another number of ranks): the decision is for one of those that
        are forecast now. A reason says what of the state could not be restored, and becomes a record; if all was
        restored, the reason is empty.

        Args:
            plain: what ``dump`` returned, perhaps after a round trip through JSON.
            forecasts: see ``start``.
        """


BELIEVED = "believed"
"""Source of an efficiency that no trial of the run has measured."""


def cost_at_equal_samples(efficiency: float, lower_bound: float, source: str = BELIEVED) -> str:
    """Return as text how many more training steps than dense averaging a candidate takes to the same loss.

    Empty if its efficiency is 1 without any uncertainty.

    Args:
        efficiency: statistical efficiency, median of the belief.
        lower_bound: lower bound of the belief, by which controllers decide.
        source: where the efficiency comes from.

    Example:
        >>> cost_at_equal_samples(0.96, 0.92)
        ', about 4 % more steps than dense (believed, counted as 9 %)'
        >>> cost_at_equal_samples(1.0, 0.98, "4 trials here"), cost_at_equal_samples(1.0, 1.0)
        (', about as many steps as dense (4 trials here, counted as 2 %)', '')
    """
    if efficiency == lower_bound == 1:
        return ""
    extra_percent, decided_by = (100 * (1 / max(share, 1e-9) - 1) for share in (efficiency, lower_bound))
    differs = f"{decided_by:.0f}" != f"{extra_percent:.0f}"
    steps = f"{extra_percent:.0f} % more steps than" if extra_percent >= 0.5 else "as many steps as"
    return f", about {steps} dense ({source}{f', counted as {decided_by:.0f} %' if differs else ''})"


def at_latency(controller: Controller[StateT], latency: int) -> Controller[StateT]:
    """Return a controller as it is where decisions take effect after so many steps; itself where it does not ask."""
    offered = getattr(controller, "for_latency", None)
    return controller if offered is None else offered(latency)
