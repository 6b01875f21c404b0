# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The contract of a controller: a pure function of measurements that all ranks agreed on.

A controller is a frozen settings object without torch, clock or randomness. The same measurements give the same
decisions. Therefore ranks that get the same measurements agree without communication, a run can be replayed from its
trace, and the state is plain data that a checkpoint can hold.

Time is counted in steps. ``observe`` is called once for every step, in order, with that step's measurement; its
decision takes effect ``latency`` steps later: two if a host runs the exchange (the ranks sum the measurement of step t
during step t+1), three if streams do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from gravac.agreed import AgreedNumbers
from gravac.candidate import Candidate, Forecast, Span

SHADOWS = 5
"""Largest number of shadow CFs (evaluated without sending) in a decision. For each, every tensor is evaluated once
more, and ranks agree on one more number."""


Sums = Literal["none", "add", "report"]
"""Values of ``Decision.sums``: do not sum each tensor's gradients over steps, sum them, or also report the sums'
norms."""


@dataclass(frozen=True, slots=True)
class Measurement(AgreedNumbers):
    """Measurement of one step that all ranks agreed on: every field has the same value on every rank.

    A measurement may cover several training steps: a round of outer steps, from one exchange to the next, or a stretch
    of native steps (successive steps in which DDP exchanges by itself), of which gravac knows only the time. Seconds
    and samples are then per training step. Learning rate, loss and others are fields of ``AgreedNumbers``.

    Attributes:
        step: number of the engine's step that was measured, counted from 0.
        candidate: candidate that ran in the step.
        seconds: end-to-end step time, mean over ranks.
        samples: samples processed in the step, over all ranks.
        error: squared norm of what was not sent, ``Σ‖g_ef - sent‖²``, over the model and the ranks. Not finite if a
            gradient was not finite.
        energy: squared norm of what was to be sent, gradient plus residual, ``Σ‖g_ef‖²``, over the model and the ranks.
        shadow: ``(cf, error)`` of each CF that was evaluated without sending; its ``error`` is as above, for
            the same ``energy``.
        waited: seconds in which the step waited for bytes: an upper bound of what sending less can save. Mean over
            ranks; nan if not known.
        coded: seconds of encode, decode and error feedback, hidden behind backward or not; mean over ranks, nan if not
            known.
        exchanged: seconds in which collectives were in flight, hidden behind backward or not: an upper bound of the
            time that grows with bytes. Mean over ranks; nan if not known.
        norms: ``(name, norm)`` of each tensor that may be compressed, by ascending name, if the decision had
            ``sums="report"``. ``norm`` is the norm of the tensor's gradients, summed over the steps since the last
            report: ``√(Σ‖Σg‖² / ranks)``, the outer sum over ranks.
        first: number of training steps made before the step.
        steps: number of training steps that the measurement covers.
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
    norms: tuple[tuple[str, float], ...] = ()
    first: int = 0
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Gain and throughput of a window of steps, possibly ended early: one record of ``AdaptiveCompressor.history``.

    Attributes:
        phase: name of the controller's phase during the window.
        gain: ``1 - Σ error / Σ energy`` over the window's steps (ratio of sums); not clipped.
        gain_low: lowest gain of a single step in the window.
        gain_high: highest gain of a single step in the window.
        t_system: samples per second over all ranks, from the median step time; ``None`` if no step was timed.
        t_compression: ``t_system * max(gain, 0)`` ("compression throughput"); ``None`` if no step was timed.
    """

    phase: str
    gain: float
    gain_low: float
    gain_high: float
    t_system: float | None
    t_compression: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Results of a run's switchback trials of a candidate.

    A trial runs steps of the candidate between steps of another candidate, the reference, and reads the loss before and
    after the candidate's steps (``gravac.controllers.progress``).

    Attributes:
        candidate: candidate whose steps the trials measured.
        reference: candidate that ``candidate`` was compared with.
        ratio: progress of a step of the candidate / progress of a step of the reference, as measured.
        error: standard error of ``ratio``.
        trials: number of trials.
        efficiency: median of the belief about the candidate's statistical efficiency, after these trials.
        low: bound that the efficiency exceeds with a probability of 80 %.
        high: bound that the efficiency stays below with a probability of 80 %.
    """

    candidate: Candidate
    reference: Candidate
    ratio: float
    error: float
    trials: int
    efficiency: float
    low: float
    high: float


DEFAULT_STRETCH_STEPS = 8
"""Number of steps of a native stretch (successive steps in which DDP exchanges by itself), after which the ranks
exchange their step times, unless a controller sets another number (``Decision.watch``)."""

LATENCY = 2
"""Default number of steps from a measurement to the decision based on it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A candidate to run from ``latency`` steps after the observed step on, and numbers to measure meanwhile.

    Attributes:
        candidate: candidate to run.
        shadow: CFs of the base compressor to evaluate without sending, ascending, at most ``SHADOWS``.
        reason: reason of the decision, as text; empty in the middle of a window.
        summary: summary of the window of steps that ends, also if nothing changes; ``None`` in the middle of a window.
        tensors: ``(name, candidate)`` of each tensor that runs another candidate than ``candidate``, by ascending name.
        sums: whether to sum each tensor's local gradients over steps, before error feedback. ``"add"`` sums them, at
            the cost of a copy of the model; ``"report"`` also reports the sums' norms; ``"none"`` drops the sums.
        watch: number of training steps of the next native stretch (successive steps in which DDP exchanges by itself),
            after which the ranks exchange their step times. ``DEFAULT_STRETCH_STEPS`` after a decision that changes
            something, or that waits for a change to be confirmed; increasing while nothing changes.
        probe: whether the ranks compute the loss on their fixed batches before the next step.
        progress: results of switchback trials, if the measurement completed a trial; ``None`` otherwise.
    """

    candidate: Candidate
    shadow: tuple[float, ...] = ()
    reason: str = ""
    summary: Summary | None = None
    tensors: tuple[tuple[str, Candidate], ...] = ()
    sums: Sums = "none"
    watch: int = DEFAULT_STRETCH_STEPS
    probe: bool = False
    progress: Progress | None = None

    @property
    def runs(self) -> tuple[Candidate, tuple[tuple[str, Candidate], ...]]:
        """The model's candidate, and ``(name, candidate)`` of tensors that run another. Compare to detect a change."""
        return self.candidate, self.tensors


StateT = TypeVar("StateT")


class Controller(Protocol[StateT]):
    """Decides which candidate runs. The module's text says when ``observe`` is called.

    Optional attributes, each true if the controller

    - ``chooses_every``: chooses between candidates that differ in ``every`` and ``delay`` alone.
    - ``native``: may choose candidates of mode ``native`` (DDP exchanges by itself), of which only times are known.
      Beside such a candidate the controller may also choose the same candidate in mode ``hook``.
    - ``states_cost``: states a candidate's cost in its reasons (``cost_at_equal_samples``). To the reasons of other
      controllers the engine adds the cost by the candidate's forecast.

    Optional methods, each called once if the controller has it:

    - ``for_run(steps_per_epoch: int)`` returns the controller for a run with epochs of that many steps. Called before
      ``propose``, if the user set the length of an epoch.
    - ``with_probe(total_steps: int | None)`` returns the controller for a run with a loss on fixed batches
      (``Decision.probe``) and that number of steps (``None``: not known). Called before ``propose``, if the user gave a
      probe.
    - ``for_latency(latency: int)`` returns the controller for that many steps from a measurement to the step in which
      its decision takes effect, instead of 2. Called before ``start``.
    - ``check(dumped: dict[str, Any])`` raises ``SettingsError`` unless ``dumped`` is a state that ``dump`` returned.
      Called when a checkpoint is loaded, before the state is restored.
    """

    @property
    def name(self) -> str:
        """Name of the controller in policies and traces."""

    @property
    def keeps_all(self) -> bool:
        """True if all proposed candidates are admitted, even those that would send no fewer bytes than dense.

        A controller that runs a CF chosen by the user needs that.
        """

    @property
    def sixteen_bit(self) -> bool:
        """True if its second candidate may be dense in 16 bit, besides dense in float32."""

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the compression factors (CFs) that the controller will choose from, ascending.

        Args:
            cf_range: lowest and highest CF that the user allows.
            supported: CFs that the compressor supports inside that range: all of a span, or a list.
        """

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StateT, Decision]:
        """Return the state before the first step, and the decision for the first step.

        Args:
            forecasts: forecasts of the candidates that may be chosen, ascending by wire ratio. The first is of dense
                in float32; the second may be of dense in 16 bit.
        """

    def observe(self, state: StateT, measurement: Measurement) -> tuple[StateT, Decision]:
        """Return the state after one more step's measurement, and a decision. Called once per step, in order."""

    def dump(self, state: StateT) -> dict[str, Any]:
        """Return the state as JSON types (dict, list, str, int, float, bool, None), for a checkpoint."""

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[StateT, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision for the next step.

        The candidates may differ from those at the dump (another number of ranks); the decision is for one of the
        forecast candidates. Its reason says what part of the state could not be restored, and becomes a record; if the
        whole state was restored, the reason is empty.

        Args:
            dumped: the dict that ``dump`` returned, perhaps after a round trip through JSON.
            forecasts: see ``start``.
        """


BELIEVED = "believed"
"""Source of an efficiency, as text for reasons, if no trial of the run has measured the efficiency."""


def cost_at_equal_samples(efficiency: float, lower_bound: float, source: str = BELIEVED) -> str:
    """Return a text that says how many more training steps a candidate takes for the same loss than dense averaging.

    The text begins with a comma. It is empty if the candidate's efficiency is 1 without any uncertainty.

    Args:
        efficiency: statistical efficiency (progress of a step / progress of a dense step), median of the belief.
        lower_bound: lower bound of the belief, by which controllers decide.
        source: text that says where the efficiency comes from; printed in parentheses.

    Example:
        >>> cost_at_equal_samples(0.96, 0.92)
        ', about 4 % more steps than dense for the same loss (believed; the controller counts 9 % more, to be safe)'
        >>> cost_at_equal_samples(1.0, 0.98, "4 trials")
        ', about as many steps as dense for the same loss (4 trials; the controller counts 2 % more, to be safe)'
        >>> cost_at_equal_samples(1.0, 1.0)
        ''
    """
    if efficiency == lower_bound == 1:
        return ""
    extra_percent, percent_at_bound = (100 * (1 / max(progress, 1e-9) - 1) for progress in (efficiency, lower_bound))
    differs = f"{percent_at_bound:.0f}" != f"{extra_percent:.0f}"
    steps = f"{extra_percent:.0f} % more steps than" if extra_percent >= 0.5 else "as many steps as"
    safety = f"; the controller counts {percent_at_bound:.0f} % more, to be safe" if differs else ""
    return f", about {steps} dense for the same loss ({source}{safety})"


def adapt_to_latency(controller: Controller[StateT], latency: int) -> Controller[StateT]:
    """Return the controller for decisions that take effect ``latency`` steps after the measurement.

    A controller without a method ``for_latency`` is returned unchanged.
    """
    for_latency = getattr(controller, "for_latency", None)
    return controller if for_latency is None else for_latency(latency)
