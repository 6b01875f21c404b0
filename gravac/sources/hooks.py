# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hooks that compilers do not compile, and hooks that copies and pickles of a module do not get."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable would import dynamo here

NO_BACKWARD = -1
"""Result of ``torch._C._current_graph_task_id()`` if no backward is running.

Under DDP's ``join()``, a rank that has no more inputs takes part in the other ranks' exchanges without a backward."""


class UncompiledHook:
    """A hook that a compiled module, optimizer or training step calls, but does not compile.

    Args:
        function: function that is called with the hook's arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @_disable_dynamo
    def __call__(self, *arguments: Any) -> Any:
        """Call the function with the hook's arguments, and return its result."""
        return self._function(*arguments)


class UncopiedHook(UncompiledHook):
    """A module's hook that is not copied: copies and pickles of the module get a function that does nothing.

    Args:
        function: function that is called with the hook's arguments; its return value is not used.
    """

    @_disable_dynamo
    def __call__(self, *arguments: Any) -> None:
        """Call the function with the hook's arguments, and return ``None``: the module's inputs and outputs stay."""
        self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # nullcontext's __exit__ takes any arguments, returns None, and can be unpickled without gravac
        return getattr, (nullcontext(), "__exit__")


class UncopiedHooks(list[Any]):
    """DDP's list of communication hooks, which is copied as an empty list: a copied module's reducer has no hooks."""

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def takes_hooks(module: torch.nn.Module) -> bool:
    """True if hooks can be registered on a module; False if it was compiled by ``torch.jit.script``."""
    return not isinstance(module, torch.jit._script.RecursiveScriptModule)
