# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel's reducer, through private names of DDP: turns its exchange off and on, and replaces it.

A name that this torch lacks causes an error that names it. Private names of a model's ignored parameters and shards are
in ``parameters``, those of ``join()`` in ``ddp``.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac.settings import SettingsError
from gravac.sources.hooks import NO_BACKWARD, UncopiedHooks
from gravac.sources.parameters import averaged_parameters, is_shard, shards_of_tensor_parallelism

NAMES_FOR_NEW_REDUCER = (
    "_remove_autograd_hooks",
    "_ddp_init_helper",
    "_comm_hooks",
    "static_graph",
    "reducer.get_backward_stats",
    "reducer._get_zeros_like_grad_buckets",
)
"""Private names of DDP without which a module cannot get a new reducer."""

NAMES_FOR_MODES = (
    *NAMES_FOR_NEW_REDUCER,
    "require_backward_grad_sync",
    "require_forward_param_sync",
    "_join_config",
    "_has_rebuilt_buckets",
    "_register_builtin_comm_hook",
)
"""Private names of DDP without which native and outer steps are impossible."""

NAMES_FOR_STATIC_GRAPH = (
    "_static_graph_delay_allreduce_enqueued",
    "reducer._set_static_graph",
    "logger._set_static_graph",
)
"""Further private names of DDP without which they are impossible if the module has ``static_graph``."""

TORCH_NAMES_FOR_MODES = (
    "_C._current_graph_task_id",
    "distributed._register_builtin_comm_hook",
    "distributed.BuiltinCommHookType.FP16_COMPRESS",
)
"""Private names of torch without which they are impossible."""


class Reducer:
    """Turns a DDP module's own exchange off and on, gives it new reducers, and detects when DDP has averaged.

    Created before the module's first forward, which takes shards of tensor parallelism out of the module.

    Args:
        ddp: the module, to which this object keeps a weak reference.

    Attributes:
        parameters: parameters that the reducer averages, by name in the model; those that were frozen later are among
            them, too.
        shards: those of them that are shards of tensor parallelism, by name.
        inner_module: the module inside DDP, which is trained.
        ddp_ref: weak reference to the module.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.parameters = reducer_parameters(ddp)
        self.shards = {name: parameter for name, parameter in self.parameters.items() if is_shard(parameter)}
        self.inner_module: torch.nn.Module = ddp.module
        self.ddp_ref = weakref.ref(ddp)
        self._user_flags: tuple[bool, bool] | None = None  # ``None`` unless DDP's exchange is turned off
        self._has_averaged = False
        self._last_times_ns: list[int]
        self._static_graph_flag: bool  # as last read, or set by ``silence_exchange``
        self._reset(ddp)
        # frameworks delete the module before a last checkpoint, at another time on each rank, but ranks must count the
        # same steps
        weakref.finalize(ddp, _record_last_times, weakref.ref(self)).atexit = False

    @property
    def ddp(self) -> DistributedDataParallel:
        """The DDP module.

        Raises:
            RuntimeError: the module was deleted.
        """
        ddp = self.ddp_ref()
        if ddp is None:
            raise RuntimeError(
                "the DistributedDataParallel module that this compressor was attached to was deleted; keep the module, "
                "or attach to a new module"
            )
        return ddp

    @property
    def will_average(self) -> bool:
        """True if DDP is to average the gradients of the next forward, as the user's flags say (``no_sync()``)."""
        return bool(self.ddp.require_backward_grad_sync) if self._user_flags is None else self._user_flags[0]

    @property
    def detects_all_backwards(self) -> bool:
        """True if ``has_averaged`` detects every backward; False if the module has a single parameter.

        ``has_averaged`` misses a backward if each gradient took exactly as many nanoseconds as in the backward before.
        In a measurement of 40 000 backwards (about 25 us each), it missed 78 backwards of a module with one parameter,
        and none of a module with two parameters.
        """
        return len(self.parameters) > 1

    @property
    def missing_names(self) -> list[str]:
        """Private names that native and outer steps need, and this torch lacks."""
        names = (*NAMES_FOR_MODES, *(NAMES_FOR_STATIC_GRAPH if getattr(self.ddp, "static_graph", False) else ()))
        missing_ddp_names = [f"DistributedDataParallel.{name}" for name in _missing(self.ddp, names)]
        return missing_ddp_names + [f"torch.{name}" for name in _missing(torch, TORCH_NAMES_FOR_MODES)]

    def check_names(self) -> None:
        """Raise if this torch lacks a name that native and outer steps need.

        Raises:
            SettingsError: a name is missing.
        """
        if self.missing_names:
            raise SettingsError(
                f"every, native: torch {torch.__version__} has no {self.missing_names[0]}, which outer and native "
                "steps need; use every=1 and native=False"
            )

    # steps in which DDP does not average

    def silence_exchange(self) -> None:
        """Turn DDP's exchange off for a forward and its backward. Called by a pre-hook when the forward begins.

        DDP reads its flags in forward only, so ``restore_flags`` restores the user's flags as soon as forward ends.
        Before a forward that exchanges again, each rank calls ``renew``.
        """
        ddp = self.ddp
        self._record_backwards()
        if self._user_flags is None:  # not None if the last forward's end did not call ``restore_flags``
            self._user_flags = ddp.require_backward_grad_sync, ddp.require_forward_param_sync
        ddp.require_backward_grad_sync = ddp.require_forward_param_sync = False
        if ddp.static_graph:
            # otherwise DDP would add a node to the autograd graph, whose backward expects the reducer to exchange
            ddp._static_graph_delay_allreduce_enqueued = self._static_graph_flag = True

    def restore_flags(self) -> None:
        """Set DDP's flags back to the user's. Called by a forward hook, registered with ``always_call=True``."""
        if self._user_flags is None:
            return
        (backward_sync, forward_sync), self._user_flags = self._user_flags, None
        self.ddp.require_backward_grad_sync = backward_sync
        # as DDP's forward does: DDP syncs buffers in the forward that follows a forward with require_backward_grad_sync
        self.ddp.require_forward_param_sync = backward_sync if torch.is_grad_enabled() else forward_sync

    # steps in which DDP averages

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

    def _record_backwards(self) -> None:
        """Set ``_has_averaged`` if DDP has averaged gradients since this method was last called."""
        ddp = self.ddp_ref()
        if ddp is not None:  # otherwise, what DDP averaged last was recorded when the module was deleted
            static_graph_flag = _first_static_backward_began(ddp)  # the first such backward sets it instead of times
            self._has_averaged |= static_graph_flag and not self._static_graph_flag
            self._static_graph_flag = static_graph_flag
            self._record_times()

    def _record_times(self) -> None:
        """Compare the times of the newest backward that averaged with those of the one before, unless all are 0."""
        reducer = self._reducer_ref()
        times_ns = self._last_times_ns if reducer is None else [*reducer.get_backward_stats()]
        self._has_averaged |= any(times_ns) and times_ns != self._last_times_ns
        self._last_times_ns = times_ns

    # new reducers

    def register_hook(self, hook: Callable[..., Any]) -> None:
        """Register a communication hook, which copies and pickles of the module will not have.

        Args:
            hook: function that DDP calls with ``None`` and a bucket, and that returns a future of the bucket's flat
                buffer.
        """
        ddp = self.ddp
        if _first_static_backward_began(ddp):
            # a copied module has this flag from its original, as if its own first backward with static_graph had run
            self.renew()
        ddp.register_comm_hook(None, hook)
        ddp._comm_hooks = UncopiedHooks(ddp._comm_hooks)

    def use_float16(self) -> None:
        """Let the reducer average in float16, by torch's C++ hook, until ``renew``. Called on every rank.

        Raises:
            RuntimeError: the reducer has a hook; ``renew`` removes it.
        """
        private_ddp: Any = self.ddp
        untyped_dist: Any = dist
        private_ddp._register_builtin_comm_hook(untyped_dist.BuiltinCommHookType.FP16_COMPRESS)

    def renew(self, forward_pending: bool = False) -> None:
        """Give the module a new reducer without a hook, as a new DistributedDataParallel has.

        Called on every rank between the same two steps; starts no collective. The module's gradients stay as they are.
        The new reducer also averages parameters that are frozen at present, so that they can be trained again later.

        Args:
            forward_pending: whether a forward has run whose backward is still to come, and must be averaged.

        Raises:
            RuntimeError: a backward is running; or the pending backward would not be averaged; or this torch's
                DistributedDataParallel lacks a name that is needed. Nothing was changed.
        """
        ddp: Any = self.ddp
        if missing_names := _missing(ddp, NAMES_FOR_NEW_REDUCER):
            raise RuntimeError(
                f"ddp: DistributedDataParallel of torch {torch.__version__} has no {missing_names[0]}, which removing "
                "a hook needs; wrap the model in a new DistributedDataParallel instead"
            )
        if torch._C._current_graph_task_id() != NO_BACKWARD:
            raise RuntimeError("detach: a backward is running; call detach() after the backward, between two steps")
        if forward_pending and (ddp.find_unused_parameters or ddp.static_graph):
            raise RuntimeError(
                "detach: a forward with gradients has run, but its backward has not; with find_unused_parameters or "
                "static_graph, DDP would not average that backward's gradients; call detach() between a backward and "
                "the next forward"
            )
        self._record_backwards()
        ddp._remove_autograd_hooks()
        parameters, sparse_ids = [*self.parameters.values()], _ids_of_sparse(ddp)
        are_sparse = [id(parameter) in sparse_ids for parameter in parameters]
        ddp.reducer = ddp.logger = None  # frees the old buckets before there are new ones: the logger has them, too
        with _requiring_gradients(parameters):
            ddp._ddp_init_helper(parameters, are_sparse, dict(enumerate(self.parameters)), ddp.static_graph)
        ddp._comm_hooks = []
        ddp._has_rebuilt_buckets = False
        if ddp.static_graph:
            ddp._static_graph_delay_allreduce_enqueued = False
            ddp.reducer._set_static_graph()
            ddp.logger._set_static_graph()
        if forward_pending:
            ddp.reducer.prepare_for_backward([])
        self._reset(ddp)

    def _reset(self, ddp: DistributedDataParallel) -> None:
        """Store what the module's present reducer has recorded so far, which is nothing if the reducer is new."""
        self._reducer_ref: Callable[[], Any] = weakref.ref(ddp.reducer)
        self._last_times_ns = [*ddp.reducer.get_backward_stats()]
        self._static_graph_flag = _first_static_backward_began(ddp)


def reducer_parameters(ddp: DistributedDataParallel) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that required gradients when DDP was created, which its reducer averages, by name."""
    parameters = averaged_parameters(ddp)
    trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if len(trained) == len(ddp.reducer.get_backward_stats()):
        return trained
    buckets = ddp.reducer._get_zeros_like_grad_buckets()  # some parameters were frozen since
    reducer_ids = {id(parameter) for bucket in buckets for parameter in bucket.parameters()}
    return {name: parameter for name, parameter in parameters.items() if id(parameter) in reducer_ids}


def refuse_unfit(ddp: DistributedDataParallel, agree_group: dist.ProcessGroup | None) -> None:
    """Raise if gravac cannot attach to a module.

    Args:
        ddp: module that the user gave.
        agree_group: group of the ranks that make the same decisions; ``None``: only the ranks that average.

    Raises:
        RuntimeError: the module has a communication hook already; or DDP's first forward has taken shards of tensor
            parallelism out of the module, so that gravac cannot know the shards' names.
        SettingsError: tensor parallelism cuts a parameter of the module, and ``agree_group`` is ``None``. Ranks that
            share a replica hold equal copies of the other parameters, which would drift apart if these ranks chose
            different candidates.
        ValueError: DDP has ``delay_all_reduce_named_params``, which torch 2.13 all-reduces without its communication
            hook, and never waits for.
    """
    shards = shards_of_tensor_parallelism(ddp)
    all_parameters: Iterable[torch.nn.Parameter] = getattr(ddp, "_module_parameters", ())
    missing_shards = len({id(parameter) for parameter in all_parameters if is_shard(parameter)}) - len(shards)
    if missing_shards:
        raise RuntimeError(
            f"ddp: its first forward has replaced {missing_shards} shards of tensor parallelism by DTensors that are "
            "not parameters, so gravac cannot know the shards' names; create the model again, and attach before the "
            "first forward"
        )
    if getattr(ddp, "_delay_all_reduce_params", None):
        raise ValueError(
            "delay_all_reduce_named_params: DistributedDataParallel never waits for the all-reduce of these "
            "parameters, so an optimizer may apply gradients that are not averaged; leave out "
            "delay_all_reduce_named_params and param_to_hook_all_reduce"
        )
    if ddp._comm_hooks:
        raise RuntimeError(
            "ddp has a communication hook already, but torch allows only one; call detach() of the compressor that "
            "the hook belongs to, or make a new DistributedDataParallel around the model"
        )
    if shards and agree_group is None:
        raise SettingsError(
            f"agree_group: not given, but {next(iter(shards))} is a shard of tensor parallelism, so the ranks with its "
            "other shards must make the same decisions; call attach(..., agree_group=group) with the group of all "
            "ranks that hold a part of the model, such as torch.distributed.group.WORLD"
        )


@contextmanager
def _requiring_gradients(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Return a context in which all given parameters require gradients."""
    frozen = [parameter for parameter in parameters if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_()
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _ids_of_sparse(ddp: DistributedDataParallel) -> set[int]:
    """Return the ids of the parameters whose gradients are sparse."""
    embeddings = (module for module in ddp.modules() if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag))
    return {id(embedding.weight) for embedding in embeddings if embedding.sparse}


def _record_last_times(reducer_ref: weakref.ref[Reducer]) -> None:
    """Record the last backward of a DDP module that is being deleted."""
    reducer = reducer_ref()
    if reducer is not None:
        reducer._record_times()


def _first_static_backward_began(ddp: DistributedDataParallel) -> bool:
    """Return whether the first backward of a module with ``static_graph`` has begun."""
    return bool(ddp.static_graph and getattr(ddp, "_static_graph_delay_allreduce_enqueued", False))


def _missing(owner: object, dotted_names: Iterable[str]) -> list[str]:
    """Return which attributes an object lacks, or attributes of an attribute, as ``"reducer.get_backward_stats"``."""
    return [name for name in dotted_names if not _has_attribute(owner, name)]


def _has_attribute(owner: object, dotted_name: str) -> bool:
    for component in dotted_name.split("."):
        if not hasattr(owner, component):
            return False
        owner = getattr(owner, component)
    return True
