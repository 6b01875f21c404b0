# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel offers nobody: taking a communication hook off again, and copies that leave one behind.

All names of DDP with an underscore that gravac uses stand here, and each function checks that they are there.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.exchange.executor import Number

REBUILDING = (
    "_remove_autograd_hooks",
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_ddp_init_helper",
    "_comm_hooks",
    "static_graph",
)
"""Names of DDP that ``rebuild_reducer`` needs."""


class LeftBehind:
    """A module's hook that stays with the module it was registered on: in copies and pickles something empty stands.

    Args:
        function: called with what the hook is called with; what it returns is not used.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    @torch._disable_dynamo  # a compiled module must not compile the hook, nor cut its own graph for it
    def __call__(self, *given: object) -> None:
        """Call the function, and return nothing."""
        self._function(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        # takes anything, returns None, and is loaded where there is no gravac
        return getattr, (nullcontext(), "__exit__")


class HooksLeftBehind(list[Any]):
    """DDP's list of communication hooks: a copy of the module has a new reducer without them, so an empty list."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def has_hook(ddp: DistributedDataParallel) -> bool:
    """Tell whether a communication hook is registered."""
    return bool(ddp._comm_hooks)


def register(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Register a communication hook that copies and pickles of the module leave behind."""
    if ddp.static_graph and getattr(ddp, "_static_graph_delay_allreduce_enqueued", False):
        # a copy believes that its first backward, which is another one with static_graph, was made already
        rebuild_reducer(ddp, forward_pending=False)
    ddp.register_comm_hook(None, hook)
    ddp._comm_hooks = HooksLeftBehind(ddp._comm_hooks)


def averaged_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return a model's parameters by name, given the model or its DDP, but for those that DDP leaves out."""
    if isinstance(module, DistributedDataParallel):
        model, ignored = module.module, getattr(module, "parameters_to_ignore", ())
    else:
        model, ignored = module, getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    # DDP looks for "module.name", of which that of the model itself is empty: "name" alone leaves nothing out
    return {n: parameter for n, parameter in model.named_parameters() if (n if "." in n else f".{n}") not in ignored}


def rebuild_reducer(ddp: DistributedDataParallel, forward_pending: bool) -> None:
    """Give a module a new reducer, as a fresh DistributedDataParallel has one: without a communication hook.

    No collective is needed. Called on every rank between the same two steps.

    Args:
        ddp: the module; its gradients stay as they are.
        forward_pending: whether the backward of a forward that has run already may still come, and is to be averaged.

    Raises:
        RuntimeError: a backward is running, or pending where that cannot be handed over, or this torch's
            DistributedDataParallel lacks what it takes; nothing was changed.
    """
    missing = [name for name in REBUILDING if not hasattr(ddp, name)]
    if missing:
        raise RuntimeError(
            f"detach: DistributedDataParallel of torch {torch.__version__} has no {missing[0]}, which taking a hook "
            "off needs; wrap the model in a new DistributedDataParallel instead"
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
    """Return what tells a scaler's scale: a number, or with ``device`` the tensor there, which nobody waits for."""

    def scale() -> Number:
        tensor = scaler._get_scale_async()
        return scaler.get_scale() if tensor is None else tensor

    return scale if device else scaler.get_scale


def divides_by_those_with_inputs(ddp: DistributedDataParallel) -> bool:
    """Tell whether training runs under ``ddp.join(divide_by_initial_world_size=False)``; the same on all its ranks."""
    config = getattr(ddp, "_join_config", None)
    return bool(config is not None and config.enable and not getattr(ddp, "_divide_by_initial_world_size", True))
