# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Post-accumulate-grad hooks that users register after ``attach``: called once the gradient is what they expect.

Such a hook may log or clip a gradient, or make an optimizer's step ("fusing the optimizer step into the backward").
torch calls the hooks as soon as this rank's gradient is there. With DDP this is before DDP averages, with or without
gravac. With FSDP2 it is after torch's exchange over replicas, so gravac calls them after its own exchange.
"""

from collections.abc import Callable
from typing import Any

import torch

from gravac.settings import SettingsError

_own_hook_ids: set[int] = set()
"""Ids of the hooks that gravac has registered by ``register_own_hook``."""

Defer = Callable[[Callable[[], None]], bool]
"""Function that gets a call without arguments; it returns True if it will make the call later, otherwise False."""


class WatchedHook:
    """A user's hook on a parameter, which may be called later, and may be refused if it changes the parameter.

    Args:
        name: the parameter's name.
        hook: the user's hook, which gets the parameter.
        defer: function that may call the hook later.
        refuses_steps: whether an error is raised if the hook changes the parameter, since outer steps are allowed.
    """

    def __init__(self, name: str, hook: Callable[[torch.Tensor], None], defer: Defer, refuses_steps: bool) -> None:
        self.hook = hook
        self._name, self._defer, self._refuses_steps = name, defer, refuses_steps

    def __call__(self, parameter: torch.Tensor) -> None:
        """Call the user's hook, now or later.

        Raises:
            SettingsError: the hook has changed the parameter, and outer steps are allowed.
        """
        if not self._defer(lambda: self._call(parameter)):
            self._call(parameter)

    def _call(self, parameter: torch.Tensor) -> None:
        version = _version(parameter)
        self.hook(parameter)
        if self._refuses_steps and _version(parameter) != version:
            raise no_outer_steps(
                f"a post-accumulate-grad hook changes {self._name} within backward, so that gravac cannot see the "
                "optimizer's steps",
                "an optimizer whose step() is called",
            )


def _version(parameter: torch.Tensor) -> int:
    """Return a number that grows with each change of a parameter, in shards or not."""
    shard: Any = getattr(parameter, "_local_tensor", parameter)
    return int(parameter._version + shard._version)


def register_own_hook(
    parameter: torch.Tensor, hook: Callable[[torch.Tensor], object]
) -> "torch.utils.hooks.RemovableHandle":
    """Register a hook of gravac's own on a parameter of any shape; ``watch_hooks`` leaves the hook as it is."""
    hookable: Any = parameter
    handle: torch.utils.hooks.RemovableHandle = hookable.register_post_accumulate_grad_hook(hook)
    _own_hook_ids.add(handle.id)
    return handle


def watch_hooks(
    name: str,
    parameter: torch.Tensor,
    defer: Defer = lambda call: False,
    refuses_steps: bool = False,
) -> None:
    """Put a ``WatchedHook`` in place of each hook that a user registered on a parameter.

    Args:
        name: the parameter's name.
        parameter: the parameter, of any shape.
        defer: function that may call hooks later.
        refuses_steps: whether an error is raised if a hook changes the parameter.
    """
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    for hook_id, hook in hooks.items():
        if hook_id not in _own_hook_ids and not isinstance(hook, WatchedHook):
            hooks[hook_id] = WatchedHook(name, hook, defer, refuses_steps)


def restore_hooks(parameter: torch.Tensor) -> None:
    """Undo ``watch_hooks`` for a parameter of any shape."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    for hook_id, hook in hooks.items():
        if isinstance(hook, WatchedHook):
            hooks[hook_id] = hook.hook


def refuse_optimizer_in_backward(name: str, parameter: torch.Tensor) -> None:
    """Raise a ``SettingsError`` if ``_apply_optimizer_in_backward`` gave a parameter (any shape) an optimizer."""
    if hasattr(parameter, "_in_backward_optimizers"):
        raise no_outer_steps(
            f"the optimizer of {name} runs within backward (_apply_optimizer_in_backward), so that gravac "
            "cannot see its steps",
            "an optimizer whose step() is called",
        )


def no_outer_steps(reason: str, remedy: str) -> SettingsError:
    """Return the error that says why outer steps are impossible, and what to use in place of the cause."""
    return SettingsError(f"every: outer steps are impossible here: {reason}; use {remedy}, or every=1")
