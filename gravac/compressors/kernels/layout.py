# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks tensors before a launch: if a tensor is not flat and contiguous, a kernel reads and writes wrong memory."""

from contextlib import AbstractContextManager
from typing import Any

import torch

GRADIENT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Number formats of gradients that kernels accept, and of tensors into which they write means."""

RESIDUAL_DTYPES = (torch.float32, torch.bfloat16)
"""Number formats of residuals that kernels add to gradients."""


def require_flat(
    elements: int, dtypes: tuple[torch.dtype, ...] = (torch.float32,), **tensors: torch.Tensor | None
) -> None:
    """Check that all tensors, given by name, have shape ``[elements]`` and are contiguous; ``None`` is allowed.

    Raises:
        ValueError: a tensor has another shape, is not contiguous, or has a dtype that is not among ``dtypes``.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.shape != (elements,) or not tensor.is_contiguous():
            raise ValueError(
                f"{name}: the kernel cannot use shape {list(tensor.shape)} with strides {list(tensor.stride())}; give "
                f"a contiguous tensor of shape [{elements}]"
            )
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name}: its dtype is {tensor.dtype}; use one of {', '.join(map(str, dtypes))}")


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that makes the tensor's GPU the current device, on which kernels are launched."""
    guard: AbstractContextManager[Any] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return guard
