# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Builds the engine of a run from its settings; the only module that connects averager, controller and admission."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.collectives import AllReduce
from gravac.controllers.state_dicts import identify
from gravac.costmodel import Network
from gravac.costmodel.network import collective_seconds
from gravac.engine.admission import Admission, admit, averager_of, drop_below_efficiency, with_native
from gravac.engine.decisions import Deciding, Reporting
from gravac.engine.engine import Engine
from gravac.engine.run_state import RunState
from gravac.exchange.link_probe import LinkProbe
from gravac.modes.outer.candidates import choices, offered, with_outer
from gravac.policy import RunSettings
from gravac.telemetry.records import Record


@dataclass(slots=True)
class RunAdmission:
    """Admits a run's candidates when its first step begins; outer steps once the compute time of a step is known.

    Attributes:
        settings: settings of the run.
        averager: averager that predicts the bytes of candidates.
        link: latency and bandwidth of the link, as probed; ``None``: not known.
        coding: seconds of coding by CF, as timed on the gradients' device; see ``admit``.
        native: CFs that DDP's own exchange may run at: 1 in float32, 2 by torch's float16 hook; none if the gradients
            do not come from DDP.
        leaving_bytes: payload bytes that a rank hands to dense collectives when outer steps end, to make ranks equal
            again: those of a last round, and of the optimizers' state.
        waits: whether outer steps wait to be admitted until the compute time of a step is known.
    """

    settings: RunSettings
    averager: Averager
    link: LinkProbe | None = None
    coding: Mapping[float, float] = field(default_factory=dict)
    native: tuple[float, ...] = ()
    leaving_bytes: int = 0
    waits: bool = False

    def __call__(self, state: RunState, forms: Sequence[Form]) -> Admission:
        """Admit candidates; see ``gravac.engine.decisions.Admit``."""
        policy, outer = self.settings.policy, self.settings.policy.outer
        admission = admit(policy, self.averager, forms, self.link, self.coding)
        numbers = choices(*policy.every)
        may_average_each_step, self.waits = numbers[0] == 1, False
        if may_average_each_step and len(numbers) > 1 and state.compute_s is None:
            self.waits = True
        elif numbers[-1] > 1:
            admission = with_outer(
                admission,
                numbers,
                state.compute_s,
                delay=outer.delay,
                keep_all=policy.controller.keeps_all,
                fragments=outer.fragments,
                chooses=bool(getattr(policy.controller, "chooses_every", False)),
                world=state.world,
                checkpointed=offered(state.candidates),
                leaving_s=self._leaving_s(state.world),
            )
        admission = drop_below_efficiency(admission, policy.least_efficiency)
        has_native = self.native and policy.native and getattr(policy.controller, "native", False)
        if may_average_each_step and has_native:
            admission = with_native(admission, self.native)
        state.candidates = identify(forecast.candidate for forecast in admission.forecasts)
        return admission

    def _leaving_s(self, world: int) -> float | None:
        """Return the seconds that ending outer steps takes on the link; ``None`` if its speed is not known."""
        if self.link is None:
            return None
        network = Network(self.link.latency, self.link.bandwidth)
        return float(f"{collective_seconds(AllReduce, self.leaving_bytes, world, network):.3g}")


@dataclass(frozen=True, slots=True)
class Built:
    """Result of ``build``: the engine of a run, and the admission of its candidates.

    Attributes:
        engine: engine that runs the steps.
        admission: admission of candidates; its ``link`` and ``coding`` are set when the executor is opened.
    """

    engine: Engine
    admission: RunAdmission


def build(settings: RunSettings, emit: Callable[[Record], None], open_executor: Callable[[], None]) -> Built:
    """Build the engine of a run.

    Args:
        settings: settings of the run.
        emit: function that takes each record of the run; called by the executor.
        open_executor: function that creates the engine's executor; called when the first step begins, at the latest.
    """
    averager = averager_of(settings.policy)
    admission = RunAdmission(settings, averager)
    reporting = Reporting(settings.samples_per_step, settings.steps_per_epoch, settings.as_dict(), settings.history)
    deciding = Deciding(settings.policy.controller, admission, emit, reporting)
    return Built(Engine(averager, deciding, open_executor), admission)
