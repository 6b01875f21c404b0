# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that use private names of DistributedDataParallel: to turn its exchange on and off, and to remove hooks.

All of DDP's private names that gravac uses are in this file, and each function checks that the names which it needs
exist. Copies and pickles of a module do not get gravac's hooks.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from gravac.exchange.reading import Number
from gravac.settings import SettingsError

NAMES_FOR_REBUILD = (
    "_remove_autograd_hooks",
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_ddp_init_helper",
    "_comm_hooks",
    "static_graph",
    "reducer.get_backward_stats",
    "reducer._get_zeros_like_grad_buckets",
)
"""Private names of DDP that ``rebuild_reducer`` needs."""

NAMES_FOR_REDUCER = (
    *NAMES_FOR_REBUILD,
    "require_backward_grad_sync",
    "require_forward_param_sync",
    "_join_config",
    "reducer",
    "_has_rebuilt_buckets",
)
"""Private names of DDP that ``Reducer`` needs."""

NAMES_FOR_STATIC_GRAPH = (
    "_static_graph_delay_allreduce_enqueued",
    "reducer._set_static_graph",
    "logger._set_static_graph",
)
"""Private names of DDP that ``Reducer`` needs in addition if the module has ``static_graph``."""

TORCH_NAMES_FOR_REDUCER = (
    "torch._C._current_graph_task_id",
    "torch.distributed._register_builtin_comm_hook",
    "torch.distributed.BuiltinCommHookType.FP16_COMPRESS",
)
"""Private names of torch that ``Reducer`` needs."""


SHARD_ATTRIBUTE = "_st_info"
"""Private name of the attribute by which DDP marks a parameter that is a shard of tensor parallelism."""


class ReducerParameters(NamedTuple):
    """Parameters that a DDP module averages, as its reducer has them; later freezing does not change them.

    Attributes:
        names: names in the model.
        shards: those of them that are shards of tensor parallelism, by name, see ``put_shards_back``.
    """

    names: frozenset[str]
    shards: Mapping[str, torch.nn.Parameter]


class UncompiledHook:
    """A hook that a compiled module, optimizer or training step calls, but does not compile.

    Args:
        function: function that is called with the hook's arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @_disable_dynamo  # torch.compiler.disable would import dynamo here
    def __call__(self, *arguments: Any) -> Any:
        """Call the function with the hook's arguments, and return its result."""
        return self._function(*arguments)


class UncopiedHook:
    """A module's hook that is not copied: copies and pickles of the module get a function that does nothing.

    Args:
        function: function that is called with the hook's arguments; its return value is not used.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    @_disable_dynamo  # a compiled module must not compile the hook; torch.compiler.disable would import dynamo here
    def __call__(self, *arguments: object) -> None:
        """Call the function with the hook's arguments, and return ``None``: the module's inputs and outputs stay."""
        self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # nullcontext's __exit__ takes any arguments, returns None, and can be unpickled without gravac
        return getattr, (nullcontext(), "__exit__")


class UncopiedHooks(list[Any]):
    """DDP's list of communication hooks, which is copied as an empty list: a copied module's reducer has no hooks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def has_hook(ddp: DistributedDataParallel) -> bool:
    """True if the module has a communication hook."""
    return bool(ddp._comm_hooks)


def register_hook(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Register a communication hook, which copies and pickles of the module will not have.

    Args:
        ddp: the DDP module.
        hook: function that DDP calls with ``None`` and a bucket, and that returns a future of the bucket's flat buffer.
    """
    if ddp.static_graph and getattr(ddp, "_static_graph_delay_allreduce_enqueued", False):
        # a copied module has this flag from its original, as if its own first backward with static_graph had run
        rebuild_reducer(ddp, forward_pending=False, averaged=reducer_parameters(ddp))
    ddp.register_comm_hook(None, hook)
    ddp._comm_hooks = UncopiedHooks(ddp._comm_hooks)


def averaged_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that DDP averages, by name in the model.

    Args:
        module: the model, or the DDP module around it.
    """
    model = module.module if isinstance(module, DistributedDataParallel) else module
    return {name: parameter for name, parameter in model.named_parameters() if not _is_ignored(module, name)}


def ignored_buffers(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that DDP ignores (see DDP's ``_set_params_and_buffers_to_ignore_for_model``).

    Args:
        module: the model, or the DDP module around it.
    """
    model = module.module if isinstance(module, DistributedDataParallel) else module
    return tuple(name for name, _ in model.named_buffers() if _is_ignored(module, name))


def _is_ignored(module: torch.nn.Module, name: str) -> bool:
    """True if DDP ignores the model's parameter or buffer of that name."""
    if isinstance(module, DistributedDataParallel):
        ignored_names = getattr(module, "parameters_to_ignore", ())
    else:
        ignored_names = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    # DDP looks for "module.name", and the model's own module name is empty: "name" without a dot has no effect
    return (name if "." in name else f".{name}") in ignored_names


def reducer_parameters(ddp: DistributedDataParallel) -> ReducerParameters:
    """Return the parameters that DDP's reducer averages: those that required gradients when DDP was created.

    Called when a compressor is attached, before DDP's first forward may replace shards of tensor parallelism.
    """
    parameters = averaged_parameters(ddp)
    names = frozenset(name for name, parameter in parameters.items() if parameter.requires_grad)
    if len({id(parameters[name]) for name in names}) != len(ddp.reducer.get_backward_stats()):  # some were frozen since
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        reducer_ids = {id(parameter) for bucket in buckets for parameter in bucket.parameters()}
        names = frozenset(name for name, parameter in parameters.items() if id(parameter) in reducer_ids)
    return ReducerParameters(names, shards_of_tensor_parallelism(ddp))


def shards_of_tensor_parallelism(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that are shards of tensor parallelism (``parallelize_module``), by name in the model.

    DDP turns each ``DTensor`` into a plain parameter of the shard's shape, and marks that parameter.

    Args:
        module: the model, or the DDP module around it, before its first forward.
    """
    return {
        name: parameter
        for name, parameter in averaged_parameters(module).items()
        if hasattr(parameter, SHARD_ATTRIBUTE)
    }


def check_has_shards(ddp: DistributedDataParallel) -> None:
    """Raise if DDP's first forward has replaced the shards of tensor parallelism by DTensors that are not parameters.

    Raises:
        RuntimeError: the module lacks shards as parameters, so gravac cannot know their names.
    """
    present_ids = {id(parameter) for parameter in averaged_parameters(ddp).values()}
    reducer_parameters: Iterable[torch.nn.Parameter] = getattr(ddp, "_module_parameters", ())
    missing_shards = [
        parameter
        for parameter in reducer_parameters
        if hasattr(parameter, SHARD_ATTRIBUTE) and id(parameter) not in present_ids
    ]
    if missing_shards:
        raise RuntimeError(
            f"ddp: its first forward has replaced {len(missing_shards)} shards of tensor parallelism by DTensors that "
            "are not parameters, so gravac cannot know the shards' names; create the model again, and attach before "
            "the first forward"
        )


def refuse_delayed_all_reduce(ddp: DistributedDataParallel) -> None:
    """Raise if DDP all-reduces some parameters outside of its reducer, and so without its communication hook.

    torch 2.13 starts that all-reduce in backward, and never waits for its end.

    Raises:
        ValueError: the module has ``delay_all_reduce_named_params``.
    """
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise ValueError(
            "delay_all_reduce_named_params: DistributedDataParallel never waits for the all-reduce of these "
            "parameters, so an optimizer may apply gradients that are not averaged; leave out "
            "delay_all_reduce_named_params and param_to_hook_all_reduce"
        )


def put_shards_back(ddp: DistributedDataParallel, shards: Mapping[str, torch.nn.Parameter]) -> None:
    """Put the shards of tensor parallelism back into the module, from which DDP's forward took them.

    DDP's forward replaces each shard by a ``DTensor`` that is not a parameter. A new reducer averages only the module's
    parameters, so this function is called before a new reducer is created, between two steps. The next forward replaces
    the shards again.

    Args:
        ddp: the DDP module.
        shards: the result of ``shards_of_tensor_parallelism`` before the first forward.
    """
    present_parameters = averaged_parameters(ddp)
    for name, shard in shards.items():
        if present_parameters.get(name) is not shard:
            module_path, _, parameter_key = name.rpartition(".")
            owner = ddp.module.get_submodule(module_path)
            delattr(owner, parameter_key)
            setattr(owner, parameter_key, shard)


def rebuild_reducer(ddp: DistributedDataParallel, forward_pending: bool, averaged: ReducerParameters) -> None:
    """Give a DDP module a new reducer without a communication hook, as a new DistributedDataParallel has.

    Called on every rank between the same two steps; starts no collective.

    Args:
        ddp: the module; its gradients stay as they are.
        forward_pending: whether a forward has run whose backward is still to come, and must be averaged.
        averaged: parameters that the new reducer averages, also those that are frozen at present, so that they can be
            trained again later.

    Raises:
        RuntimeError: a backward is running; or the pending backward would not be averaged; or this torch's
            DistributedDataParallel lacks a name that is needed. Nothing was changed.
    """
    missing_names = [name for name in NAMES_FOR_REBUILD if not _has_attribute(ddp, name)]
    if missing_names:
        raise RuntimeError(
            f"ddp: DistributedDataParallel of torch {torch.__version__} has no {missing_names[0]}, which removing a "
            "hook needs; wrap the model in a new DistributedDataParallel instead"
        )
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError("detach: a backward is running; call detach() after the backward, between two steps")
    if forward_pending and (ddp.find_unused_parameters or ddp.static_graph):
        raise RuntimeError(
            "detach: a forward with gradients has run, but its backward has not; with find_unused_parameters or "
            "static_graph, DDP would not average that backward's gradients; call detach() between a backward and the "
            "next forward"
        )
    put_shards_back(ddp, averaged.shards)
    private_ddp: Any = ddp
    private_ddp._remove_autograd_hooks()
    with _requiring_gradients(ddp, averaged.names):
        parameters, expect_sparse = private_ddp._build_params_for_reducer()
        name_by_index = private_ddp._build_debug_param_to_name_mapping(parameters)
        private_ddp._ddp_init_helper(parameters, expect_sparse, name_by_index, private_ddp.static_graph)
    if ddp in _RECORDERS_AT_DELETION:  # it holds the old reducer, with its buckets and its hook
        _RECORDERS_AT_DELETION.pop(ddp).detach()
    private_ddp._comm_hooks = []
    private_ddp._has_rebuilt_buckets = False
    if private_ddp.static_graph:
        private_ddp._static_graph_delay_allreduce_enqueued = False
        private_ddp.reducer._set_static_graph()
        private_ddp.logger._set_static_graph()
    if forward_pending:
        private_ddp.reducer.prepare_for_backward([])


@contextmanager
def _requiring_gradients(ddp: DistributedDataParallel, names: frozenset[str]) -> Iterator[None]:
    """Return a context in which the named parameters require gradients, and no other averaged parameters do."""
    changed = [
        parameter
        for name, parameter in averaged_parameters(ddp).items()
        if parameter.requires_grad is not (name in names)
    ]
    for parameter in changed:
        parameter.requires_grad_(not parameter.requires_grad)
    try:
        yield
    finally:
        for parameter in changed:
            parameter.requires_grad_(not parameter.requires_grad)


def scale_of(scaler: torch.amp.GradScaler, as_tensor: bool) -> Callable[[], Number]:
    """Return a function that returns a gradient scaler's present scale.

    Args:
        scaler: scaler of the loss.
        as_tensor: True: the function returns a 0-d tensor, without a wait for the GPU (a float if the scaler has no
            tensor yet). False: the function returns a float.
    """

    def scale() -> Number:
        scale_tensor = scaler._get_scale_async()
        return scaler.get_scale() if scale_tensor is None else scale_tensor

    return scale if as_tensor else scaler.get_scale


def is_in_join(ddp: DistributedDataParallel) -> bool:
    """True if training runs, or once ran, under ``ddp.join()``: DDP never resets its flag."""
    join_config = getattr(ddp, "_join_config", None)
    return bool(join_config is not None and join_config.enable)


def divides_by_ranks_with_inputs(ddp: DistributedDataParallel) -> bool:
    """True if training runs under ``ddp.join(divide_by_initial_world_size=False)``; the same on all of DDP's ranks.

    DDP then divides sums of gradients by the number of ranks that still have inputs.
    """
    return is_in_join(ddp) and not getattr(ddp, "_divide_by_initial_world_size", True)


class _UserFlags(NamedTuple):
    """Flags of DDP as the user had set them when a forward began.

    Attributes:
        backward_sync: DDP's ``require_backward_grad_sync``.
        forward_sync: DDP's ``require_forward_param_sync``.
    """

    backward_sync: bool
    forward_sync: bool


_RECORDERS_AT_DELETION: weakref.WeakKeyDictionary[
    DistributedDataParallel, "weakref.finalize[[weakref.ref[Reducer], Any], DistributedDataParallel]"
]
_RECORDERS_AT_DELETION = weakref.WeakKeyDictionary()
"""Of each module with a reducer of ``Reducer.renew``: what records the last backward when the module is deleted."""


class Reducer:
    """Turns a DDP module's own exchange off and on, gives it new reducers, and detects when DDP has averaged.

    Args:
        ddp: the module, to which this object keeps a weak reference.

    Raises:
        SettingsError: this torch's DistributedDataParallel lacks a name that is needed.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        _check_names(ddp)
        self._ddp_ref = weakref.ref(ddp)
        self._averaged = reducer_parameters(ddp)
        self._user_flags: _UserFlags | None = None  # ``None`` unless DDP's exchange is turned off
        self._has_averaged = False
        self._last_times_ns = _backward_times_ns(ddp)
        self._static_graph_flag = _first_static_backward_began(ddp)  # as last read, or set by silence_exchange

    @property
    def ddp(self) -> DistributedDataParallel:
        """The DDP module.

        Raises:
            RuntimeError: the module was deleted.
        """
        ddp = self._ddp_ref()
        if ddp is None:
            raise RuntimeError(
                "the DistributedDataParallel module that this compressor was attached to was deleted; keep the module, "
                "or attach to a new module"
            )
        return ddp

    @property
    def averaged_names(self) -> frozenset[str]:
        """Names of the parameters that the reducer averages, in the model inside DDP; frozen ones are among them."""
        return self._averaged.names

    @property
    def will_average(self) -> bool:
        """True if DDP is to average the gradients of the next forward, as the user's flags say (``no_sync()``)."""
        return bool(self.ddp.require_backward_grad_sync) if self._user_flags is None else self._user_flags.backward_sync

    @property
    def detects_all_backwards(self) -> bool:
        """True if ``has_averaged`` detects every backward; False if the module has a single parameter.

        ``has_averaged`` misses a backward if each gradient took exactly as many nanoseconds as in the backward before.
        In a measurement of 40 000 backwards (about 25 us each), it missed 78 backwards of a module with one parameter,
        and none of a module with two parameters.
        """
        return len(self._last_times_ns) > 1

    @property
    def in_join(self) -> bool:
        """True if training runs, or once ran, under ``ddp.join()``: DDP never resets its flag."""
        return is_in_join(self.ddp)

    def silence_exchange(self) -> None:
        """Turn DDP's exchange off for a forward and its backward. Called by a pre-hook when the forward begins.

        DDP reads its flags in forward only, so ``restore_flags`` restores the user's flags as soon as forward ends.
        Before a forward that exchanges again, each rank calls ``renew``.
        """
        ddp = self.ddp
        self._record_backwards()
        if self._user_flags is None:  # not None if the last forward's end did not call ``restore_flags``
            self._user_flags = _UserFlags(ddp.require_backward_grad_sync, ddp.require_forward_param_sync)
        ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
        if ddp.static_graph:
            # otherwise DDP would add a node to the autograd graph, whose backward expects the reducer to exchange
            ddp._static_graph_delay_allreduce_enqueued = self._static_graph_flag = True

    def restore_flags(self) -> None:
        """Set DDP's flags back to the user's. Called by a forward hook, registered with ``always_call=True``."""
        if self._user_flags is None:
            return
        user_flags, self._user_flags = self._user_flags, None
        self.ddp.require_backward_grad_sync = user_flags.backward_sync
        # as DDP's forward does: DDP syncs buffers in the forward that follows a forward with require_backward_grad_sync
        self.ddp.require_forward_param_sync = (
            user_flags.backward_sync if torch.is_grad_enabled() else user_flags.forward_sync
        )

    def has_averaged(self) -> bool:
        """Return whether DDP has averaged gradients since the last call of this method.

        No Python code runs in backward for that: DDP's reducer records, for each parameter, the nanoseconds from
        forward to its gradient. These numbers change only in a backward that averages. Two successive backwards with
        equal numbers for all parameters count as one, see ``detects_all_backwards``. A backward that failed halfway
        counts, too.
        """
        self._record_backwards()
        has_averaged, self._has_averaged = self._has_averaged, False
        return has_averaged

    def renew(self) -> None:
        """Give the module a new reducer without a hook, which averages in float32. Called on every rank between steps.

        Raises:
            RuntimeError: a backward is running.
        """
        self._record_backwards()
        ddp = self.ddp
        rebuild_reducer(ddp, forward_pending=False, averaged=self._averaged)
        self._last_times_ns, self._static_graph_flag = _backward_times_ns(ddp), _first_static_backward_began(ddp)
        self._record_before_deletion(ddp)

    def use_float16(self) -> None:
        """Let the reducer average in float16, by torch's C++ hook, until ``renew``. Called on every rank.

        Raises:
            RuntimeError: the reducer has a hook; ``renew`` removes it.
        """
        private_ddp: Any = self.ddp
        untyped_dist: Any = dist
        private_ddp._register_builtin_comm_hook(untyped_dist.BuiltinCommHookType.FP16_COMPRESS)

    def _record_backwards(self) -> None:
        """Set ``_has_averaged`` if DDP has averaged gradients since this method was last called."""
        ddp = self._ddp_ref()
        if ddp is None:
            return  # what it averaged last was recorded when it was deleted
        static_graph_flag = _first_static_backward_began(ddp)  # the first such backward sets this flag instead of times
        self._has_averaged |= static_graph_flag and not self._static_graph_flag
        self._static_graph_flag = static_graph_flag
        self._record_times(_backward_times_ns(ddp))

    def _record_times(self, times_ns: list[int]) -> None:
        self._has_averaged |= any(times_ns) and times_ns != self._last_times_ns  # a new reducer's times are zeros
        self._last_times_ns = times_ns

    def _record_before_deletion(self, ddp: DistributedDataParallel) -> None:
        """Have the last backward recorded when the module is deleted, as frameworks do before a last checkpoint.

        Python deletes it at another time on each rank, and ranks must count the same steps.
        """
        recorder = weakref.finalize(ddp, _record_last_times, weakref.ref(self), ddp.reducer)
        recorder.atexit = False
        _RECORDERS_AT_DELETION[ddp] = recorder


def _record_last_times(reducer_ref: weakref.ref[Reducer], ddp_reducer: Any) -> None:
    reducer = reducer_ref()
    if reducer is not None:
        reducer._record_times(list(ddp_reducer.get_backward_stats()))


def _backward_times_ns(ddp: DistributedDataParallel) -> list[int]:
    """Return, for each parameter, the nanoseconds from forward to gradient in the last backward that averaged.

    All numbers are 0 if the reducer has averaged in no backward yet.
    """
    return list(ddp.reducer.get_backward_stats())


def _first_static_backward_began(ddp: DistributedDataParallel) -> bool:
    """Return whether the first backward of a module with ``static_graph`` has begun."""
    return bool(ddp.static_graph and ddp._static_graph_delay_allreduce_enqueued)


def _check_names(ddp: DistributedDataParallel) -> None:
    """Raise if this torch lacks a name that ``Reducer`` needs.

    Raises:
        SettingsError: a name is missing.
    """
    ddp_names = (
        *NAMES_FOR_REDUCER,
        *(NAMES_FOR_STATIC_GRAPH if getattr(ddp, "static_graph", False) else ()),
        "_register_builtin_comm_hook",
    )
    for owner, prefix, names in (
        (ddp, "DistributedDataParallel.", ddp_names),
        (torch, "torch.", TORCH_NAMES_FOR_REDUCER),
    ):
        for name in names:
            if not _has_attribute(owner, name.removeprefix("torch.")):
                raise SettingsError(
                    f"every, native: torch {torch.__version__} has no {prefix}{name.removeprefix('torch.')}, "
                    "which outer and native steps need; use every=1 and native=False"
                )


def _has_attribute(owner: object, dotted_name: str) -> bool:
    """True if an object has an attribute, or an attribute of an attribute such as ``"reducer.get_backward_stats"``."""
    for component in dotted_name.split("."):
        if not hasattr(owner, component):
            return False
        owner = getattr(owner, component)
    return True


def check_outer_steps_possible(module: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Raise if outer steps are impossible with a module or with an optimizer.

    Args:
        module: module that is trained, with or without DistributedDataParallel.
        optimizers: torch's optimizers that train the module, without a framework's wrapper.

    Raises:
        SettingsError: the module or an optimizer exchanges in each step, or has state that ranks cannot average; the
            message names it.
    """
    for optimizer in optimizers:
        optimizer_name = type(optimizer).__name__
        ancestor_names = {
            ancestor.__name__ for ancestor in type(optimizer).__mro__
        }  # importing a class to compare takes long
        if isinstance(optimizer, torch.optim.LBFGS):
            raise _no_outer_steps(
                f"{optimizer_name} keeps its state in lists, which ranks cannot average", "another optimizer"
            )
        if "ZeroRedundancyOptimizer" in ancestor_names:
            raise _no_outer_steps(
                f"{optimizer_name} exchanges parameters in each step, but in outer steps ranks train several steps "
                "without an exchange",
                "the optimizer that it wraps",
            )
    for path, child in module.named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm):
            raise _no_outer_steps(
                f"{path or 'the module'} is a SyncBatchNorm, which exchanges statistics in each forward, but in outer "
                "steps ranks train several steps without an exchange",
                "BatchNorm",
            )
    if shards := shards_of_tensor_parallelism(module):
        raise _no_outer_steps(
            f"the first forward of DistributedDataParallel replaces {next(iter(shards))}, a shard of tensor "
            "parallelism, by a DTensor that is not a parameter, so the module lacks weights that ranks would average",
            "fully_shard on a mesh with a replicate dimension",
        )
    for path, parameter in module.named_parameters():
        refuse_optimizer_in_backward(path, parameter)
    if isinstance(module, DistributedDataParallel) and getattr(module, "mixed_precision", None) is not None:
        raise _no_outer_steps(
            "DistributedDataParallel(mixed_precision=...) replaces the weights by copies of lower precision in each "
            "forward, and restores the weights only when it exchanges gradients, which outer steps do not",
            "torch.autocast",
        )


def refuse_optimizer_in_backward(path: str, parameter: torch.Tensor) -> None:
    """Raise a ``SettingsError`` if ``_apply_optimizer_in_backward`` gave a parameter (any shape) an optimizer."""
    if hasattr(parameter, "_in_backward_optimizers"):
        raise _no_outer_steps(
            f"the optimizer of {path} runs within backward (_apply_optimizer_in_backward), so that gravac "
            "cannot see its steps",
            "an optimizer whose step() is called",
        )


def _no_outer_steps(reason: str, remedy: str) -> SettingsError:
    """Return the error that says why outer steps are impossible, and what to use in place of the cause."""
    return SettingsError(f"every: outer steps are impossible here: {reason}; use {remedy}, or every=1")
