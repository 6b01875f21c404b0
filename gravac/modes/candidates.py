# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The candidates, of all three modes, that a run's controller may choose from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.collectives import AllReduce
from gravac.controllers.base import has_flag
from gravac.costmodel import Network
from gravac.costmodel.network import collective_seconds
from gravac.engine.admission import Admission, admit, drop_below_efficiency, with_native
from gravac.engine.run_state import RunState
from gravac.exchange.link_probe import LinkProbe
from gravac.modes.outer.candidates import delays_by_candidate, every_choices, with_outer_candidates
from gravac.policy import Policy


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


def leaving_bytes(module: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Return the bytes that a rank hands to dense collectives to make all ranks equal at the end of outer steps.

    Args:
        module: the model, without wrappers.
        optimizers: the model's optimizers, whose states are made equal, too.
    """
    element_count = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    moments_per_element = max(map(_moments_per_parameter, optimizers), default=0)
    return 4 * element_count * (1 + moments_per_element)


def _moments_per_parameter(optimizer: torch.optim.Optimizer) -> int:
    """Return how many tensors of a parameter's size an optimizer keeps for each parameter: 2 for Adam, 0 for SGD."""
    group = optimizer.param_groups[0]
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    return 1 if group.get("momentum") else 0
