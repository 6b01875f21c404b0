# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Count what code would have a GPU do: kernels, copies to and from the host, and reads that the host waits for.

Tensors are fake ones on a made-up device, so nothing is computed, and a mode under them sees every operator::

    with counting() as seen:
        torch.zeros(8, device=DEVICE).abs().sum().item()
    assert seen.waits == ["_local_scalar_dense"] and sum(seen.kernels.values()) == 3

One operator counts as one kernel; views count as none. What depends on data gets some answer: loops over it are
approximate.
Tables that are kept for a device must be made before what is counted, in a first run under ``counting``.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "npy:0"
"""The made-up device."""

FREE = frozenset(
    {
        *(
            "view",
            "_unsafe_view",
            "_reshape_alias",
            "reshape",
            "flatten",
            "as_strided",
            "alias",
            "detach",
            "lift_fresh",
        ),
        *("slice", "select", "unsqueeze", "squeeze", "expand", "t", "transpose", "permute", "movedim"),
        *("split", "split_with_sizes", "unbind", "view_as_complex", "view_as_real"),
        *("empty", "empty_strided", "new_empty", "empty_like", "resize_"),
    }
)
"""Operators that launch nothing."""

READS = frozenset({"nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "equal", "is_nonzero"})
"""Operators beside ``_local_scalar_dense`` whose result, or its size, the host waits for."""


class Counting(TorchDispatchMode):
    """Sees every operator.

    Attributes:
        kernels: number of kernels, by operator.
        waits: operators that make the host wait for the device, in order.
        copies: copies between host and device, ``"operator: from -> to"``, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.waits: list[str] = []
        self.copies: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        given = [*tensors_in((args, kwargs))]
        if any(map(_there, given)) and (name in READS or name == "_local_scalar_dense" or _by_mask(name, args)):
            self.waits.append(name)
        if name in _ANSWERS or _by_mask(name, args):
            return _ANSWERS.get(name, _half)(args[0])
        if name == "_to_copy" and not _there(given[0]) and torch.device(kwargs.get("device") or "cpu").type == "npy":
            # by itself it would copy what is known of a tensor of one element
            self.copies.append(f"{name}: cpu -> npy")
            return torch.empty(given[0].shape, dtype=kwargs.get("dtype") or given[0].dtype, device=DEVICE)
        made = func(*args, **kwargs)
        tensors = [*tensors_in(made)]
        if name in ("_to_copy", "copy_"):
            source, out = given[-1], tensors[0]
            if _there(source) != _there(out):
                self.copies.append(f"{name}: {source.device.type} -> {out.device.type}")
                return made
        changed = given if name.startswith("_foreach") else tensors  # of those that work in place on many, none come
        if name not in FREE and any(map(_there, changed)):
            self.kernels[name] += 1
        return made


@contextmanager
def counting() -> Iterator[Counting]:
    """Count what happens within; tensors made within are fake, and fit those of earlier uses."""
    with _fake(), Counting() as seen:
        yield seen


@functools.cache
def _fake() -> FakeTensorMode:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _setup_privateuseone_for_python_backend("npy")
    # what later tests of this process ask of any device that there is, such as those that checkpoint activations
    torch.get_device_module("npy").get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    return FakeTensorMode(allow_non_fake_inputs=True)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors among an operator's arguments, or its results; ``tree_leaves`` takes several times as long."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_in(inner)
    elif isinstance(value, dict):
        yield from tensors_in([*value.values()])


def _there(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "npy"


def _by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Whether coordinates are taken, or put, where a mask says."""
    masks = args[1] if name in ("index", "index_put", "index_put_") else ()
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in masks)


def _scalar(x: torch.Tensor) -> bool | int | float:
    return True if x.dtype == torch.bool else 1.0 if x.dtype.is_floating_point else 1


def _half(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(max(1, x.numel() // 2))


def _some(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(max(1, x.numel() // 100), x.dim(), dtype=torch.int64)


_ANSWERS: dict[str, Callable[[torch.Tensor], Any]] = {"_local_scalar_dense": _scalar, "nonzero": _some}
"""What is answered where no fake tensor can tell."""
