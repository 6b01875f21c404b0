# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of a loop that tells itself when a step was made: ranks in memory need that, which take turns.

A user's loop says nothing: ``AdaptiveCompressor.attach`` sees steps by itself (``gravac.modes.switch``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from gravac.averaging.plan import Form
from gravac.candidate import Candidate
from gravac.closeable import Closeable
from gravac.collectives import Ledger
from gravac.controllers.base import has_flag
from gravac.engine.admission import Admission, admit
from gravac.engine.run_state import RunState
from gravac.exchange.comparing import check_alike
from gravac.exchange.executor import Executor
from gravac.modes.candidates import RunAdmission
from gravac.modes.outer import candidates
from gravac.modes.outer.outer_steps import OuterSteps
from gravac.modes.outer.starting import device_of, same_on_all_ranks
from gravac.policy import OuterSettings
from gravac.settings import SettingsError
from gravac.sources.local_model import LocalModel
from gravac.telemetry.records import DecisionRecord
from tests.policies import adaptive

OUTER = tuple(OuterSettings.model_fields)
"""Names of the settings that stand in ``outer``."""


class ApartAlone:
    """Admits outer steps alone, also rounds of one step, none of them doubted: these ranks never average gradients.

    Args:
        admission: what a run admits that may change its mode.
    """

    def __init__(self, admission: RunAdmission) -> None:
        self._admission = admission

    def __call__(self, state: RunState, forms: Sequence[Form]) -> Admission:
        """Admit candidates; see ``gravac.engine.decisions.Admit``."""
        given = self._admission
        policy, outer = given.policy, given.policy.outer
        in_each_step = admit(policy, given.averager, forms, given.link, given.coding)
        before = candidates.delays_by_candidate(state.candidates if outer.delay == "auto" else ())
        forecasts = []
        for every in candidates.every_choices(*policy.every):
            for forecast in in_each_step.forecasts:
                measured = candidates.delays(forecast, every, state.compute_s, outer.delay)
                behind = candidates.delays_if_continued(before, forecast, every, measured)
                ways = [
                    candidates.forecast_at_every(forecast, every, state.compute_s, delay, state.world)
                    for delay in behind
                ]
                chooses = has_flag(policy.controller, "chooses_every")
                forecasts += ways if chooses else [candidates.most_promising(ways)]
        screened = candidates.without_dominated(forecasts, policy.controller.keeps_all)
        state.candidates = [forecast.candidate for forecast in screened]
        return in_each_step._replace(forecasts=screened)


class OuterByHand(Closeable):
    """Ranks that train apart from their first step on, to the end.

    Args:
        module: trained on this rank; all ranks start from rank 0's weights.
        inner: trains it.
        outer: makes the optimizer of the anchor.
        executor: of ranks in memory; ``None``: the process group's.
        settings: those of ``AdaptiveCompressor`` and of ``OuterSettings``.
    """

    shards = None

    def __init__(
        self,
        module: torch.nn.Module,
        inner: torch.optim.Optimizer,
        *,
        outer: Any = None,
        executor: Executor | None = None,
        **settings: Any,
    ) -> None:
        apart = {name: settings.pop(name) for name in OUTER if name in settings}
        given = OuterSettings(**apart, optimizer=outer)
        self.compressor = adaptive(outer=given, **{"every": (1, 100), **settings})
        policy = self.compressor.policy
        group = self.compressor.process_group
        if executor is None:
            texts = {**self.compressor.policy.shared(), **same_on_all_ranks(module, given)}
            check_alike(texts, device_of(module), group)
            copy_from_first_rank(module, group)
        engine = self.compressor._engine
        engine.deciding._admit = ApartAlone(self.compressor._attachment.admission)
        self.inner = inner
        self.steps = OuterSteps(engine, LocalModel(module, [inner]), given, policy.every)
        self._engine = engine
        engine.know(self.steps.piece_templates)
        self.compressor._attachment.executor = executor
        self.compressor._attachment.open()
        self.compressor._attachment.is_attached = True
        self._engine.change_mode()
        self._state = self._engine.state.outer = self.steps.state
        self._rounds = self.steps._rounds
        self._anchor = self.steps.state.anchor
        self._buffers = self.steps.state.buffers
        self.outer = self.steps.outer_optimizer
        self._closed = False

    def step(self) -> None:
        """A step was made."""
        self.leave()
        self.arrive()

    def leave(self) -> None:
        """The first half of ``step``."""
        if self._closed:
            raise RuntimeError("this is closed; make a new one")
        self.steps.send()

    def arrive(self) -> None:
        """The other half."""
        self.steps.apply()

    def synchronize(self) -> None:
        """End the round."""
        self.steps.synchronize()

    @contextmanager
    def shared_weights(self, wait: bool = True) -> Iterator[None]:
        """Have the module hold the anchors."""
        with self.steps.shared_weights(wait):
            yield

    @property
    def under_way(self) -> bool:
        """Whether something is under way, or not taken up yet."""
        return self._state.under_way

    def _decided(self) -> Candidate | None:
        if not self.under_way:
            self._engine.drain()
        return self._engine.candidate

    def _known_state(self) -> Any:
        return self._engine.state if self.under_way else self._engine.settled

    @property
    def every(self) -> int:
        """Number of steps from one exchange to the next, as decided last."""
        candidate = self._decided()
        return self.compressor.policy.every[0] if candidate is None else candidate.every

    @property
    def cf(self) -> float:
        """Compression factor as decided last."""
        candidate = self._decided()
        return self.compressor.policy.dense_format.cf if candidate is None else candidate.cf

    @property
    def gain(self) -> float | None:
        """Gain of the last round that all ranks agreed on."""
        gain: float | None = self._known_state().gain
        return gain

    @property
    def wire_ratio(self) -> float | None:
        """Wire ratio of the last round that all ranks agreed on."""
        ratio: float | None = self._known_state().wire_ratio
        return ratio

    @property
    def history(self) -> list[DecisionRecord]:
        """Records of decisions."""
        return list(self._known_state().history)

    @property
    def ledger(self) -> Ledger:
        """What this rank handed to collectives."""
        return self.compressor.ledger

    @property
    def rounds(self) -> int:
        """Number of rounds so far."""
        return self._state.ended

    @property
    def late(self) -> int:
        """Number of means that came late."""
        return self._state.late

    @property
    def skipped(self) -> int:
        """Number of exchanges whose mean was not applied."""
        return self._state.refusals.skipped

    @property
    def process_group(self) -> Any:
        """The ranks that exchange."""
        return self.compressor.process_group

    def state_dict(self) -> dict[str, Any]:
        """This rank's state."""
        self.steps.prepare_to_save()
        packed = self.compressor.state_dict()
        return {**packed, "outer": self.steps.with_local_weights(packed["outer"])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        with self.restoring(state):
            pass

    @contextmanager
    def restoring(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Check a state, and go on from it unless the body raises."""
        if self._rounds.has_stepped:
            raise RuntimeError(
                "load_state_dict: this has made steps already, and goes on; load into a new one, before its first step"
            )
        plain = state.get("outer") if isinstance(state, Mapping) else None
        if plain is None:
            raise SettingsError("outer: the state is of ranks that do not train apart")
        self.steps.check_saved_state(plain)
        with (
            self.steps.restoring(plain, merged=state.get("world") is None),
            self.compressor.restoring({**state, "outer": None}),
        ):
            yield
        self.steps.restore_local()

    def close(self) -> None:
        """End."""
        self._closed = True
        self.compressor.close()


def copy_from_first_rank(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Copy the first rank's parameters and buffers to all ranks, as DDP does when it is created."""
    for tensor in (*module.parameters(), *module.buffers()):
        copied = tensor.detach().contiguous()
        dist.broadcast(copied, 0 if group is None else dist.get_global_rank(group, 0), group=group)
        tensor.detach().copy_(copied)
