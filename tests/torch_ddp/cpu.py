# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Moves tests that were written for GPUs to the CPU: every patch that torch's tests run under, natively as with gravac.

Two kinds: what decides at import whether a test is skipped (``before_import``), and what names a device when it runs
(``in_rank``). Neither touches a gradient, a bucket or a collective.
"""

import contextlib
import functools
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.torch_ddp import sync_batch_norm

FACTORIES = ("empty", "full", "ones", "rand", "randint", "randn", "tensor", "zeros")

PATCHES = {
    "`skip_if_no_gpu`, `skip_if_lt_x_gpu(n)`": "do not skip",
    "`expecttest`, which torch's test base imports": "where it is not installed: `unittest.TestCase`, its base",
    "`INIT_METHOD`": "a file, as in torch's own runs; then tests save and reload the model in mid-training too",
    "`.to(device)`, `.cuda()` of tensors and modules": "a number, `cuda` or `cuda:n` is `cpu`",
    "`device=` of " + ", ".join(f"`torch.{name}`" for name in FACTORIES): "the same",
    "`torch.device(...)` in the tests' own module": "the same",
    "`DistributedDataParallel(device_ids=, output_device=)`": "`None`, as DDP asks of a model on the CPU",
    "`torch.cuda.device_count`": "the number of ranks",
    "`torch.cuda.set_device`, `manual_seed`, `synchronize`": "nothing",
    "`torch.cuda.current_device`": "the rank",
    "`torch.cuda.Stream`, `stream`": "no stream",
    "`autocast()`, `GradScaler()` of `torch.cuda.amp`": "those of the CPU, in bfloat16",
    "`SyncBatchNorm`": "its five GPU kernels as plain arithmetic; the collectives between them are torch's",
}
"""What is patched, and what stands there instead."""


def before_import() -> None:
    """Patch what ``distributed_test`` takes from other modules while it is imported."""
    try:
        import expecttest  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_distributed

    def keep(test: Callable[..., Any]) -> Callable[..., Any]:
        return test

    common_distributed.skip_if_no_gpu = keep
    common_distributed.skip_if_lt_x_gpu = lambda *_, **__: keep


def in_rank(tests: Any, rank: int, world: int) -> None:
    """Patch what names a device, in a rank's process.

    Args:
        tests: the module of torch's tests.
        rank: of this process.
        world: number of ranks.
    """
    for name in FACTORIES:
        setattr(torch, name, _made_on_cpu(getattr(torch, name)))
    torch.Tensor.to = _to(torch.Tensor.to)  # type: ignore[method-assign]
    torch.nn.Module.to = _to(torch.nn.Module.to)  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.cuda.device_count = lambda: world
    torch.cuda.current_device = lambda: rank
    for name in ("set_device", "manual_seed", "synchronize", "Stream"):
        setattr(torch.cuda, name, _nothing())
    torch.cuda.stream = _no_stream  # type: ignore[assignment]
    tests.torch = _Torch()
    tests.autocast = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    tests.GradScaler = functools.partial(torch.amp.GradScaler, "cpu")
    sync_batch_norm.on_cpu()
    DistributedDataParallel.__init__ = _ddp_on_cpu(DistributedDataParallel.__init__)  # type: ignore[method-assign]


def on_cpu(device: Any) -> Any:
    """The CPU where a GPU is named, as a number, a string or a device; anything else as it is."""
    if isinstance(device, bool):
        return device
    named_gpu = isinstance(device, (str, torch.device)) and str(device).startswith("cuda")
    return torch.device("cpu") if isinstance(device, int) or named_gpu else device


def _made_on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return make(*args, **kwargs)

    return made


def _to(move: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(move)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        return move(self, *(on_cpu(one) if at == 0 else one for at, one in enumerate(args)), **kwargs)

    return moved


def _ddp_on_cpu(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def constructed(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        construct(self, module, None, None, *args, **kw)

    return constructed


class _Torch:
    """torch as the tests' module sees it: ``torch.device`` is a class, which no function may stand for elsewhere."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(*named: Any) -> torch.device:
        """The CPU for a GPU."""
        return torch.device(on_cpu(named[0]))


def _nothing() -> Callable[..., None]:
    """Stands for what only a GPU does; one for each, as torch.compile wants no function under two names."""
    return lambda *_, **__: None


@contextlib.contextmanager
def _no_stream(*_: Any, **__: Any) -> Iterator[None]:
    yield
