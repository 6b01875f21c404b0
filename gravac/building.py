# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Creates the engine, which runs a run's steps, from the settings; gives it averager, controller and candidates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.collectives import AllReduce
from gravac.controllers.base import has_flag
from gravac.costmodel import Network
from gravac.costmodel.network import collective_seconds
from gravac.engine.admission import Admission, admit, averager_of, drop_below_efficiency, with_native
from gravac.engine.decisions import Deciding, RecordSettings
from gravac.engine.engine import Engine
from gravac.engine.run_state import RunState
from gravac.exchange.link_probe import LinkProbe
from gravac.modes.outer.candidates import delays_by_candidate, every_choices, with_outer_candidates
from gravac.policy import Policy
from gravac.telemetry.records import Record


@dataclass(slots=True)
class RunAdmission:
    """Function object that returns the candidates a controller may choose from; see ``gravac.engine.decisions.Admit``.

    Called when the first step begins. If outer steps are optional, called again when a step's compute time is known,
    since the forecasts of outer steps need that time.

    Attributes:
        policy: settings of the run.
        averager: object that predicts the bytes that candidates send.
        link: measured latency and bandwidth of the link; ``None``: not known.
        coding: measured seconds of encode and decode for each byte of a float32 tensor, by CF. For a CF that is
            missing, costs that were measured on a CPU are used.
        native_cfs: CFs that DDP's own exchange may use: 1 in float32, 2 by torch's float16 hook; empty if the gradients
            do not come from DDP.
        leaving_bytes: payload bytes that a rank hands to dense collectives when outer steps end, to make weights and
            optimizer states equal on all ranks again.
    """

    policy: Policy
    averager: Averager
    link: LinkProbe | None = None
    coding: Mapping[float, float] = field(default_factory=dict)
    native_cfs: tuple[float, ...] = ()
    leaving_bytes: int = 0

    def __call__(self, state: RunState, forms: Sequence[Form]) -> Admission:
        """Return the candidates that the controller may choose, and those that are dropped, with forecasts.

        Args:
            state: state of the run; this method sets its ``candidates``.
            forms: shapes and dtypes of all the model's gradients.
        """
        policy, outer_settings = self.policy, self.policy.outer
        admission = admit(policy, self.averager, forms, self.link, self.coding)
        step_counts = every_choices(*policy.every)
        may_average_each_step = step_counts[0] == 1
        lacks_compute_time = may_average_each_step and len(step_counts) > 1 and state.compute_s is None
        if step_counts[-1] > 1 and not lacks_compute_time:
            admission = with_outer_candidates(
                admission,
                step_counts,
                state.compute_s,
                delay=outer_settings.delay,
                keep_dominated=policy.controller.keeps_all,
                chooses=has_flag(policy.controller, "chooses_every"),
                world=state.world,
                checkpointed=delays_by_candidate(state.candidates),
                leaving_s=self._leaving_s(state.world),
            )
        admission = drop_below_efficiency(admission, policy)
        may_run_native = self.native_cfs and policy.native and has_flag(policy.controller, "chooses_native")
        if may_average_each_step and may_run_native:
            admission = with_native(admission, self.native_cfs)
        state.candidates = [forecast.candidate for forecast in admission.forecasts]
        return admission._replace(lacks_compute_time=lacks_compute_time)

    def _leaving_s(self, world: int) -> float | None:
        """Return the predicted seconds of the exchange that ends outer steps; ``None`` if the link was not probed."""
        if self.link is None:
            return None
        network = Network(self.link.latency, self.link.bandwidth)
        return float(f"{collective_seconds(AllReduce, self.leaving_bytes, world, network):.3g}")


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """Result of ``build``: the engine of a run, and the object that admits the run's candidates.

    Attributes:
        engine: engine that runs the steps.
        admission: object that returns the candidates; ``RunOpening`` sets its ``link`` and ``coding``.
    """

    engine: Engine
    admission: RunAdmission


def build(policy: Policy, emit: Callable[[Record], None], open_executor: Callable[[], None]) -> BuiltEngine:
    """Create the engine of a run, and the object that admits its candidates. No process group is needed yet.

    Args:
        policy: settings of the run.
        emit: function that is called with each record of the run, by the executor.
        open_executor: function without arguments that creates an executor and gives it to ``Engine.use``; called when
            the first step begins, at the latest.
    """
    averager = averager_of(policy)
    admission = RunAdmission(policy, averager)
    record_settings = RecordSettings(policy.samples_per_step, policy.as_dict(), policy.controller_note)
    deciding = Deciding(policy.controller, admission, emit, record_settings)
    return BuiltEngine(Engine(averager, deciding, open_executor), admission)
