# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Uses private parts of DistributedDataParallel: to turn its exchange on and off, and to remove hooks.

All of DDP's private names that gravac uses are in this file, and each function checks that its names exist. Copies and
pickles of a module do not get gravac's hooks.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from gravac.exchange.executor import Number
from gravac.settings import SettingsError

REBUILDING = (
    "_remove_autograd_hooks",
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_ddp_init_helper",
    "_comm_hooks",
    "static_graph",
)
"""Private names of DDP that ``rebuild_reducer`` needs."""

STEERING = (
    *REBUILDING,
    "require_backward_grad_sync",
    "require_forward_param_sync",
    "_join_config",
    "reducer",
    "reducer.get_backward_stats",
    "_has_rebuilt_buckets",
)
"""Private names of DDP that ``Reducer`` needs."""

STEERING_STATIC = ("_static_graph_delay_allreduce_enqueued", "reducer._set_static_graph", "logger._set_static_graph")
"""Private names of DDP that ``Reducer`` needs in addition if the module has ``static_graph``."""

STEERING_TORCH = (
    "torch._C._current_graph_task_id",
    "torch.distributed._register_builtin_comm_hook",
    "torch.distributed.BuiltinCommHookType.FP16_COMPRESS",
)
"""Private names of torch that ``Reducer`` needs."""


class UncopiedHook:
    """A module's hook that is not copied: copies and pickles of the module get a function that does nothing.

    Args:
        function: called with the hook's arguments; its return value is not used.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    @_disable_dynamo  # a compiled module must not compile the hook; torch.compiler.disable would import dynamo here
    def __call__(self, *arguments: object) -> None:
        """Call the function, and return nothing."""
        self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # this method takes any arguments, returns None, and can be loaded without gravac
        return getattr, (nullcontext(), "__exit__")


class UncopiedHooks(list[Any]):
    """DDP's list of communication hooks; its copies are empty, since a copied module's reducer has no hooks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def has_hook(ddp: DistributedDataParallel) -> bool:
    """True if a communication hook is registered."""
    return bool(ddp._comm_hooks)


def register(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Register a communication hook that copies and pickles of the module do not have."""
    if ddp.static_graph and getattr(ddp, "_static_graph_delay_allreduce_enqueued", False):
        # this flag of a copied module says wrongly that its first backward, special with static_graph, has run
        rebuild_reducer(ddp, forward_pending=False)
    ddp.register_comm_hook(None, hook)
    ddp._comm_hooks = UncopiedHooks(ddp._comm_hooks)


def averaged_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return a model's parameters by name, except for those that DDP ignores; ``module`` is the model or its DDP."""
    model = module.module if isinstance(module, DistributedDataParallel) else module
    return {name: parameter for name, parameter in model.named_parameters() if not _is_left_out(module, name)}


def left_out_buffers(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of a model's buffers that DDP ignores; ``module`` is the model or its DDP."""
    model = module.module if isinstance(module, DistributedDataParallel) else module
    return tuple(name for name, _ in model.named_buffers() if _is_left_out(module, name))


def _is_left_out(module: torch.nn.Module, name: str) -> bool:
    if isinstance(module, DistributedDataParallel):
        ignored = getattr(module, "parameters_to_ignore", ())
    else:
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    # DDP looks for "module.name", and the model's own module name is empty: "name" without a dot has no effect
    return (name if "." in name else f".{name}") in ignored


def rebuild_reducer(ddp: DistributedDataParallel, forward_pending: bool) -> None:
    """Give a module a new reducer without a communication hook, as a new DistributedDataParallel has.

    No collective is needed. Called on every rank between the same two steps.

    Args:
        ddp: the module; its gradients stay as they are.
        forward_pending: whether a forward has run whose backward may still follow, and is to be averaged.

    Raises:
        RuntimeError: a backward is running, or is pending and would not be averaged, or this torch's
            DistributedDataParallel lacks a name that is needed; nothing was changed.
    """
    missing = [name for name in REBUILDING if not hasattr(ddp, name)]
    if missing:
        raise RuntimeError(
            f"detach: DistributedDataParallel of torch {torch.__version__} has no {missing[0]}, which removing a "
            "hook needs; wrap the model in a new DistributedDataParallel instead"
        )
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError("detach: a backward is running; detach after it, between two steps")
    if forward_pending and (ddp.find_unused_parameters or ddp.static_graph):
        raise RuntimeError(
            "detach: a forward with gradients has run whose backward has not, and with find_unused_parameters or "
            "static_graph that backward would not be averaged; detach between a backward and the next forward"
        )
    private: Any = ddp
    private._remove_autograd_hooks()
    parameters, sparse = private._build_params_for_reducer()
    names = private._build_debug_param_to_name_mapping(parameters)
    private._ddp_init_helper(parameters, sparse, names, private.static_graph)
    private._comm_hooks = []
    private._has_rebuilt_buckets = False
    if private.static_graph:
        private._static_graph_delay_allreduce_enqueued = False
        private.reducer._set_static_graph()
        private.logger._set_static_graph()
    if forward_pending:
        private.reducer.prepare_for_backward([])


def scale_of(scaler: torch.amp.GradScaler, device: bool) -> Callable[[], Number]:
    """Return a function that returns a scaler's scale: a number, or on a ``device`` a tensor, without a wait."""

    def scale() -> Number:
        tensor = scaler._get_scale_async()
        return scaler.get_scale() if tensor is None else tensor

    return scale if device else scaler.get_scale


def divides_by_those_with_inputs(ddp: DistributedDataParallel) -> bool:
    """True if training runs under ``ddp.join(divide_by_initial_world_size=False)``; the same on all its ranks."""
    config = getattr(ddp, "_join_config", None)
    return bool(config is not None and config.enable and not getattr(ddp, "_divide_by_initial_world_size", True))


class _Flags(NamedTuple):
    """Flags of DDP that a user has set, as they were when a forward began.

    Attributes:
        backward: DDP's ``require_backward_grad_sync``.
        forward: DDP's ``require_forward_param_sync``.
    """

    backward: bool
    forward: bool


class Reducer:
    """Turns DDP's own exchange off in outer steps, and creates a new reducer afterwards.

    The module is referred to by a weak reference.

    Args:
        ddp: the module.

    Raises:
        SettingsError: this torch's DistributedDataParallel lacks a name that is needed.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        _check_names(ddp)
        self._module = weakref.ref(ddp)
        self._user_flags: _Flags | None = None  # while DDP is silenced
        self._averaged = False
        self._stats = _stats(ddp)
        self._enqueued = _enqueued(ddp)

    @property
    def ddp(self) -> DistributedDataParallel:
        """The module.

        Raises:
            RuntimeError: the module was deleted.
        """
        ddp = self._module()
        if ddp is None:
            raise RuntimeError("the DistributedDataParallel module was deleted, so that its exchange cannot be steered")
        return ddp

    @property
    def synced(self) -> bool:
        """The user's ``require_backward_grad_sync``: True if the next forward's gradients will be averaged."""
        return bool(self.ddp.require_backward_grad_sync) if self._user_flags is None else self._user_flags.backward

    @property
    def counts_surely(self) -> bool:
        """True if ``has_averaged`` detects every backward; False if the module has a single parameter.

        In 40 000 measured backwards of some 25 us each, 78 with one parameter took exactly as many nanoseconds as the
        backward before; with two parameters, none did.
        """
        return len(self._stats) > 1

    @property
    def in_join(self) -> bool:
        """True if training runs under ``ddp.join()``, or once did: DDP never resets its flag."""
        return bool(self.ddp._join_config.enable)

    def silence(self) -> None:
        """Turn DDP's exchange off for the forward that begins, and for its backward. Called by a forward pre-hook.

        DDP reads its flags in forward only, so ``restore`` restores the user's flags as soon as forward ends. Before a
        forward that exchanges again, each rank calls ``renew``.
        """
        ddp = self.ddp
        self._look()
        if self._user_flags is None:  # otherwise no hook was called after the last forward
            self._user_flags = _Flags(ddp.require_backward_grad_sync, ddp.require_forward_param_sync)
        ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
        if ddp.static_graph:
            # otherwise DDP would add a node to the graph whose backward expects the reducer to exchange
            ddp._static_graph_delay_allreduce_enqueued = self._enqueued = True

    def restore(self) -> None:
        """Restore the user's flags. Called by a forward hook that was registered with ``always_call=True``."""
        if self._user_flags is None:
            return
        flags, self._user_flags = self._user_flags, None
        self.ddp.require_backward_grad_sync = flags.backward
        # as DDP itself sets the flag in a forward: buffers are synced in the forward after one with the backward flag
        self.ddp.require_forward_param_sync = flags.backward if torch.is_grad_enabled() else flags.forward

    def has_averaged(self) -> bool:
        """Return whether DDP has averaged gradients since the last call; no Python runs in backward.

        The reducer records, for each parameter, the nanoseconds from forward to its gradient. These numbers change only
        in a backward that averages. Two backwards with equal numbers for all parameters count as one: see
        ``counts_surely``. A backward that failed halfway counts.
        """
        self._look()
        averaged, self._averaged = self._averaged, False
        return averaged

    def renew(self) -> None:
        """Give the module a new reducer, without a hook, that averages in float32. Called on every rank between steps.

        Raises:
            RuntimeError: a backward is running.
        """
        self._look()
        ddp = self.ddp
        rebuild_reducer(ddp, forward_pending=False)
        self._stats, self._enqueued = _stats(ddp), _enqueued(ddp)

    def use_float16(self) -> None:
        """Let the reducer average in float16, by torch's C++ hook, until ``renew``. Called on every rank.

        Raises:
            RuntimeError: the reducer has a hook; ``renew`` removes it.
        """
        private: Any = self.ddp
        hooks: Any = dist
        private._register_builtin_comm_hook(hooks.BuiltinCommHookType.FP16_COMPRESS)

    def _look(self) -> None:
        """Record whether DDP has averaged gradients since this method was last called."""
        ddp = self.ddp
        stats, enqueued = _stats(ddp), _enqueued(ddp)
        # a new reducer begins with zeros; the first backward of a static graph sets no times, but a flag
        self._averaged |= (any(stats) and stats != self._stats) or (enqueued and not self._enqueued)
        self._stats, self._enqueued = stats, enqueued


def _stats(ddp: DistributedDataParallel) -> list[int]:
    """Return the nanoseconds from forward to each parameter's gradient in the last averaging backward; zeros before."""
    return list(ddp.reducer.get_backward_stats())


def _enqueued(ddp: DistributedDataParallel) -> bool:
    """Return whether the first backward of a module with ``static_graph`` has begun."""
    return bool(ddp.static_graph and ddp._static_graph_delay_allreduce_enqueued)


def _check_names(ddp: DistributedDataParallel) -> None:
    """Refuse a torch that lacks a name which ``Reducer`` needs.

    Raises:
        SettingsError: a name is missing.
    """
    of_ddp = (
        *STEERING,
        *(STEERING_STATIC if getattr(ddp, "static_graph", False) else ()),
        "_register_builtin_comm_hook",
    )
    for owner, prefix, names in ((ddp, "DistributedDataParallel.", of_ddp), (torch, "torch.", STEERING_TORCH)):
        for name in names:
            inner: Any = owner
            for component in name.removeprefix("torch.").split("."):
                if not hasattr(inner, component):
                    raise SettingsError(
                        f"every, native: torch {torch.__version__} has no {prefix}{name.removeprefix('torch.')}, "
                        "which outer and native steps need; use every=1 and native=False"
                    )
                inner = getattr(inner, component)


def refuse_apart(module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Refuse modules and optimizers for which outer steps are impossible.

    Args:
        module: module that is trained, with or without DistributedDataParallel.
        optimizers: torch's optimizers that train the module, without a framework's wrapper.

    Raises:
        SettingsError: the module or an optimizer exchanges in each step, or has state that ranks cannot average; the
            message names it.
    """
    for optimizer in optimizers:
        name = type(optimizer).__name__
        ancestors = {ancestor.__name__ for ancestor in type(optimizer).__mro__}  # importing the class takes long
        if isinstance(optimizer, torch.optim.LBFGS):
            raise _cannot(f"{name} keeps its state in lists, which ranks cannot average", "another optimizer")
        if "ZeroRedundancyOptimizer" in ancestors:
            raise _cannot(f"{name} exchanges parameters in each step", "the optimizer that it wraps")
    for path, child in module.named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm):
            raise _cannot(f"{path} is a SyncBatchNorm, which exchanges in each forward", "BatchNorm")
    for path, parameter in module.named_parameters():
        if hasattr(parameter, "_in_backward_optimizers"):
            raise _cannot(
                f"the optimizer of {path} runs within backward (_apply_optimizer_in_backward), so that no step of it "
                "can be seen",
                "an optimizer whose step() is called",
            )
    if isinstance(module, DistributedDataParallel) and getattr(module, "mixed_precision", None) is not None:
        raise _cannot(
            "DistributedDataParallel(mixed_precision=...) changes parameters in each forward and backward",
            "torch.autocast",
        )


def _cannot(reason: str, remedy: str) -> SettingsError:
    return SettingsError(f"every: outer steps are impossible here: {reason}; use {remedy}, or every=1")
