# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Attaches a run to a model, and detaches it.

The file is in the order in which ``attach`` works:

1. It finds the optimizers, the module whose gradients ranks average, and whether gravac runs at all.
2. It refuses what the run cannot train, and tells the engine the parameters' names and shapes.
3. It compares settings and parameters over the ranks, creates the executor, which runs the collectives, and measures
   the link.
4. It connects the engine to the gradients: by DDP's hook, or by hooks on shards; and creates the switch between modes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gravac.checkpoint.ranks import Ranks
from gravac.engine.admission import averager_of
from gravac.engine.codec_timing import time_codecs
from gravac.engine.decisions import Deciding, RecordSettings
from gravac.engine.engine import Engine
from gravac.engine.inputs import scale_of
from gravac.exchange.comparing import check_alike, largest_shapes
from gravac.exchange.executor import Executor
from gravac.exchange.opening import OpenedExecutor, open_executor
from gravac.exchange.reading import Number
from gravac.modes.candidates import RunAdmission, leaving_bytes
from gravac.modes.outer.starting import check_outer_steps_possible, device_of, same_on_all_ranks
from gravac.modes.replicas import ReplicaGroup, ReplicaGuard
from gravac.modes.source import Source
from gravac.modes.switch import Switch
from gravac.policy import Policy
from gravac.restoring import Restoring
from gravac.settings import SettingsError
from gravac.sources.ddp import DDPSource
from gravac.sources.ddp_private import Reducer, refuse_unfit
from gravac.sources.local_model import innermost, with_inner_optimizers
from gravac.sources.optimizers import optimizers_of, refuse_foreign, refuse_momentum
from gravac.telemetry.sinks import Sinks

if TYPE_CHECKING:
    from gravac.sources.fsdp2_source import FSDP2Source

ENVIRONMENT_SWITCH = "GRAVAC"
"""Name of the environment variable that turns gravac off (``off``), or lets ranks compare weights after each step
(``check``)."""

NO_FURTHER_TEXTS: Mapping[str, str] = MappingProxyType({})
"""No texts that ranks compare besides settings and parameters."""

Hook = Callable[[object, GradBucket], "torch.futures.Future[torch.Tensor]"]
"""Communication hook of DDP: takes a state and a bucket, and returns a future of the bucket's flat buffer, averaged."""


class Attachment:
    """A run's engine, and its connection to a model.

    Args:
        policy: compressor, controller and other settings of the run.
        sinks: sinks of the run's records; opened on rank 0 only.
        group: group of the ranks that average; ``None``: DDP's own, or the default group.
        hook: communication hook that DDP calls, see ``Hook``.

    Attributes:
        engine: engine that averages the gradients.
        admission: object that returns the candidates; ``open`` gives it the measured speeds.
        restoring: object that restores a saved state, and checks that the state fits rank and model.
        source: source of the gradients of DDP's buckets.
        switch: object that runs each step in the mode that the controller decided; ``None`` before ``attach``, and if
            the gradients come from a hook that was registered by hand or from a loop of one's own.
        group: group of the ranks that average; ``None``: the default group.
        agree_group: group of the ranks that make the same decisions; ``None``: the ranks that average.
        executor: executor that the user gave; ``None``: ``open`` creates an executor.
        is_attached: True from ``attach`` to ``detach``, also if gravac stays inactive.
        is_idle: True if gravac stays inactive, as in a single process.
    """

    def __init__(self, policy: Policy, sinks: Sinks, group: dist.ProcessGroup | None, hook: Hook) -> None:
        averager = averager_of(policy)
        self.admission = RunAdmission(policy, averager)
        record_settings = RecordSettings(policy.samples_per_step, policy.as_dict(), policy.controller_note)
        self.engine = Engine(averager, Deciding(policy.controller, self.admission, sinks, record_settings), self.open)
        self.restoring = Restoring(policy, self.engine)
        self.source = DDPSource(self.engine)
        self.switch: Switch | None = None
        self.group = group
        self.agree_group: dist.ProcessGroup | None = None
        self.executor: Executor | None = None
        self.is_attached = self.is_idle = self._has_own_loop = False
        self._policy, self._sinks, self._requested_group, self._hook = policy, sinks, group, hook
        self._idle_ddp: DistributedDataParallel | None = None
        self._sharded_source: FSDP2Source | None = None  # used instead of ``source``

    def attach(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
        grad_scaler: torch.amp.GradScaler | None,
        agree_group: dist.ProcessGroup | None,
    ) -> None:
        """Attach the run to a model; arguments and errors as for ``AdaptiveCompressor.attach``."""
        optimizers = optimizers_of(optimizer, self._policy.every)
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module: attach needs a torch.nn.Module, got {type(module).__name__}")
        may_be_any_module = self._policy.native and is_single_process(self._requested_group)
        model = innermost(module) if may_be_any_module else exchanging_module(module)
        if reason := reason_to_idle(model, self._requested_group, self._policy):
            warnings.warn(f"gravac: {reason}: training continues without gravac", stacklevel=3)
            self.is_attached = self.is_idle = True
            self._idle_ddp = model if isinstance(model, DistributedDataParallel) else None
            return
        refuse_foreign(optimizers, model)
        for each_optimizer in optimizers:
            refuse_momentum(self._policy.base, each_optimizer)
        scaler = grad_scaler if grad_scaler is not None and grad_scaler.is_enabled() else None
        self.agree_group = agree_group
        self.admission.native_cfs = ()
        if isinstance(model, DistributedDataParallel):
            self._attach_ddp(model, optimizers, scaler)
        else:
            self._attach_shards(model, optimizers, scaler)

    def _attach_ddp(
        self,
        ddp: DistributedDataParallel,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        allows_outer_steps = self._policy.every != (1, 1)
        refuse_unfit(ddp, self.agree_group)
        reducer = Reducer(ddp)
        if allows_outer_steps:
            reducer.check_names()
        group = self._requested_group or ddp.process_group
        if self.engine.ready_to_run and group is not self.group:
            raise RuntimeError(
                "process_group: this compressor averaged over another group before; make a new AdaptiveCompressor"
            )
        self.group = group
        self.source.bind(ddp)
        self.admission.native_cfs = cfs_of_native_steps(reducer, scaler) if self._policy.native else ()
        self._compare(ddp.module, optimizers, scaler)
        self.source.loss_scale = self._loss_scale(scaler)
        self.source.refuses_steps_in_backward = allows_outer_steps
        self.source.attach(reducer, optimizers[0] if optimizers else None, self._hook)
        self._steer(self.source, optimizers, self._guard(lambda: self.source.parameters, optimizers), scaler)

    def _attach_shards(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        # importing torch's FSDP2 takes a second, which runs with other models need not wait for
        from gravac.sources.fsdp2 import ShardedModel
        from gravac.sources.fsdp2_source import FSDP2Source

        # not the innermost module: torch.compile's wrapper may be sharded
        sharded_model = ShardedModel(module, self._requested_group)
        source = FSDP2Source(self.engine, sharded_model, module)
        self.group = sharded_model.replicas
        self.agree_group = self.agree_group or sharded_model.all_model_ranks
        self._compare(module, optimizers, scaler)
        self.admission.leaving_bytes //= sharded_model.ranks_of_replica
        sharded_model.broadcast_weights()
        source.loss_scale = self._loss_scale(scaler)
        source.refuses_steps_in_backward = self._policy.every != (1, 1)
        source.watch(optimizers[0] if optimizers else None)
        self._sharded_source = source
        self._steer(source, optimizers, self._guard(lambda: sharded_model.parameters, optimizers), scaler)

    def bind(self, module: torch.nn.Module) -> None:
        """Tell the engine a model's parameters; the caller registers the hook. See ``AdaptiveCompressor.bind``."""
        self.source.bind(module)
        self._check_loaded()
        self.is_attached = True

    def attach_parameters(
        self,
        parameters: Mapping[str, torch.Tensor],
        group: dist.ProcessGroup | None,
        agree_group: dist.ProcessGroup | None,
        executor: Executor | None,
        same: Mapping[str, str],
    ) -> Engine:
        """Return the engine for a loop of one's own; see ``AdaptiveCompressor.attach_parameters``."""
        self.engine.know(parameters)
        self._check_loaded()
        self.group, self.agree_group, self.executor = group or self.group, agree_group, executor
        self.open(same)
        self.is_attached = self._has_own_loop = True
        return self.engine

    # comparing

    def _compare(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Check that a loaded state fits the model, compare settings over the ranks, and create the executor.

        Called after the engine got the parameters' names.

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
        self._check_loaded(self._deciding_ranks)
        self.admission.leaving_bytes = leaving_bytes(inner_module, optimizers)
        self.open(texts_to_compare)
        if scaler is not None:
            self.engine.averager.residuals.turn_on_overflow_safety()
        self.is_attached = True

    def _check_loaded(self, ranks: Ranks | None = None) -> None:
        """Check that a loaded state fits the model; if not, remove the model's parameters from the engine, and raise.

        Does nothing if no state was loaded.

        Args:
            ranks: ranks that must have loaded fitting states, all or none; ``None``: only this rank's state is checked.

        Raises:
            SettingsError: the state is of another model.
        """
        try:
            self.restoring.check_model(ranks)
        except Exception:
            self.source.names.clear()
            self.engine.know({})
            raise

    def open(self, texts_to_compare: Mapping[str, str] = NO_FURTHER_TEXTS) -> None:
        """Compare settings over the ranks, create the executor, and give the executor to the engine.

        Called on every rank, when the first step begins at the latest. Does nothing if the engine has an executor
        already. With an executor that the user gave, settings are not compared.

        Args:
            texts_to_compare: further texts, by name, that must be equal on all ranks; settings and parameters are
                always compared.

        Raises:
            SettingsError: a setting differs between ranks, the loaded state is of another rank, or rank 0 cannot write
                its logs.
            RuntimeError: there is no process group yet, or no executor can use its backend.
        """
        if self.engine.ready_to_run:
            return
        if self.executor is None:
            self._compare_settings({**self._policy.shared(), **texts_to_compare})
            opened_executor = open_executor(self.engine.device, self.group, self.agree_group)
        else:
            opened_executor = OpenedExecutor(self.executor)
        executor = opened_executor.executor
        self.admission.link = opened_executor.link
        try:
            self.restoring.check_rank(executor.rank, executor.world)
            if executor.agree_rank == 0:
                self._sinks.open()
            self.admission.coding = time_codecs(self._policy, self.engine.forms, opened_executor)
        except BaseException as failure:
            executor.abandon(failure)  # so that the other ranks raise, too
            executor.close()
            self._sinks.close()
            raise
        self.engine.use(executor, self.admission.coding)

    def _compare_settings(self, shared_texts: Mapping[str, str]) -> None:
        """Compare settings and parameters over the ranks, which gives the engine the shapes by which it decides.

        Args:
            shared_texts: texts that must be equal on all ranks that make the same decisions, by name.
        """
        device = self.engine.device
        if self.agree_group is not None:
            check_alike(shared_texts, device, self.agree_group)
            self.engine.decide_by(largest_shapes(self.engine.shapes, self.agree_group))
        check_alike({**shared_texts, **self.engine.parameter_texts}, device, self.group)

    # connecting

    def _loss_scale(self, scaler: torch.amp.GradScaler | None) -> Callable[[], Number] | None:
        """Return a function without arguments that returns the scaler's present scale; ``None`` without a scaler."""
        return None if scaler is None else scale_of(scaler, as_tensor=self.engine.executor.lag > 0)

    def _guard(
        self, parameters: Callable[[], Mapping[str, torch.Tensor]], optimizers: Sequence[torch.optim.Optimizer]
    ) -> ReplicaGuard:
        """Create the object that checks that ranks hold the same weights.

        Args:
            parameters: function that returns the parameters that ranks hold alike, by name.
            optimizers: the model's optimizers.
        """
        checks_every_step = _environment_setting() == "check"
        replica_group = ReplicaGroup.of(self.group, self.agree_group)
        return ReplicaGuard(self.engine, parameters, optimizers, replica_group, checks_every_step)

    def _steer(
        self,
        source: Source,
        optimizers: Sequence[torch.optim.Optimizer],
        guard: ReplicaGuard,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Create the switch, which runs each step in the mode that the controller decided, and restore outer steps.

        Args:
            source: source of the model's gradients, which can change between modes.
            optimizers: the model's optimizers.
            guard: object that checks that ranks hold the same weights.
            scaler: scaler of the loss; ``None``: there is none, or it is not enabled.
        """
        self.switch = switch = Switch(self.engine, source, self._policy, optimizers, guard, scaler)
        switch.exclude_native = self._exclude_native
        try:
            self.restoring.restore_outer(switch, self._deciding_ranks)
        except Exception:  # raised on all ranks, which may train on without gravac
            self.detach(ends_outer_steps=False)
            raise
        switch.register_hooks()

    def _exclude_native(self) -> None:
        """Admit no more candidates of native steps, in which DDP averages without gravac's hook."""
        self.admission.native_cfs = ()

    @property
    def _deciding_ranks(self) -> Ranks:
        """The ranks that make the same decisions, once their group is known."""
        return Ranks(self.process_group)

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Group of the ranks that make the same decisions; ``None``: the default group."""
        return self.agree_group or self.group

    # while attached, and the end

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backwards accumulate gradients and exchange nothing.

        Raises:
            RuntimeError: nothing is attached.
        """
        if self._sharded_source is not None:
            return self._sharded_source.no_sync()
        ddp = self._idle_ddp if self.is_idle else self.source.ddp
        if ddp is not None:
            return ddp.no_sync()
        if self.is_idle:
            return nullcontext()
        raise RuntimeError("no_sync: no module is attached; call attach(module, optimizer) first")

    def stop_exchange(self) -> None:
        """Stop gravac's exchange in all later backwards of a model in shards; no effect on a model in DDP."""
        if self._sharded_source is not None:
            self._sharded_source.close()

    def detach(self, ends_outer_steps: bool) -> None:
        """Undo ``attach``; errors as for ``AdaptiveCompressor.detach``.

        Args:
            ends_outer_steps: whether outer steps, if they run, end by an exchange that makes weights and optimizer
                states the same on all ranks.
        """
        if self.is_idle:
            self.is_attached = self.is_idle = False
            self._idle_ddp = None
            return
        if self._has_own_loop:
            raise RuntimeError(
                "detach: attach_parameters connects nothing to the model, so there is nothing to undo; call close()"
            )
        self.engine.drain()
        if self.switch is not None and ends_outer_steps:
            self.switch.end_outer_steps()
        if self._sharded_source is not None:
            self._sharded_source.detach()
            self._sharded_source = None
        else:
            self.source.detach()
        if self.switch is not None:
            self.switch.remove_hooks()
            self.switch = None
        self.is_attached = False


def is_single_process(group: dist.ProcessGroup | None) -> bool:
    """True if no other rank averages with this rank.

    Args:
        group: ranks that average; ``None``: the default group.
    """
    return not dist.is_initialized() or dist.get_world_size(group) == 1


def exchanging_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose gradients ranks average: the DistributedDataParallel in a module, or a model in shards.

    The DistributedDataParallel may lie inside other modules, such as those of ``torch.compile`` and Lightning Fabric.

    Args:
        module: module that the user gave to ``attach``.

    Raises:
        TypeError: nothing in the module averages gradients over ranks, or FSDP1 does.
        ValueError: several DistributedDataParallel modules are in the module, or one that lacks a trained parameter.
    """
    ddp_by_path = {path: child for path, child in module.named_modules() if isinstance(child, DistributedDataParallel)}
    if not ddp_by_path:
        if not is_sharded(module):
            raise _no_exchange(module)
        return module
    path, *other_paths = ddp_by_path
    inner_path = next(
        (other_path for other_path in other_paths if other_path.startswith(f"{path}." if path else "")), ""
    )
    if inner_path:
        raise ValueError(
            f"module: {_code(path)} is a DistributedDataParallel, and so is {_code(inner_path)} inside, so gradients "
            "would be averaged twice; wrap the model in one DistributedDataParallel"
        )
    if other_paths:
        raise ValueError(
            f"module: {_code(path)} and {_code(other_paths[0])} are both a DistributedDataParallel; make an "
            "AdaptiveCompressor for each, and call attach with that DistributedDataParallel"
        )
    ddp = ddp_by_path[path]
    ddp_parameters = {id(parameter) for parameter in ddp.parameters()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and id(parameter) not in ddp_parameters:
            raise ValueError(
                f"module: parameter {name} is outside of {_code(path)}, the DistributedDataParallel inside, so ranks "
                f"would not average its gradient; give attach {_code(path)}, or wrap all trained parameters"
            )
    return ddp


def _no_exchange(module: torch.nn.Module) -> TypeError:
    """Return the error for a module that is neither in a DistributedDataParallel nor in shards by FSDP2."""
    for path, child in module.named_modules():
        if any(ancestor.__name__ == "FullyShardedDataParallel" for ancestor in type(child).__mro__):
            return TypeError(
                f"module: {_code(path)} is in shards (FullyShardedDataParallel), whose gradients FSDP exchanges; use "
                "DistributedDataParallel, or fully_shard (FSDP2) on a mesh with replicas"
            )
    return TypeError(
        f"module: attach needs a DistributedDataParallel, or a model in shards, got {type(module).__name__}; wrap the "
        "module in DistributedDataParallel, and give attach that: ddp = DistributedDataParallel(module)"
    )


def _code(path: str) -> str:
    """Return a submodule as Python code.

    Example:
        >>> _code("model.0.head")
        'module.model[0].head'
    """
    names = path.split(".") if path else []
    return "module" + "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in names)


def reason_to_idle(module: torch.nn.Module, group: dist.ProcessGroup | None, policy: Policy) -> str:
    """Return the reason why gravac stays inactive in this process; empty if it runs. Called on every rank.

    Args:
        module: a DistributedDataParallel, or a model in shards; if there is a single process, any module.
        group: ranks that average; ``None``: those of the DistributedDataParallel, or the default group.
        policy: settings of the run.

    Raises:
        SettingsError: the environment variable ``GRAVAC`` is neither ``on`` nor ``off`` nor ``check``, or differs
            between ranks; or it is ``off``, and torch does not average the gradients of this model over the ranks.
    """
    requested_group = group
    switch_setting = _environment_setting()
    if switch_setting not in ("on", "off", "check"):
        raise SettingsError(
            f"{ENVIRONMENT_SWITCH}: the environment variable is {switch_setting!r}; set the variable to on, off or "
            "check, or unset it"
        )
    if isinstance(module, DistributedDataParallel):
        group = group or module.process_group
    is_single = is_single_process(group)
    if not is_single:
        check_alike({ENVIRONMENT_SWITCH: switch_setting}, device_of(module), group)
    # users give a group for a model in shards only if its mesh has no replicate dimension for torch to average over
    if switch_setting == "off" and not (
        is_single or requested_group is None or isinstance(module, DistributedDataParallel)
    ):
        raise SettingsError(
            f"{ENVIRONMENT_SWITCH}: the environment variable is 'off', but without gravac nothing averages the "
            f"gradients of this {type(module).__name__} over process_group, so each replica would train a model of its "
            f"own; use a mesh with a replicate dimension, or unset {ENVIRONMENT_SWITCH}"
        )
    if switch_setting == "off":
        return f"{ENVIRONMENT_SWITCH}=off in the environment"
    if is_single and policy.native:
        return "there is one process, which exchanges nothing"
    return ""


def _environment_setting() -> str:
    """Return what the environment variable ``GRAVAC`` is set to, in lower case; ``"on"`` if it is not set."""
    return os.environ.get(ENVIRONMENT_SWITCH, "on").lower()


def is_sharded(module: torch.nn.Module) -> bool:
    """True if FSDP2 shards or replicates parameters of the model: as ``DTensor``, or gathered by an evaluation."""
    objects = (*module.parameters(), *module.modules())
    return any(
        base_class.__name__ in ("DTensor", "FSDPModule") for each in objects for base_class in type(each).__mro__
    )


def cfs_of_native_steps(reducer: Reducer, scaler: torch.amp.GradScaler | None) -> tuple[float, ...]:
    """Return the compression factors that native steps may use: 1 (float32), and perhaps 2 (float16).

    In a native step, DDP averages without gravac's hook. CF 2 is possible if the gradients are in float32 and there is
    no ``scaler``. The tuple is empty if gravac cannot count native steps: if this torch lacks a private name of DDP, or
    if the model has a single parameter.
    """
    if reducer.missing_names or not reducer.detects_all_backwards:
        return ()
    dtypes = {parameter.dtype for parameter in reducer.ddp.parameters() if parameter.requires_grad}
    return (1.0, 2.0) if dtypes == {torch.float32} and scaler is None else (1.0,)
