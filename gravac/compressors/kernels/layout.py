# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks of tensors before a launch: kernels would read other memory if tensors were not flat and contiguous."""

from contextlib import AbstractContextManager
from typing import Any

import torch

GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)
"""Number formats of gradients that kernels accept, and of tensors into which they write means."""

RESIDUALS = (torch.float32, torch.bfloat16)
"""Number formats of residuals that kernels add to gradients."""


def require_flat(
    elements: int, dtypes: tuple[torch.dtype, ...] = (torch.float32,), **tensors: torch.Tensor | None
) -> None:
    """Raise unless all tensors, given by name, are flat and contiguous; ``None`` is not checked.

    Raises:
        ValueError: a tensor has another shape than ``[elements]``, or gaps, or a dtype that is not among ``dtypes``.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.shape != (elements,) or not tensor.is_contiguous():
            raise ValueError(f"{name}: of shape {list(tensor.shape)}; kernels take contiguous [{elements}]: flatten it")
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name}: {tensor.dtype}; kernels take {', '.join(map(str, dtypes))}")


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that makes the tensor's GPU the current device, on which kernels are launched."""
    guard: AbstractContextManager[Any] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return guard
