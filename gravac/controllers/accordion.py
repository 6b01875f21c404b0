# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Accordion: compress a tensor little while its gradient changes fast (a critical regime), and much otherwise.

Source: Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", MLSys
2021 (arXiv 2010.16248), by its published code. Gradients are summed over an epoch, tensor by tensor, without error
feedback; the norms of these sums are compared with those of ``every`` epochs before. In the published code rank 0
decides from its own gradients; here the mean over ranks of the squared norms decides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers.base import LATENCY, Decision, Measurement, Sums
from gravac.controllers.schedule import snap
from gravac.controllers.state_dicts import Finite, check_names, from_plain, identified, identify, to_plain
from gravac.controllers.window import SETTLING, Window
from gravac.settings import Settings, SettingsError

EPOCH = 1000
"""Number of steps of an epoch if neither the controller nor the run sets one."""


@dataclass(frozen=True, slots=True)
class AccordionState:
    """State of an Accordion run.

    Attributes:
        low: candidate of tensors in a critical regime.
        high: candidate of all other tensors.
        window: current window.
        step: number of the last step measured; -1 before the first.
        calm: names of the tensors that are not in a critical regime, ascending.
        norms: norm of each tensor's gradient sum in the last epoch that was compared, by name.
        learning_rate: last learning rate known; ``None`` before the first.
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
        """The candidate of the model, and ``(name, candidate)`` of the tensors that run another."""
        if self.phase == "calm" or self.low == self.high:
            return self.high, ()
        return self.low, tuple((name, self.high) for name in self.calm)

    @property
    def phase(self) -> str:
        """Name of the model's regime: ``"mixed"`` if some of its tensors are critical and others are not."""
        if not self.calm:
            return "critical"
        return "calm" if len(self.calm) == len(self.norms) else "mixed"


class Accordion(Settings):
    """Runs each tensor at one of two CFs, the ends of ``cf_range``: the low one in its critical regimes.

    All tensors begin with the low CF. Norms are compared at the end of epochs 0, ``every``, 2 ``every`` ... A tensor is
    critical if the norm of the epoch's gradient sum changed by ``eta`` or more, relative to the norm compared last. A
    tensor is critical, too, if that earlier norm is missing or 0. When the learning rate falls, every tensor is
    critical until the next comparison. So a rate that falls at every step (cosine decay) keeps all tensors at the low
    CF. If the low CF would send no less than dense, dense replaces it.

    Attributes:
        eta: smallest relative change of a norm at which a tensor is critical. The published code's: 0.5.
        every: epochs between two comparisons of norms. The published code's: 10 for CNNs, 5 for an LSTM.
        epoch: steps of an epoch; ``None`` means ``steps_per_epoch`` of ``AdaptiveCompressor``, 1000 without it.
        window: steps between records.
        latency: steps from a measurement to its decision, fewer than an epoch has; the executor sets the number
            (``for_latency``).

    Example:
        >>> Accordion().propose((2.0, 10.0), Span(1.0, 100.0))
        (2.0, 10.0)
    """

    name: ClassVar[str] = "accordion"
    keeps_all: ClassVar[bool] = False
    sixteen_bit: ClassVar[bool] = False

    eta: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    every: int = Field(default=10, ge=1)
    epoch: int | None = Field(default=None, ge=3)
    window: int = Field(default=20, ge=1)
    latency: int = Field(default=LATENCY, ge=2)

    def for_latency(self, latency: int) -> "Accordion":
        """Return the same controller for decisions that take effect ``latency`` steps after the measurement.

        Raises:
            SettingsError: an epoch has no more than ``latency`` steps.
        """
        if self._steps <= latency:
            raise SettingsError(f"epoch: {self._steps} steps, and a decision takes {latency} to take effect; use more")
        return self(latency=latency)

    def for_run(self, steps_per_epoch: int) -> "Accordion":
        """Return the controller for a run with epochs of that many steps; its own setting ``epoch`` has priority."""
        return self if self.epoch is not None else self(epoch=steps_per_epoch)

    def propose(self, cf_range: tuple[float, float], supported: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the ends of the range, or the CFs nearest to them that the compressor supports."""
        return snap(sorted(set(cf_range)), supported)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[AccordionState, Decision]:
        """Start with all tensors at the low CF."""
        low, high = _ends(forecasts)
        state = AccordionState(low, high, Window(low))
        reason = f"accordion: {low} in critical regimes, {high} otherwise; epochs of {self._steps} steps"
        return state, replace(self._decide(state), reason=reason)

    def observe(self, state: AccordionState, measurement: Measurement) -> tuple[AccordionState, Decision]:
        """Compare the norms if the measurement has any, and the learning rate at every step."""
        updated = replace(state, step=measurement.step, window=state.window.add(measurement))
        cause = ""
        if measurement.norms and self._sums(measurement.step) == "report":
            updated = self._compare_norms(updated, measurement.norms)
        if math.isfinite(rate := measurement.learning_rate):
            previous_rate = updated.learning_rate
            # lower by more than the rounding of a mean
            if previous_rate is not None and rate < previous_rate and not math.isclose(rate, previous_rate):
                updated = replace(updated, calm=())
                cause = f"the learning rate fell to {rate:g}: "
            updated = replace(updated, learning_rate=rate)
        changed = updated.runs != state.runs
        if not changed and updated.window.steps < self.window:
            return updated, self._decide(updated)
        summary = updated.window.summary(state.phase) if updated.window.steps else None
        updated = replace(updated, window=Window(updated.runs[0], settling=SETTLING if changed else 0))
        reason = f"accordion: {cause}{len(updated.norms) - len(updated.calm)} of {len(updated.norms)} tensors critical"
        return updated, replace(self._decide(updated), reason=reason, summary=summary)

    def dump(self, state: AccordionState) -> dict[str, Any]:
        """Return the state as JSON types, for a checkpoint."""
        return {"running": identify([state.window.candidate])[0], **to_plain(state)}

    def check(self, dumped: dict[str, Any]) -> None:
        """Raise ``SettingsError`` unless ``dumped`` is a state that ``dump`` returned."""
        check_names(AccordionState, dumped, ("running",), Window)
        (running,) = identified([dumped["running"]], "controller_state/running")
        self.restore(dumped, [Forecast(running, wire_ratio=1.0)])

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[AccordionState, Decision]:
        """Return the state that ``dump`` wrote, and the decision in force.

        The same tensors are critical. The window continues if its candidate still runs.
        """
        low, high = _ends(forecasts)
        state = from_plain(AccordionState, {**dumped, "low": low, "high": high, "window": Window(low)})
        state = replace(state, window=Window.resume(state.runs[0], dumped))
        return state, self._decide(state)

    @property
    def _steps(self) -> int:
        """Number of steps of an epoch."""
        return self.epoch or EPOCH

    def _sums(self, step: int) -> Sums:
        """Return whether to sum gradients in a step: sums are needed in epochs at whose end norms are compared."""
        epoch, step_in_epoch = divmod(step, self._steps)
        if epoch % self.every:
            return "none"
        return "report" if step_in_epoch == self._steps - 1 else "add"

    def _compare_norms(self, state: AccordionState, norms: Sequence[tuple[str, float]]) -> AccordionState:
        """Return the state with the tensors that are calm at the end of an epoch."""

        def is_calm(previous: float, current: float) -> bool:
            return previous > 0 and abs(previous - current) / previous < self.eta

        names = tuple(name for name, norm in norms if is_calm(state.norms.get(name, 0.0), norm))
        return replace(state, calm=names, norms={name: norm if math.isfinite(norm) else 0.0 for name, norm in norms})

    def _decide(self, state: AccordionState) -> Decision:
        """Return the decision that takes effect ``latency`` steps after the last measurement."""
        candidate, tensors = state.runs
        return Decision(candidate, tensors=tensors, sums=self._sums(state.step + self.latency))


def _ends(forecasts: Sequence[Forecast]) -> tuple[Candidate, Candidate]:
    """Return the low and the high candidate; dense instead of the low candidate if that was not admitted."""
    low = forecasts[-2] if len(forecasts) > 2 else forecasts[0]
    return low.candidate, forecasts[-1].candidate
