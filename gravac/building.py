# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes the engine of a run from its settings: the one place where its parts meet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.collectives import AllReduce
from gravac.controllers.plain import identify
from gravac.costmodel import Network
from gravac.costmodel.network import collective_seconds
from gravac.engine.admission import Admission, admit, averager_of, drop_below_efficiency, with_native
from gravac.engine.deciding import Deciding, Reporting
from gravac.engine.engine import Engine
from gravac.engine.run_state import RunState
from gravac.exchange.link_probe import LinkProbe
from gravac.modes.outer.candidates import choices, offered, widened
from gravac.policy import RunSettings
from gravac.telemetry.records import Record


@dataclass(slots=True)
class RunAdmission:
    """Admits a run's candidates when its first step begins, and outer steps beside others once compute is known.

    Attributes:
        settings: settings of the run.
        averager: predicts what candidates send.
        link: what the link was probed at; ``None``: that is not known.
        coding: seconds of coding by CF, as timed where the gradients lie; see ``admit``.
        native: CFs that DDP's own exchange may run at: 1 in float32, 2 by torch's float16 hook; none if the gradients
            come from elsewhere than DDP.
        leaving_bytes: payload bytes that a rank hands to dense collectives so that ranks which trained apart are one
            again: a last round, and the optimizers' state.
        waits: whether outer steps are admitted once it is known what a step's compute takes.
    """

    settings: RunSettings
    averager: Averager
    link: LinkProbe | None = None
    coding: Mapping[float, float] = field(default_factory=dict)
    native: tuple[float, ...] = ()
    leaving_bytes: int = 0
    waits: bool = False

    def __call__(self, state: RunState, forms: Sequence[Form]) -> Admission:
        """Admit candidates; see ``gravac.engine.deciding.Admit``."""
        policy, outer = self.settings.policy, self.settings.policy.outer
        admission = admit(policy, self.averager, forms, self.link, self.coding)
        numbers = choices(*policy.every)
        together, self.waits = numbers[0] == 1, False
        if together and len(numbers) > 1 and state.compute_s is None:
            self.waits = True
        elif numbers[-1] > 1:
            admission = widened(
                admission,
                numbers,
                state.compute_s,
                delay=outer.delay,
                keep_all=policy.controller.keeps_all,
                fragments=outer.fragments,
                chooses=bool(getattr(policy.controller, "chooses_every", False)),
                world=state.world,
                before=offered(state.candidates),
                leaving_s=self._leaving_s(state.world),
            )
        admission = drop_below_efficiency(admission, policy.least_efficiency)
        if together and self.native and policy.native and getattr(policy.controller, "native", False):
            admission = with_native(admission, self.native)
        state.candidates = identify(forecast.candidate for forecast in admission.forecasts)
        return admission

    def _leaving_s(self, world: int) -> float | None:
        """Return the seconds that leaving outer steps takes on the link; ``None`` if the link is not known."""
        if self.link is None:
            return None
        network = Network(self.link.latency, self.link.bandwidth)
        return float(f"{collective_seconds(AllReduce, self.leaving_bytes, world, network):.3g}")


@dataclass(frozen=True, slots=True)
class Built:
    """What ``build`` makes: a run's engine, and what admits its candidates.

    Attributes:
        engine: runs the steps.
        admission: learns what is known of link and codecs when the executor is opened.
    """

    engine: Engine
    admission: RunAdmission


def build(settings: RunSettings, emit: Callable[[Record], None], open_executor: Callable[[], None]) -> Built:
    """Make the engine of a run.

    Args:
        settings: settings of the run.
        emit: takes records; called by the executor.
        open_executor: gives the engine an executor, when its first step begins at the latest.
    """
    averager = averager_of(settings.policy)
    admission = RunAdmission(settings, averager)
    reporting = Reporting(settings.samples_per_step, settings.steps_per_epoch, settings.plain(), settings.history)
    deciding = Deciding(settings.policy.controller, admission, emit, reporting)
    return Built(Engine(averager, deciding, open_executor), admission)
