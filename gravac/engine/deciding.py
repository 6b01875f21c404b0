# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A run's controller at work: its candidates, its decision in force, and the records of decisions."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gravac.averaging.plan import Form
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import Controller, Decision, Measurement, at_latency
from gravac.controllers.window import SETTLING
from gravac.engine.admission import Admission
from gravac.engine.agreement import gain
from gravac.engine.records import compute_of, decided, holds_from, progress_record, step_record, with_cost
from gravac.engine.run_state import RunState
from gravac.measurement import LocalMeasurement
from gravac.settings import SettingsError
from gravac.telemetry.records import ForecastsRecord, Record, RunRecord

Admit = Callable[[RunState, Sequence[Form]], Admission]
"""Admits candidates once the model and the ranks are known: of a run's state, and the gradients' shapes and dtypes.

If its attribute ``waits`` is true afterwards, it is called once more when the state has ``compute_s``."""


ENOUGH = 8
"""Number of training steps, after the first ``SETTLING``, of which the median tells what a step's compute takes."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """What a run's records tell besides decisions.

    Attributes:
        samples_per_step: number of samples of a step over all ranks; ``None`` counts a step of a rank as one sample.
        steps_per_epoch: number of steps of an epoch, by which reasons are dated; ``None``: they are not.
        settings: told in the run's record; see ``RunRecord``.
        history: number of decision records, the newest, that the state holds; sinks get all.
    """

    samples_per_step: float | None = None
    steps_per_epoch: int | None = None
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    history: int = 1000


class Deciding:
    """Asks a controller, alike on all ranks, and keeps its decision.

    Args:
        controller: decides which candidate runs.
        admit: admits candidates, see ``Admit``.
        emit: takes records; called by the executor.
        reporting: what records tell besides decisions.

    Attributes:
        decision: decision in force; ``None`` before the first step.
        forecasts: forecasts of the candidates admitted; none before the first step.
        emit: takes records; called by the executor, or while it has nothing to do.
        seconds: seconds of the training step that the ranks agreed on last; 0 before.
        probe_asked: whether a decision asked for a reading of the probe since the engine last looked.
        restored: state of the controller, dumped, that the next ``decide_first`` restores; ``None``: there is none.
    """

    def __init__(
        self,
        controller: Controller[Any],
        admit: Admit,
        emit: Callable[[Record], None],
        reporting: Reporting = Reporting(),
    ) -> None:
        self.decision: Decision | None = None
        self.forecasts: tuple[Forecast, ...] = ()
        self._controller = controller
        self._admit = admit
        self.emit = emit
        self.seconds = 0.0
        self.probe_asked = False
        self._reporting = reporting
        self.restored: dict[str, Any] | None = None
        self._timed: tuple[float, ...] = ()
        self._latency = 0
        self._forms: Sequence[Form] = ()
        self._waits = False  # for what a step's compute takes, by which more candidates are admitted
        self._computes: list[float] = []

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates admitted; none before the first step."""
        return tuple(forecast.candidate for forecast in self.forecasts)

    def exchange_s(self, candidate: Candidate) -> float:
        """Return the seconds that the exchange of a candidate is forecast to take; 0 if not known."""
        known = next((forecast for forecast in self.forecasts if forecast.candidate == candidate), None)
        return 0.0 if known is None else known.exchange_s or 0.0

    def open(self, latency: int, timed: Iterable[float]) -> None:
        """Learn how many steps after a measurement its decision holds, and which CFs were timed (for ``RunRecord``)."""
        self._controller = at_latency(self._controller, latency)
        self._latency, self._timed = latency, tuple(timed)

    def restore(self, state: RunState, controller_state: dict[str, Any] | None) -> None:
        """Start from a dumped controller state, if there is one, at the next ``decide_first``.

        If the state has more decision records than the run's setting ``history`` allows, the oldest are dropped.
        """
        self.restored, self.decision = controller_state, None
        self._shorten(state)

    def decide_first(self, state: RunState, forms: Sequence[Form], world: int) -> Decision:
        """Admit candidates and ask for the first decision: the ranks and the model are known now."""
        self._forms, self._computes = forms, []
        self.forecasts, dropped = self._admit(state, forms)
        self._waits = bool(getattr(self._admit, "waits", False))
        if self.restored is not None:
            state.controller, self.decision = self._restored_state(self.restored)
        else:
            state.controller, self.decision = self._controller.start(self.forecasts)
        self.emit(RunRecord(dict(self._reporting.settings), world, self.forecasts, dropped, self._timed))
        if self.restored is not None and self.decision.reason:
            self._record(state, state.trained, state.candidate != self.decision.candidate)
        return self.decision

    def _restored_state(self, plain: dict[str, Any]) -> tuple[Any, Decision]:
        try:
            return self._controller.restore(plain, self.forecasts)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"controller_state: {self._controller.name} cannot restore it ({error!r}); load what its dump() gave"
            ) from error

    def samples(self, ranks: int) -> float:
        """Return the number of samples of a step over all ranks."""
        samples = self._reporting.samples_per_step
        return float(ranks) if samples is None else samples

    def observe(self, state: RunState, measured: Measurement, local: LocalMeasurement) -> None:
        """Emit the record of a step that the ranks agree on, and have the controller decide by it.

        Args:
            state: state of the steps; gets the controller's, the gain, and the decision's record.
            measured: the step, as all ranks share it.
            local: this rank's numbers of the step.
        """
        assert self.decision is not None
        state.gain = gain(measured.error, measured.energy)
        if not local.restored:
            state.wire_ratio = local.wire_ratio
            self.emit(step_record(measured, local))
        if math.isfinite(measured.seconds):
            self.seconds = measured.seconds
        before = self.decision.runs
        state.controller, self.decision = self._controller.observe(state.controller, measured)
        self.probe_asked |= self.decision.probe
        if self.decision.progress is not None:
            self.emit(progress_record(measured, self.decision.progress))
        changed = self.decision.runs != before
        if self.decision.summary is not None or changed:
            self._record(state, holds_from(measured, self._latency), changed)
        if self._waits:
            self._look_at_compute(state, measured)

    def _look_at_compute(self, state: RunState, measured: Measurement) -> None:
        """Admit candidates once more when it is known what a step takes without exchange."""
        compute = compute_of(measured)
        if measured.first < SETTLING or not 0 < compute < math.inf:
            return
        self._computes += [compute] * measured.steps
        if len(self._computes) < ENOUGH:
            return
        state.compute_s, self._computes = statistics.median(self._computes), []
        before = self.forecasts
        self.forecasts, dropped = self._admit(state, self._forms)
        self._waits = False
        if self.forecasts == before:
            return
        ends = measured.first + measured.steps
        self.emit(ForecastsRecord(ends, self.forecasts, dropped))
        state.controller, self.decision = self._restored_state(self._controller.dump(state.controller))

    def _record(self, state: RunState, first: int, changed: bool) -> None:
        """Emit the record of the decision in force, which holds from a step on, and add it to the state's history."""
        assert self.decision is not None
        decision = with_cost(self.decision, self.forecasts, self._controller) if changed else self.decision
        record = decided(first, decision, changed, state.gain, self._reporting.steps_per_epoch)
        state.history.append(record)
        self._shorten(state)
        self.emit(record)

    def _shorten(self, state: RunState) -> None:
        """Drop the oldest records beyond the setting ``history``."""
        del state.history[: -self._reporting.history]
