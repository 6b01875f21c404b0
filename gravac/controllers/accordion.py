# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Accordion: compress a tensor little while its gradient changes fast (a critical regime), and much otherwise.

Source: Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", MLSys
2021 (arXiv 2010.16248), by its published code. Gradients are summed over an epoch, tensor by tensor, without error
feedback; the norms of these sums are compared with those of ``every`` epochs before. Where the code lets rank 0 decide
from its own gradients, here the mean over ranks of the squared norms decides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers.base import LATENCY, Decision, Measurement, Sums
from gravac.controllers.plain import Finite, check_names, from_plain, identified, identify, to_plain
from gravac.controllers.schedule import snap
from gravac.controllers.window import SETTLING, Window
from gravac.settings import Settings, SettingsError

EPOCH = 1000
"""Number of steps taken for an epoch where neither the controller nor the run says how many there are."""


@dataclass(frozen=True, slots=True)
class AccordionState:
    """Where an Accordion run is.

    Attributes:
        low: candidate of tensors in a critical regime.
        high: candidate of all other tensors.
        window: the window under way.
        step: number of the last step measured; -1 before the first.
        calm: names of the tensors that are not in a critical regime, ascending.
        norms: norm of each tensor's gradient sum in the epoch last looked at, by name.
        learning_rate: the last one known; ``None`` before.
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
        """Name of the model's regime: ``"mixed"`` where some of its tensors are critical and others are not."""
        if not self.calm:
            return "critical"
        return "calm" if len(self.calm) == len(self.norms) else "mixed"


class Accordion(Settings):
    """Runs each tensor at one of two CFs, the ends of ``cf_range``: the low one in its critical regimes.

    All tensors begin with the low CF. At the end of epochs 0, ``every``, 2 ``every`` ... a tensor is critical when the
    norm of its epoch's gradient sum changed by ``eta`` or more, relatively, since the epoch looked at before; also when
    there was none, or its norm was 0. Whenever the learning rate falls, every tensor is critical until the next look.
    A rate that falls at every step (cosine decay) so keeps all at the low CF. Where the low CF would send no less than
    dense, dense takes its place.

    Attributes:
        eta: smallest relative change of a norm at which a tensor is critical. The published code's: 0.5.
        every: epochs between two comparisons of norms. The published code's: 10 for CNNs, 5 for an LSTM.
        epoch: steps of an epoch; ``None`` is ``steps_per_epoch`` of ``AdaptiveCompressor``, 1000 without it.
        window: steps between records.
        latency: steps from a measurement to its decision, fewer than an epoch has; the executor says (``for_latency``).

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
        """Return the same controller for decisions that take effect after so many steps.

        Raises:
            SettingsError: an epoch has no more steps than that.
        """
        if self._steps <= latency:
            raise SettingsError(f"epoch: {self._steps} steps, and a decision takes {latency} to take effect; use more")
        return self(latency=latency)

    def for_run(self, steps_per_epoch: int) -> "Accordion":
        """Counts in the run's epochs, unless it has its own."""
        return self if self.epoch is not None else self(epoch=steps_per_epoch)

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        """Return the ends of the range, or what the compressor can do nearest to them."""
        return snap(sorted(set(cf_range)), reach)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[AccordionState, Decision]:
        """Begin with all tensors at the low CF."""
        low, high = _ends(forecasts)
        state = AccordionState(low, high, Window(low))
        reason = f"accordion: {low} in critical regimes, {high} otherwise; epochs of {self._steps} steps"
        return state, replace(self._decide(state), reason=reason)

    def observe(self, state: AccordionState, measurement: Measurement) -> tuple[AccordionState, Decision]:
        """Compare the norms when they come, and the learning rate at every step."""
        now = replace(state, step=measurement.step, window=state.window.add(measurement))
        why = ""
        if measurement.norms and self._sums(measurement.step) == "report":
            now = self._look(now, measurement.norms)
        if math.isfinite(rate := measurement.learning_rate):
            last = now.learning_rate
            # lower by more than the rounding of a mean
            if last is not None and rate < last and not math.isclose(rate, last):
                now = replace(now, calm=())
                why = f"the learning rate fell to {rate:g}: "
            now = replace(now, learning_rate=rate)
        changed = now.runs != state.runs
        if not changed and now.window.steps < self.window:
            return now, self._decide(now)
        summary = now.window.summary(state.phase) if now.window.steps else None
        now = replace(now, window=Window(now.runs[0], settling=SETTLING if changed else 0))
        reason = f"accordion: {why}{len(now.norms) - len(now.calm)} of {len(now.norms)} tensors critical"
        return now, replace(self._decide(now), reason=reason, summary=summary)

    def dump(self, state: AccordionState) -> dict[str, Any]:
        """Return the state as plain values, for a checkpoint."""
        return {"running": identify([state.window.candidate])[0], **to_plain(state)}

    def check(self, plain: dict[str, Any]) -> None:
        """Refuse what ``dump`` does not give."""
        check_names(AccordionState, plain, ("running",), Window)
        (ran,) = identified([plain["running"]], "controller_state/running")
        self.restore(plain, [Forecast(ran, wire_ratio=1.0)])

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[AccordionState, Decision]:
        """Return the state that ``dump`` made plain, and the decision in force.

        The same tensors are critical. The window goes on when its candidate still runs.
        """
        low, high = _ends(forecasts)
        state = from_plain(AccordionState, {**plain, "low": low, "high": high, "window": Window(low)})
        state = replace(state, window=Window.resume(state.runs[0], plain))
        return state, self._decide(state)

    @property
    def _steps(self) -> int:
        """Number of steps of an epoch."""
        return self.epoch or EPOCH

    def _sums(self, step: int) -> Sums:
        """Tell what becomes of gradients in a step: those of epochs that are looked at are added up."""
        epoch, at = divmod(step, self._steps)
        if epoch % self.every:
            return "none"
        return "report" if at == self._steps - 1 else "add"

    def _look(self, state: AccordionState, norms: Sequence[tuple[str, float]]) -> AccordionState:
        """Find, at the end of an epoch, the tensors that are calm."""

        def calm(before: float, now: float) -> bool:
            return before > 0 and abs(before - now) / before < self.eta

        names = tuple(name for name, norm in norms if calm(state.norms.get(name, 0.0), norm))
        return replace(state, calm=names, norms={name: norm if math.isfinite(norm) else 0.0 for name, norm in norms})

    def _decide(self, state: AccordionState) -> Decision:
        """Decide what runs ``latency`` steps after the last measurement."""
        candidate, tensors = state.runs
        return Decision(candidate, tensors=tensors, sums=self._sums(state.step + self.latency))


def _ends(forecasts: Sequence[Forecast]) -> tuple[Candidate, Candidate]:
    """Return the low and the high candidate; dense instead of the low candidate if that was not admitted."""
    low = forecasts[-2] if len(forecasts) > 2 else forecasts[0]
    return low.candidate, forecasts[-1].candidate
