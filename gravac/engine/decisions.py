# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lets a controller decide: gives it candidates and measurements, and emits records of steps and decisions."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gravac.averaging.plan import Form
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import Controller, Decision, Measurement, adapt_to_latency
from gravac.controllers.window import SETTLING
from gravac.engine.admission import Admission
from gravac.engine.agreement import gain
from gravac.engine.records import compute_of, decision_record, holds_from, step_record, with_cost
from gravac.engine.run_state import RunState
from gravac.settings import SettingsError
from gravac.telemetry.records import ForecastsRecord, Record, RunRecord

Admit = Callable[[RunState, Sequence[Form]], Admission]
"""Function that returns a run's candidates, given the run's state and the gradients' shapes and dtypes.

If the returned ``Admission`` has ``lacks_compute_time``, ``Deciding`` calls the function again as soon as the state has
``compute_s``, the seconds of a step without exchange.
"""


COMPUTE_STEPS = 8
"""Number of training steps from whose times the compute time of a step, as their median, is estimated.

The compute time is the time without exchange. The run's first few steps, while caches and buffers still change, do not
count.
"""


DECISIONS_KEPT = 1000
"""Number of the newest decision records that the run's state keeps; the log gets all records."""


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Settings of a run that its log records use.

    Attributes:
        samples_per_step: number of samples of a step over all ranks; ``None``: each rank's step counts as one sample.
        settings: the run's settings, which ``RunRecord`` contains.
        controller_note: text for ``RunRecord`` that names the controller.
    """

    samples_per_step: float | None = None
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    controller_note: str = ""


class Deciding:
    """Lets a controller decide which candidate runs, and stores the newest decision. All ranks decide the same.

    Args:
        controller: object that decides which candidate runs.
        admit: function that returns the run's candidates, see ``Admit``.
        emit: function that is called with each record for the log, by the executor or while the executor is idle.
        record_settings: settings and samples of the run, for its records.

    Attributes:
        decision: the newest decision; ``None`` before the first step.
        forecasts: forecasts of the candidates that may be chosen; empty before the first step.
        emit: the argument of that name.
        agreed_step_s: seconds of the newest training step that the ranks agreed on; 0 before the first such step.
        restored_controller_state: saved state of the controller, with which the next ``decide_first`` starts;
            ``None`` if there is none.
    """

    def __init__(
        self,
        controller: Controller[Any],
        admit: Admit,
        emit: Callable[[Record], None],
        record_settings: RecordSettings = RecordSettings(),
    ) -> None:
        self.decision: Decision | None = None
        self.forecasts: tuple[Forecast, ...] = ()
        self._controller = controller
        self._admit = admit
        self.emit = emit
        self.agreed_step_s = 0.0
        self._record_settings = record_settings
        self.restored_controller_state: dict[str, Any] | None = None
        self._timed_cfs: tuple[float, ...] = ()
        self._latency = 0
        self._forms: Sequence[Form] = ()
        # whether ``admit`` is called again once the compute time of a step is known
        self._waits_for_compute_time = False
        self._compute_seconds: list[float] = []

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates that may be chosen; empty before the first step."""
        return tuple(forecast.candidate for forecast in self.forecasts)

    def exchange_s(self, candidate: Candidate) -> float:
        """Return the predicted seconds of a step's exchange with a candidate; 0 if not known."""
        forecast = next((forecast for forecast in self.forecasts if forecast.candidate == candidate), None)
        return 0.0 if forecast is None else forecast.exchange_s or 0.0

    def set_latency(self, latency: int, timed_cfs: Iterable[float]) -> None:
        """Set after how many steps decisions take effect, and at which CFs coding was timed.

        Args:
            latency: number of steps from a measurement to the step in which its decision takes effect.
            timed_cfs: CFs at which encode and decode were timed, for ``RunRecord``.
        """
        self._controller = adapt_to_latency(self._controller, latency)
        self._latency, self._timed_cfs = latency, tuple(timed_cfs)

    def restore(self, state: RunState, controller_state: dict[str, Any] | None) -> None:
        """Keep a saved state of the controller, with which the next ``decide_first`` will start.

        If the run's state has more than ``DECISIONS_KEPT`` decision records, the oldest are dropped.

        Args:
            state: restored state of the run.
            controller_state: saved state of the controller; ``None``: the controller starts anew.
        """
        self.restored_controller_state, self.decision = controller_state, None
        del state.history[:-DECISIONS_KEPT]

    def decide_first(self, state: RunState, forms: Sequence[Form], world: int) -> Decision:
        """Select candidates, and return the controller's first decision; called when the ranks and the model are known.

        Args:
            state: state of the run; its controller state is set.
            forms: shapes and dtypes of all the model's gradients.
            world: number of ranks that average, for the run's record.
        """
        self._forms, self._compute_seconds = forms, []
        admission = self._admit(state, forms)
        self.forecasts, self._waits_for_compute_time = admission.forecasts, admission.lacks_compute_time
        if self.restored_controller_state is not None:
            state.controller, self.decision = self._restore_controller(self.restored_controller_state)
        else:
            state.controller, self.decision = self._controller.start(self.forecasts)
        settings = dict(self._record_settings.settings)
        note = self._record_settings.controller_note
        self.emit(RunRecord(settings, world, self.forecasts, admission.dropped, self._timed_cfs, controller_note=note))
        if self.restored_controller_state is None:
            self._record_decision(state, state.trained, changes_candidates=True)
        elif self.decision.reason:
            self._record_decision(state, state.trained, state.candidate != self.decision.candidate)
        return self.decision

    def _restore_controller(self, dumped: dict[str, Any]) -> tuple[Any, Decision]:
        """Return the controller's state and its newest decision, restored from a saved state."""
        try:
            return self._controller.restore(dumped, self.forecasts)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"controller_state: controller {self._controller.name!r} cannot restore this state ({error!r}); "
                "load a state that the same controller saved"
            ) from error

    def samples(self, ranks: int) -> float:
        """Return the number of samples of a training step over all ranks.

        Args:
            ranks: number of ranks; this is the result if the setting ``samples_per_step`` is ``None``.
        """
        samples = self._record_settings.samples_per_step
        return float(ranks) if samples is None else samples

    def observe(self, state: RunState, measured: Measurement, local: StepRecording) -> None:
        """Emit the record of a step that the ranks agreed on, and let the controller decide by its measurement.

        Args:
            state: state of the run; its controller state, gain and history are updated.
            measured: the measurement that all ranks share.
            local: this rank's measurement of the same step.
        """
        assert self.decision is not None
        state.gain = gain(measured.error, measured.energy)
        if not local.restored:
            state.wire_ratio = local.wire_ratio
            self.emit(step_record(measured, local))
        if math.isfinite(measured.seconds):
            self.agreed_step_s = measured.seconds
        previous_candidates = self.decision.runs
        state.controller, self.decision = self._controller.observe(state.controller, measured)
        candidate_changed = self.decision.runs != previous_candidates
        if self.decision.summary is not None or candidate_changed:
            self._record_decision(state, holds_from(measured, self._latency), candidate_changed)
        if self._waits_for_compute_time:
            self._add_compute_time(state, measured)

    def _add_compute_time(self, state: RunState, measured: Measurement) -> None:
        """Store the compute time of a step; after ``COMPUTE_STEPS`` training steps, select candidates again.

        The compute time is the time without exchange, in seconds. The selection uses the median of the stored times.

        Args:
            state: state of the run; the median is stored in it, and the controller's state may change.
            measured: measurement of the step.
        """
        compute_s = compute_of(measured)
        if measured.first < SETTLING or not 0 < compute_s < math.inf:
            return
        self._compute_seconds += [compute_s] * measured.steps
        if len(self._compute_seconds) < COMPUTE_STEPS:
            return
        state.compute_s, self._compute_seconds = statistics.median(self._compute_seconds), []
        previous_forecasts = self.forecasts
        admission = self._admit(state, self._forms)
        self.forecasts, self._waits_for_compute_time = admission.forecasts, False
        if self.forecasts == previous_forecasts:
            return
        next_step = measured.first + measured.steps
        self.emit(ForecastsRecord(next_step, self.forecasts, admission.dropped))
        state.controller, self.decision = self._restore_controller(self._controller.dump(state.controller))

    def _record_decision(self, state: RunState, first_step: int, changes_candidates: bool) -> None:
        """Emit the record of the newest decision, and add it to the history of the run.

        Args:
            state: state of the run.
            first_step: number of the first training step that the decision holds for.
            changes_candidates: whether the decision changes which candidates run.
        """
        assert self.decision is not None
        decision = with_cost(self.decision, self.forecasts, self._controller) if changes_candidates else self.decision
        record = decision_record(
            first_step,
            decision,
            changes_candidates,
            state.gain,
            self.forecasts,
        )
        state.history.append(record)
        del state.history[:-DECISIONS_KEPT]
        self.emit(record)
