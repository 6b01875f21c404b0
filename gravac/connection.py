# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Connects the engine, which averages gradients, to a model: in DDP, without a wrapper, or in shards by FSDP2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gravac.attaching import (
    cfs_of_native_steps,
    is_sharded,
    moments_per_parameter,
    reason_against_pipelines,
    refuse_separate_decisions,
    refuse_unequal_ranks,
)
from gravac.exchange.executor import Number
from gravac.modes.outer.starting import same_on_all_ranks
from gravac.modes.probe import ProbeLoss
from gravac.modes.source import Source
from gravac.modes.switch import Switch
from gravac.opening import RunOpening
from gravac.sources.ddp import DDPAdapter, refuse_momentum, refuse_unfit_ddp
from gravac.sources.ddp_private import Reducer, check_outer_steps_possible, register_hook, scale_of
from gravac.sources.ddp_steering import SteeredDDP
from gravac.sources.local_model import innermost
from gravac.sources.module import ModuleSource
from gravac.sources.module_steering import SteeredModule
from gravac.sources.weights import broadcast_weights

if TYPE_CHECKING:
    from gravac.sources.fsdp2_source import FSDP2Source

Hook = Callable[[object, GradBucket], "torch.futures.Future[torch.Tensor]"]
"""Communication hook of DDP: takes a state and a bucket, and returns a future of the bucket's flat buffer, averaged."""


class ModelConnection:
    """Connects the engine, which averages gradients, to a model, and disconnects the engine from the model.

    A source passes the model's gradients to the engine: ``adapter`` for a model in DDP, a ``ModuleSource`` for a module
    without a wrapper, a ``FSDP2Source`` for a model in shards.

    Args:
        opening: object that compares the ranks' settings and creates the executor; has the run's settings and engine.
        probe: function that returns the mean loss on this rank's fixed batches, see ``ProbeLoss``; ``None``: the run
            has no probe.
        hook: communication hook that DDP calls, see ``Hook``.

    Attributes:
        adapter: source that passes the gradients of DDP's buckets to the engine.
        switch: object that runs each step in the mode that the controller decided; ``None``: all steps are hook steps.
        is_attached: True from ``attach`` to ``detach``, also if gravac stays inactive, as in a single process.
    """

    def __init__(self, opening: RunOpening, probe: ProbeLoss | None, hook: Hook) -> None:
        self._opening, self._probe, self._hook = opening, probe, hook
        self._policy, self._engine = opening.settings.policy, opening.engine
        self._admission, self._requested_group = opening.admission, opening.group
        self.adapter = DDPAdapter(self._engine)
        self.switch: Switch | None = None
        self.is_attached = False
        self._source_without_ddp: ModuleSource | FSDP2Source | None = None  # used instead of ``adapter``

    def attach(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Connect the engine to a model's gradients; arguments and errors as for ``AdaptiveCompressor.attach``.

        Args:
            module: the model.
            optimizers: the model's optimizers.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
        """
        inner_module = innermost(module) if isinstance(module, torch.nn.Module) else module
        self._admission.native_cfs = ()
        if isinstance(inner_module, DistributedDataParallel):
            self._attach_ddp(inner_module, optimizers, scaler)
        elif isinstance(module, torch.nn.Module) and is_sharded(module):
            self._attach_sharded(module, optimizers, scaler)
        else:
            self._attach_module(module, optimizers, scaler)

    def detach(self, ends_outer_steps: bool) -> None:
        """Undo ``attach``; errors as for ``AdaptiveCompressor.detach``. Called when no exchange is in flight.

        Args:
            ends_outer_steps: whether outer steps, if they run, end by an exchange that makes weights and optimizer
                states the same on all ranks.
        """
        if self.switch is not None and ends_outer_steps:
            self.switch.end_outer_steps()
        if self._source_without_ddp is not None:
            self._source_without_ddp.detach()
            self._source_without_ddp = None
        else:
            self.adapter.detach()
        if self.switch is not None:
            self.switch.remove_hooks()
            self.switch = None
        self.is_attached = False

    def accumulate(self) -> AbstractContextManager[None] | None:
        """Return a context in which backwards accumulate gradients and exchange nothing; ``None`` without a model."""
        if self._source_without_ddp is not None:
            return self._source_without_ddp.accumulate()
        return None if self.adapter.ddp is None else self.adapter.ddp.no_sync()

    def stop_exchange(self) -> None:
        """Stop gravac's exchange in all later backwards of a model without DDP; no effect on a model in DDP."""
        if self._source_without_ddp is not None:
            self._source_without_ddp.stop_exchange()

    def check_loaded(self) -> None:
        """Check that a loaded state fits the model; if not, remove the model's parameters from the engine, and raise.

        Does nothing if no state was loaded.

        Raises:
            SettingsError: the state is of another model.
        """
        try:
            self._opening.restoring.check_model()
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
        may_change_mode = bool(native_cfs) or self._policy.every != (1, 1) or self._probe is not None
        group = self._requested_group or ddp.process_group
        if self._engine.ready_to_run and group is not self._opening.group:
            raise RuntimeError(
                "process_group: this compressor averaged over another group before; make a new AdaptiveCompressor"
            )
        self._opening.group = group
        self.adapter.bind(ddp)
        self._admission.native_cfs = native_cfs
        self._prepare(ddp.module, optimizers, scaler, {})
        self.adapter.set_module(ddp, optimizers[0] if optimizers else None)
        self.adapter.loss_scale = self._loss_scale(scaler)
        self.adapter.reason_against_pipelines = reason_against_pipelines(self._policy, self._probe is not None)
        register_hook(ddp, self._hook)
        if may_change_mode:
            switch = self._steer(SteeredDDP(self.adapter, ddp, self._hook), optimizers, scaler)
            switch.reason_against_pipelines = self.adapter.reason_against_pipelines
        else:
            self.adapter.watch()

    def _attach_module(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module: attach needs a torch.nn.Module, got {type(module).__name__}")
        for optimizer in optimizers:
            refuse_momentum(self._policy.base, optimizer)
        source = ModuleSource(self._engine)
        source.bind(module)
        self._prepare(module, optimizers, scaler, source.texts_to_compare)
        broadcast_weights(module, self._opening.group)
        source.loss_scale = self._loss_scale(scaler)
        self._steer(SteeredModule(source, module), optimizers, scaler)
        source.watch(module, optimizers[0] if optimizers else None)
        self._source_without_ddp = source

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

        if self._policy.every != (1, 1):
            refuse_unequal_ranks(self._policy.outer)
        for optimizer in optimizers:
            refuse_momentum(self._policy.base, optimizer)
        # not the innermost module: torch.compile's wrapper may be sharded
        sharded_model = ShardedModel(module, self._requested_group)
        source = FSDP2Source(self._engine, sharded_model)
        self._opening.group = sharded_model.replicas
        self._opening.agree_group = self._opening.agree_group or sharded_model.all_model_ranks
        self._prepare(module, optimizers, scaler, {})
        self._admission.leaving_bytes //= sharded_model.ranks_of_replica
        sharded_model.broadcast_weights()
        source.loss_scale = self._loss_scale(scaler)
        source.reason_against_pipelines = reason_against_pipelines(self._policy, self._probe is not None)
        source.watch(module, optimizers[0] if optimizers else None)
        self._steer(SteeredShards(source, module, sharded_model), optimizers, scaler)
        self._source_without_ddp = source

    def _prepare(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        texts_to_compare: Mapping[str, str],
    ) -> None:
        """Compare settings over the ranks, and create the executor. Called after the engine got the parameters' names.

        Args:
            module: the model.
            optimizers: the model's optimizers.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
            texts_to_compare: further texts, by name, that must be equal on all ranks; settings and parameters are
                always compared.
        """
        inner_module = innermost(module)
        if self._policy.every != (1, 1):
            check_outer_steps_possible(module, optimizers)
            texts_to_compare = {**texts_to_compare, **same_on_all_ranks(inner_module, self._policy.outer)}
        self.check_loaded()
        element_count = sum(parameter.numel() for parameter in inner_module.parameters() if parameter.requires_grad)
        moments_per_element = max(map(moments_per_parameter, optimizers), default=0)
        self._admission.leaving_bytes = 4 * element_count * (1 + moments_per_element)
        self._opening.open({"grad_scaler": "none" if scaler is None else "enabled", **texts_to_compare})
        if scaler is not None:
            self._engine.averager.feedback.turn_on_overflow_safety()
        self.is_attached = True

    def _exclude_native(self) -> None:
        """Admit no more candidates of native steps, in which DDP averages without gravac's hook."""
        self._admission.native_cfs = ()

    def _loss_scale(self, scaler: torch.amp.GradScaler | None) -> Callable[[], Number] | None:
        """Return a function without arguments that returns the scaler's present scale; ``None`` without a scaler."""
        return None if scaler is None else scale_of(scaler, as_tensor=not self._engine.schedule.host_looks)

    def _steer(
        self,
        source: Source,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> Switch:
        """Create and return the switch, which runs each step in the mode that the controller decided.

        Args:
            source: source of the model's gradients, which can change between modes.
            optimizers: the model's optimizers.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
        """
        self.switch = Switch(self._engine, source, self._policy, optimizers, scaler, self._probe)
        self.switch.exclude_native = self._exclude_native
        self._opening.restoring.restore_outer(self.switch)
        self.switch.register_hooks()
        return self.switch
