# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Defines the interface of a controller, and what a controller gets (``Measurement``) and returns (``Decision``).

A controller chooses how the next steps run, from measurements that all ranks agreed on. It is a frozen settings object
without torch, clock or randomness. The same measurements give the same decisions. Therefore ranks decide the same
without communication. The state of a controller is plain data that a checkpoint can hold.

The engine calls ``observe`` once for every step, in order, with the measurement of that step. The decision that
``observe`` returns takes effect ``latency`` steps later. The latency is 2 if a thread of the CPU runs the exchange: the
ranks sum the measurement of step t during step t+1. The latency is 3 if CUDA streams run the exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from gravac.candidate import Candidate, Forecast, Span
from gravac.measurement import Measurement as Measurement

SHADOWS = 5
"""Largest number of shadow CFs in a decision: compression factors whose gain is computed without sending anything. Each
costs one more computation for every tensor, and one more number that ranks agree on."""


Sums = Literal["none", "add", "report"]
"""Values of ``Decision.sums``. ``"none"``: gradients are not summed over steps. ``"add"``: each rank adds the step's
gradient of each tensor to the tensor's sum over earlier steps. ``"report"``: as ``"add"``; the measurement of the step
also has the norms of these sums, which then start again from 0."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Gain and throughput of a window: the steps between two decisions of a controller.

    Attributes:
        phase: name of the controller's phase during the window, such as ``"search"``.
        gain: share of the energy sent: ``1 - Σ error / Σ energy`` over the window's steps (ratio of sums); may be
            negative.
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


DEFAULT_STRETCH_STEPS = 8
"""Default of ``Decision.watch``: number of native steps (DDP exchanges by itself) that gravac times together, as a
stretch. After a stretch, the ranks exchange their step times."""

LATENCY = 2
"""Default number of steps from a measured step to the step in which the decision based on it takes effect."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A controller's decision: which candidate runs, and what the ranks measure meanwhile.

    A decision takes effect ``latency`` steps after the measured step that it is based on. A window is a number of
    steps, at whose end the controller decides whether to change the candidate.

    Attributes:
        candidate: candidate to run.
        shadow: CFs of the base compressor whose gain to compute without sending, ascending, at most ``SHADOWS``.
        reason: reason of the decision, as text; empty in the middle of a window.
        summary: gain and throughput of the window that has ended; ``None`` in the middle of a window.
        tensors: ``(name, candidate)`` of each tensor that runs another candidate than ``candidate``, by ascending name.
        sums: whether each rank sums the gradients of each tensor over steps, before error feedback. ``"add"``: adds the
            step's gradients to the sums, which take the memory of a copy of the model. ``"report"``: as ``"add"``, then
            measures the norms of the sums, and drops the sums. ``"none"``: does not add, and drops the sums so far.
        watch: number of native steps (DDP exchanges by itself) that gravac times together next, as a stretch. The ranks
            exchange their step times after a stretch. Controllers choose longer stretches while nothing changes.
    """

    candidate: Candidate
    shadow: tuple[float, ...] = ()
    reason: str = ""
    summary: Summary | None = None
    tensors: tuple[tuple[str, Candidate], ...] = ()
    sums: Sums = "none"
    watch: int = DEFAULT_STRETCH_STEPS

    @property
    def runs(self) -> tuple[Candidate, tuple[tuple[str, Candidate], ...]]:
        """The candidate of the model, and ``(name, candidate)`` of each tensor that runs another candidate."""
        return self.candidate, self.tensors


StateT = TypeVar("StateT")


class Controller(Protocol[StateT]):
    """Interface of a controller: an object that decides, after each measured step, which candidate runs.

    ``propose`` and ``start`` are called before the first step of a run, ``observe`` once per step.

    Optional attributes, all of type bool; a missing attribute counts as false:

    - ``chooses_every``: true if the controller chooses between candidates that differ in ``every`` and ``delay`` alone.
    - ``chooses_native``: true if the controller may choose candidates of mode ``native`` (DDP exchanges by itself), of
      which only times are known. The same candidates in mode ``hook`` are then candidates, too.
    - ``states_cost``: true if the controller's reasons state how many more steps a candidate takes than dense
      (``cost_at_equal_samples``). If false, the engine appends that number to the reasons, from the forecast.

    Optional methods, each called once if the controller has it:

    - ``for_latency(latency: int)`` returns the controller for a run in which decisions take effect that many steps
      after the measured step, instead of 2. Called before ``start``.
    - ``check(dumped: dict[str, Any])`` raises ``SettingsError`` if ``dumped`` is not a state that ``dump`` returned.
      Called when a checkpoint is loaded, before the state is restored.
    """

    @property
    def name(self) -> str:
        """Name of the controller in policies and traces."""

    @property
    def keeps_all(self) -> bool:
        """True if the controller wants all proposed CFs as candidates, even if they send no fewer bytes than dense.

        A controller that runs a CF chosen by the user returns true. For other controllers, gravac drops such CFs.
        """

    @property
    def chooses_sixteen_bit(self) -> bool:
        """True if the controller can choose dense in 16 bit, which is then the second candidate, after float32."""

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the compression factors (CFs) that the controller will choose from, ascending.

        Args:
            cf_range: lowest and highest CF that the user allows.
            supported: CFs that the compressor supports inside ``cf_range``: a ``Span`` supports all CFs from its lowest
                to its highest; a sequence lists each CF.
        """

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StateT, Decision]:
        """Return the state before the first step, and the decision for the first step.

        Args:
            forecasts: forecasts of the candidates that may be chosen, ascending by wire ratio. The first is of dense
                in float32; the second may be of dense in 16 bit.
        """

    def observe(self, state: StateT, measurement: Measurement) -> tuple[StateT, Decision]:
        """Return the state after the measurement of one more step, and a decision; called once per step, in order."""

    def dump(self, state: StateT) -> dict[str, Any]:
        """Return the state as JSON types (dict, list, str, int, float, bool, None), for a checkpoint."""

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[StateT, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision for the next step.

        The candidates may differ from those at the dump, for example with another number of ranks. The decision's
        candidate is one of ``forecasts``. The decision's reason says which part of the state could not be restored; it
        is empty if the whole state was restored.

        Args:
            dumped: the dict that ``dump`` returned, perhaps written as JSON and read again since.
            forecasts: forecasts of the candidates that may be chosen now, ascending by wire ratio, as for ``start``.
        """


OptionalFlag = Literal["chooses_every", "chooses_native", "states_cost"]
"""Name of an optional attribute of type bool of a ``Controller``."""


def has_flag(controller: Controller[Any], flag: OptionalFlag) -> bool:
    """Return the value of a controller's optional attribute of type bool; ``False`` if the controller lacks it."""
    return bool(getattr(controller, flag, False))


def cost_at_equal_samples(efficiency: float, lower_bound: float, in_short: bool = False) -> str:
    """Return a text that says how many more training steps a candidate needs for the same loss than dense averaging.

    The text is empty if ``efficiency`` and ``lower_bound`` are both 1.

    Args:
        efficiency: median of the belief about the candidate's statistical efficiency: progress of a step / progress of
            a step with dense gradient averaging.
        lower_bound: lower bound of that efficiency, by which controllers decide.
        in_short: whether to return a short text, for a reason that states the cost of a second candidate in full.

    Example:
        >>> cost, source = cost_at_equal_samples(0.96, 0.92).split(" (")
        >>> cost
        'about 4 % more steps than dense for the same loss'
        >>> source
        'estimated from other programs; to be safe, the controller assumes 9 % more steps)'
        >>> cost_at_equal_samples(0.96, 0.92, in_short=True), cost_at_equal_samples(1.0, 1.0)
        ('about 4 % more steps than dense (to be safe: 9 % more)', '')
    """
    if efficiency == lower_bound == 1:
        return ""
    percent, percent_at_bound = (
        f"{_additional_percent(assumed_efficiency):.0f}" for assumed_efficiency in (efficiency, lower_bound)
    )
    bound_differs, cost_text = percent != percent_at_bound, f"about {more_steps_text(efficiency)}"
    if in_short:
        return cost_text + f" (to be safe: {percent_at_bound} % more)" * bound_differs
    safety_text = f"; to be safe, the controller assumes {percent_at_bound} % more steps" * bound_differs
    return f"{cost_text} for the same loss (estimated from other programs{safety_text})"


def more_steps_text(efficiency: float) -> str:
    """Return a text that compares the number of training steps to a given loss with that of dense averaging.

    Args:
        efficiency: progress of a step / progress of a step with dense gradient averaging.

    Example:
        >>> more_steps_text(0.9), more_steps_text(1.0)
        ('11 % more steps than dense', 'as many steps as dense')
    """
    percent = _additional_percent(efficiency)
    return f"{percent:.0f} % more steps than dense" if percent >= 0.5 else "as many steps as dense"


def _additional_percent(efficiency: float) -> float:
    """Return the additional training steps to the same loss at an efficiency, in percent of dense averaging's steps."""
    return 100 * (1 / max(efficiency, 1e-9) - 1)


def adapt_to_latency(controller: Controller[StateT], latency: int) -> Controller[StateT]:
    """Return the controller for a run in which decisions take effect ``latency`` steps after the measured step.

    A controller without a method ``for_latency`` is returned unchanged.
    """
    for_latency = getattr(controller, "for_latency", None)
    return controller if for_latency is None else for_latency(latency)
