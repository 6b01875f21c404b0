# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Connects the engine, which averages gradients, to a model: in DDP, or in shards by FSDP2."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gravac.attaching import (
    cfs_of_native_steps,
    checks_every_step,
    moments_per_parameter,
    reason_against_pipelines,
    refuse_separate_decisions,
)
from gravac.checkpoint.ranks import Ranks
from gravac.exchange.reading import Number
from gravac.modes.outer.starting import same_on_all_ranks
from gravac.modes.replicas import ReplicaGroup, ReplicaGuard
from gravac.modes.source import Source
from gravac.modes.switch import Switch
from gravac.opening import RunOpening
from gravac.sources.ddp import DDPAdapter, canonical_name, refuse_momentum, refuse_unfit_ddp
from gravac.sources.ddp_private import (
    Reducer,
    averaged_parameters,
    check_outer_steps_possible,
    is_in_join,
    register_hook,
    scale_of,
    shards_of_tensor_parallelism,
)
from gravac.sources.ddp_steering import SteeredDDP
from gravac.sources.local_model import innermost, with_inner_optimizers

if TYPE_CHECKING:
    from gravac.sources.fsdp2_source import FSDP2Source

Hook = Callable[[object, GradBucket], "torch.futures.Future[torch.Tensor]"]
"""Communication hook of DDP: takes a state and a bucket, and returns a future of the bucket's flat buffer, averaged."""


class ModelConnection:
    """Connects the engine, which averages gradients, to a model, and disconnects the engine from the model.

    A source passes the model's gradients to the engine: ``adapter`` for a model in DDP, a ``FSDP2Source`` for a model
    in shards.

    Args:
        opening: object that compares the ranks' settings and creates the executor; has the run's settings and engine.
        hook: communication hook that DDP calls, see ``Hook``.

    Attributes:
        adapter: source that passes the gradients of DDP's buckets to the engine.
        switch: object that runs each step in the mode that the controller decided; ``None``: all steps are hook steps.
        is_attached: True from ``attach`` to ``detach``, also if gravac stays inactive, as in a single process.
    """

    def __init__(self, opening: RunOpening, hook: Hook) -> None:
        self._opening, self._hook = opening, hook
        self._policy, self._engine = opening.policy, opening.engine
        self._admission, self._requested_group = opening.admission, opening.group
        self.adapter = DDPAdapter(self._engine)
        self.switch: Switch | None = None
        self.is_attached = False
        self._sharded_source: FSDP2Source | None = None  # used instead of ``adapter``
        self._guard_handles: list[Any] = []  # of the hooks by which a guard of replicas sees steps without a switch

    def attach(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Connect the engine to a model's gradients; arguments and errors as for ``AdaptiveCompressor.attach``.

        Args:
            module: the model: a DistributedDataParallel, or in shards.
            optimizers: the model's optimizers.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
        """
        self._admission.native_cfs = ()
        if isinstance(module, DistributedDataParallel):
            self._attach_ddp(module, optimizers, scaler)
        else:
            self._attach_sharded(module, optimizers, scaler)

    def detach(self, ends_outer_steps: bool) -> None:
        """Undo ``attach``; errors as for ``AdaptiveCompressor.detach``. Called when no exchange is in flight.

        Args:
            ends_outer_steps: whether outer steps, if they run, end by an exchange that makes weights and optimizer
                states the same on all ranks.
        """
        if self.switch is not None and ends_outer_steps:
            self.switch.end_outer_steps()
        if self._sharded_source is not None:
            self._sharded_source.detach()
            self._sharded_source = None
        else:
            self.adapter.detach()
        for handle in self._guard_handles:
            handle.remove()
        self._guard_handles.clear()
        if self.switch is not None:
            self.switch.remove_hooks()
            self.switch = None
        self.is_attached = False

    def no_sync(self) -> AbstractContextManager[None] | None:
        """Return a context in which backwards accumulate gradients and exchange nothing; ``None`` without a model."""
        if self._sharded_source is not None:
            return self._sharded_source.no_sync()
        return None if self.adapter.ddp is None else self.adapter.ddp.no_sync()

    def stop_exchange(self) -> None:
        """Stop gravac's exchange in all later backwards of a model in shards; no effect on a model in DDP."""
        if self._sharded_source is not None:
            self._sharded_source.stop_exchange()

    def check_loaded(self, ranks: Ranks | None = None) -> None:
        """Check that a loaded state fits the model; if not, remove the model's parameters from the engine, and raise.

        Does nothing if no state was loaded.

        Args:
            ranks: ranks that must have loaded fitting states, all or none; ``None``: only this rank's state is checked.

        Raises:
            SettingsError: the state is of another model.
        """
        try:
            self._opening.restoring.check_model(ranks)
        except Exception:
            self.adapter.names.clear()
            self._engine.know({})
            raise

    def _attach_ddp(
        self,
        ddp: DistributedDataParallel,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        for optimizer in optimizers or (None,):
            refuse_unfit_ddp(ddp, self._policy.base, optimizer)
        refuse_separate_decisions(ddp, self._opening.agree_group)
        native_cfs = () if not self._policy.native else cfs_of_native_steps(ddp, scaler)
        if self._policy.every != (1, 1):
            Reducer(ddp)  # raises if this torch lacks private names of DDP that outer steps need
        may_change_mode = bool(native_cfs) or self._policy.every != (1, 1)
        group = self._requested_group or ddp.process_group
        if self._engine.ready_to_run and group is not self._opening.group:
            raise RuntimeError(
                "process_group: this compressor averaged over another group before; make a new AdaptiveCompressor"
            )
        self._opening.group = group
        self.adapter.bind(ddp)
        self._admission.native_cfs = native_cfs
        self._prepare(ddp.module, optimizers, scaler)
        self.adapter.set_module(ddp, optimizers[0] if optimizers else None)
        self.adapter.loss_scale = self._loss_scale(scaler)
        self.adapter.reason_against_pipelines = reason_against_pipelines(self._policy)
        if self._policy.every != (1, 1):
            self.adapter.refuse_steps_in_backward()
        register_hook(ddp, self._hook)
        guard = self._guard(_parameters_of(ddp), optimizers)
        if may_change_mode:
            switch = self._steer(SteeredDDP(self.adapter, ddp, self._hook), optimizers, guard, scaler)
            switch.reason_against_pipelines = self.adapter.reason_against_pipelines
        else:
            self.adapter.watch()
            self._guard_handles = guard.watch(ddp, optimizers, self._last_step_without_switch)

    def _attach_sharded(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        # importing torch's FSDP2 takes a second, which runs with other models need not wait for
        from gravac.sources.fsdp2 import ShardedModel
        from gravac.sources.fsdp2_outer import SteeredShards
        from gravac.sources.fsdp2_source import FSDP2Source

        for optimizer in optimizers:
            refuse_momentum(self._policy.base, optimizer)
        # not the innermost module: torch.compile's wrapper may be sharded
        sharded_model = ShardedModel(module, self._requested_group)
        source = FSDP2Source(self._engine, sharded_model)
        self._opening.group = sharded_model.replicas
        self._opening.agree_group = self._opening.agree_group or sharded_model.all_model_ranks
        self._prepare(module, optimizers, scaler)
        self._admission.leaving_bytes //= sharded_model.ranks_of_replica
        sharded_model.broadcast_weights()
        source.loss_scale = self._loss_scale(scaler)
        source.reason_against_pipelines = reason_against_pipelines(self._policy)
        source.refuses_steps_in_backward = self._policy.every != (1, 1)
        source.watch(module, optimizers[0] if optimizers else None)

        def parameters_in_shards() -> Mapping[str, torch.Tensor]:
            sharded_model.reshard()
            return sharded_model.parameters

        guard = self._guard(parameters_in_shards, optimizers)
        self._sharded_source = source
        self._steer(SteeredShards(source, module, sharded_model), optimizers, guard, scaler)

    def _prepare(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Compare settings over the ranks, and create the executor. Called after the engine got the parameters' names.

        Args:
            module: the model.
            optimizers: the model's optimizers.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
        """
        inner_module = innermost(module)
        texts_to_compare = {"grad_scaler": "none" if scaler is None else "enabled"}
        if self._policy.every != (1, 1):
            check_outer_steps_possible(module, with_inner_optimizers(optimizers))
            texts_to_compare.update(same_on_all_ranks(inner_module, self._policy.outer))
        self.check_loaded(self._all_ranks)
        element_count = sum(parameter.numel() for parameter in inner_module.parameters() if parameter.requires_grad)
        moments_per_element = max(map(moments_per_parameter, optimizers), default=0)
        self._admission.leaving_bytes = 4 * element_count * (1 + moments_per_element)
        self._opening.open(texts_to_compare)
        if scaler is not None:
            self._engine.averager.residuals.turn_on_overflow_safety()
        self.is_attached = True

    @property
    def _all_ranks(self) -> Ranks:
        """The ranks that make the same decisions, once their group is known."""
        return Ranks(self._opening.agree_group or self._opening.group)

    def _exclude_native(self) -> None:
        """Admit no more candidates of native steps, in which DDP averages without gravac's hook."""
        self._admission.native_cfs = ()

    def _loss_scale(self, scaler: torch.amp.GradScaler | None) -> Callable[[], Number] | None:
        """Return a function without arguments that returns the scaler's present scale; ``None`` without a scaler."""
        return None if scaler is None else scale_of(scaler, as_tensor=self._engine.executor.lag > 0)

    def _guard(
        self, parameters: Callable[[], Mapping[str, torch.Tensor]], optimizers: Sequence[torch.optim.Optimizer]
    ) -> ReplicaGuard:
        """Create the object that checks that ranks hold the same weights.

        Args:
            parameters: function that returns the parameters that ranks hold alike, by name.
            optimizers: the model's optimizers.
        """
        replica_group = ReplicaGroup.of(self._opening.group, self._opening.agree_group)
        return ReplicaGuard(self._engine, parameters, optimizers, replica_group, checks_every_step())

    def _last_step_without_switch(self) -> Any:
        """Return the future that ``Engine.begin`` returned for the last hook step; ``None`` before the first."""
        ddp = self.adapter.ddp
        return None if ddp is None or is_in_join(ddp) else self.adapter.decided_candidate

    def _steer(
        self,
        source: Source,
        optimizers: Sequence[torch.optim.Optimizer],
        guard: ReplicaGuard,
        scaler: torch.amp.GradScaler | None,
    ) -> Switch:
        """Create and return the switch, which runs each step in the mode that the controller decided.

        Args:
            source: source of the model's gradients, which can change between modes.
            optimizers: the model's optimizers.
            guard: object that checks that ranks hold the same weights.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
        """
        self.switch = Switch(self._engine, source, self._policy, optimizers, guard, scaler)
        self.switch.exclude_native = self._exclude_native
        try:
            self._opening.restoring.restore_outer(self.switch, self._all_ranks)
        except Exception:  # raised on all ranks, which may train on without gravac
            self.detach(ends_outer_steps=False)
            raise
        self.switch.register_hooks()
        return self.switch


def _parameters_of(ddp: DistributedDataParallel) -> Callable[[], Mapping[str, torch.Tensor]]:
    """Return a function that returns the parameters that DDP does not ignore, by name, also its shards.

    Args:
        ddp: the module, before its first forward, which takes shards of tensor parallelism out of the module.
    """
    ddp_ref, shards = weakref.ref(ddp), shards_of_tensor_parallelism(ddp)

    def parameters() -> Mapping[str, torch.Tensor]:
        present_ddp = ddp_ref()
        present_parameters = {} if present_ddp is None else averaged_parameters(present_ddp)
        return {canonical_name(name): parameter for name, parameter in {**present_parameters, **shards}.items()}

    return parameters
