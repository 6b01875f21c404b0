# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Accordion: a controller that compresses a tensor little while its gradient changes fast, and much otherwise.

A tensor whose gradient changes fast is in a *critical regime*.

Source: Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", MLSys
2021 (arXiv 2010.16248), and its published code. Each rank sums the gradients of each tensor over the steps of an epoch,
before error feedback. The norm of a tensor's sum is compared with the norm of its sum some epochs earlier (setting
``every``). In the published code, rank 0 decides from its own gradients. Here the mean over ranks of the squared norms
decides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers.base import LATENCY, Decision, Measurement, Sums
from gravac.controllers.schedule import snap
from gravac.controllers.state_dicts import Finite, candidates_of, check_names, from_plain, identify, to_plain
from gravac.controllers.window import SETTLING, Window
from gravac.settings import Settings, SettingsError


@dataclass(frozen=True, slots=True)
class AccordionState:
    """State of the controller ``Accordion``.

    Attributes:
        low: candidate of low compression factor (CF), for tensors in a critical regime: their gradients change fast.
        high: candidate of high CF, for all other tensors.
        window: statistics of the steps since gain and throughput were last recorded.
        step: number of the last measured step, from 0; -1 before the first.
        calm: names of the tensors that are not in a critical regime, ascending.
        norms: norm of the sum of each tensor's gradients over the steps of the last epoch whose norms were compared, by
            tensor name; 0 if the norm was not finite.
        learning_rate: last measured learning rate; ``None`` if none was measured.
    """

    low: Candidate
    high: Candidate
    window: Window
    step: Annotated[int, Field(ge=-1, le=2**53, strict=True)] = -1
    calm: tuple[str, ...] = ()
    norms: Mapping[str, Finite] = field(default_factory=dict)
    learning_rate: Finite | None = None

    @property
    def runs(self) -> tuple[Candidate, tuple[tuple[str, Candidate], ...]]:
        """The candidate of the model, and ``(name, candidate)`` of each tensor that runs another candidate."""
        if self.phase == "calm" or self.low == self.high:
            return self.high, ()
        return self.low, tuple((name, self.high) for name in self.calm)

    @property
    def phase(self) -> str:
        """Regime of the model: ``"critical"`` if all tensors are critical, ``"calm"`` if none is, or ``"mixed"``."""
        if not self.calm:
            return "critical"
        return "calm" if len(self.calm) == len(self.norms) else "mixed"


class Accordion(Settings):
    """Runs critical tensors, whose gradients change fast, at the low end of ``cf_range``, and others at the high end.

    All tensors begin with the low CF (compression factor). In epochs 0, ``every``, 2 ``every`` ..., the gradients of
    each tensor are summed over the steps of the epoch. At its end, the norm of the sum is compared with the norm that
    was found ``every`` epochs earlier. A tensor is critical if its norm changed by the share ``eta`` or more, or if the
    earlier norm is missing or 0.

    When the learning rate falls, every tensor is critical until the next comparison. Therefore a rate that falls at
    every step (cosine decay) keeps all tensors at the low CF. If the low CF would send no fewer bytes than dense,
    critical tensors run dense.

    Attributes:
        eta: smallest relative change of a norm at which a tensor is critical; 0.5 in the published code.
        every: number of epochs from one comparison of norms to the next; in the published code 10 for CNNs and 5 for an
            LSTM.
        epoch: number of steps of an epoch; default: 1000.
        window: number of steps from one record of gain and throughput to the next.
        latency: number of steps from a measured step to the step in which the decision takes effect; less than the
            number of steps of an epoch. gravac sets it (``for_latency``).

    Example:
        >>> Accordion().propose((2.0, 10.0), Span(1.0, 100.0))
        (2.0, 10.0)
    """

    name: ClassVar[str] = "accordion"
    keeps_all: ClassVar[bool] = False
    chooses_sixteen_bit: ClassVar[bool] = False

    eta: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    every: int = Field(default=10, ge=1)
    epoch: int = Field(default=1000, ge=3)
    window: int = Field(default=20, ge=1)
    latency: int = Field(default=LATENCY, ge=2)

    def for_latency(self, latency: int) -> "Accordion":
        """Return the same controller for decisions that take effect ``latency`` steps after the measured step.

        Raises:
            SettingsError: an epoch has ``latency`` steps or fewer.
        """
        if self.epoch <= latency:
            raise SettingsError(
                f"epoch: an epoch has {self.epoch} steps, but a decision takes {latency} steps to take "
                f"effect; use an epoch of more than {latency} steps"
            )
        return self(latency=latency)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the lowest and the highest CF of ``cf_range``, or the supported CFs nearest to these; ascending."""
        return snap(sorted(set(cf_range)), supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[AccordionState, Decision]:
        """Return the state before the first step, and the decision for that step: all tensors run at the low CF."""
        low, high = _low_and_high_candidates(forecasts)
        state = AccordionState(low, high, Window(low))
        reason = (
            f"accordion: start at {low}; each tensor whose gradient norm changes by less than {100 * self.eta:.3g} % "
            f"{self._epochs_text} changes to {high}"
        )
        if low == high:
            reason = f"accordion: no candidate sends fewer bytes than {low}: keep {low}"
        return state, replace(self._decision_for(state), reason=reason)

    def observe(self, state: AccordionState, measurement: Measurement) -> tuple[AccordionState, Decision]:
        """Return the state after a step, and a decision.

        In the last step of the epochs 0, ``every``, 2 ``every`` ..., the measurement has a norm for each tensor: the
        norm of the sum of its gradients over the epoch's steps. This norm is compared with the tensor's norm ``every``
        epochs earlier, to decide whether the tensor is critical. If the learning rate is lower than in the step before,
        all tensors become critical.
        """
        updated_state = replace(state, step=measurement.step, window=state.window.add(measurement))
        cause_text = ""
        if measurement.norms and self._sums(measurement.step) == "report":
            updated_state = self._compare_norms(updated_state, measurement.norms)
        if math.isfinite(rate := measurement.learning_rate):
            previous_rate = updated_state.learning_rate
            # the rate is a mean over ranks: a difference within rounding is no fall
            if previous_rate is not None and rate < previous_rate and not math.isclose(rate, previous_rate):
                updated_state = replace(updated_state, calm=())
                cause_text = f"the learning rate fell from {previous_rate:g} to {rate:g}: "
            updated_state = replace(updated_state, learning_rate=rate)
        runs_changed = updated_state.runs != state.runs
        if not runs_changed and updated_state.window.steps < self.window:
            return updated_state, self._decision_for(updated_state)
        summary = updated_state.window.summary(state.phase) if updated_state.window.steps else None
        updated_state = replace(
            updated_state, window=Window(updated_state.runs[0], settling=SETTLING if runs_changed else 0)
        )
        reason = f"accordion: {cause_text}{_describe_regimes(updated_state)}"
        return updated_state, replace(self._decision_for(updated_state), reason=reason, summary=summary)

    def dump(self, state: AccordionState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        return {"running": identify([state.window.candidate])[0], **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` if ``dumped`` is not a state that ``dump`` returned."""
        check_names(AccordionState, dumped, ("running",), Window)
        (running,) = candidates_of([dumped["running"]], "controller_state/running")
        self.restore(dumped, [Forecast(running, wire_ratio=1.0)])

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[AccordionState, Decision]:
        """Return the state that a dict of ``dump`` describes, and the decision for the next step.

        The same tensors stay critical. If the model runs the same candidate as at the dump, the window of steps
        continues; otherwise a new window begins.
        """
        low, high = _low_and_high_candidates(forecasts)
        state = from_plain(AccordionState, {**dumped, "low": low, "high": high, "window": Window(low)})
        state = replace(state, window=Window.resume(state.runs[0], dumped))
        return state, self._decision_for(state)

    @property
    def _epochs_text(self) -> str:
        """Text for reasons: over which epochs gradient norms were compared, and how many steps an epoch has."""
        if self.every == 1:
            return f"from one epoch ({self.epoch} steps) to the next"
        return f"within {self.every} epochs ({self.epoch} steps each)"

    def _sums(self, step: int) -> Sums:
        """Return the value of ``Decision.sums`` for a step, which is counted from 0.

        ``"add"`` in epochs 0, ``every``, 2 ``every`` ...: each rank adds the step's gradient of each tensor to the
        tensor's sum. ``"report"`` in the last step of these epochs: the norms of the sums are also measured. ``"none"``
        in all other epochs.
        """
        epoch, step_in_epoch = divmod(step, self.epoch)
        if epoch % self.every:
            return "none"
        return "report" if step_in_epoch == self.epoch - 1 else "add"

    def _compare_norms(self, state: AccordionState, norms: Sequence[tuple[str, float]]) -> AccordionState:
        """Compare each tensor's new norm with its earlier norm; return the state with updated ``calm`` and ``norms``.

        Args:
            state: state with the norms of the previous comparison.
            norms: ``(name, norm)`` of each tensor: norm of the sum of its gradients over the steps of the epoch that
                has ended.
        """

        def is_calm(previous_norm: float, current_norm: float) -> bool:
            return previous_norm > 0 and abs(previous_norm - current_norm) / previous_norm < self.eta

        calm_names = tuple(name for name, norm in norms if is_calm(state.norms.get(name, 0.0), norm))
        return replace(
            state, calm=calm_names, norms={name: norm if math.isfinite(norm) else 0.0 for name, norm in norms}
        )

    def _decision_for(self, state: AccordionState) -> Decision:
        """Return the decision that takes effect ``latency`` steps after the last measurement."""
        candidate, tensors = state.runs
        return Decision(candidate, tensors=tensors, sums=self._sums(state.step + self.latency))


def _describe_regimes(state: AccordionState) -> str:
    """Return a text that says how many tensors are in a critical regime, and which candidates run."""
    tensor_count = len(state.norms)
    if not tensor_count:
        return f"{state.low} for all tensors, since no gradient norms of an epoch are known yet"
    critical_count = tensor_count - len(state.calm)
    verb = "is" if critical_count == 1 else "are"
    regimes_text = f"{critical_count} of {tensor_count} tensors {verb} in a critical regime"
    if state.low == state.high or not state.calm:
        return f"{regimes_text}: run {state.low}"
    if not critical_count:
        return f"{regimes_text}: run {state.high}"
    return f"{regimes_text} and {'runs' if critical_count == 1 else 'run'} {state.low}; the others run {state.high}"


def _low_and_high_candidates(forecasts: Sequence[Forecast]) -> tuple[Candidate, Candidate]:
    """Return the candidates of low and high CF; dense in place of the low CF if the low CF is no candidate.

    Args:
        forecasts: forecast of dense, then of at most two compressed candidates, ascending by CF.
    """
    low_forecast = forecasts[-2] if len(forecasts) > 2 else forecasts[0]
    return low_forecast.candidate, forecasts[-1].candidate
