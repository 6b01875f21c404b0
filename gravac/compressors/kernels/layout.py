# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What kernels take for granted of tensors: that they lie flat, or other memory is read; and on which device."""

from contextlib import AbstractContextManager
from typing import Any

import torch

GRADIENTS = (torch.float32, torch.float16, torch.bfloat16)
"""Number formats of gradients that kernels take, and of what they write means into."""

RESIDUALS = (torch.float32, torch.bfloat16)
"""Number formats of what they add to gradients."""


def require_flat(
    elements: int, dtypes: tuple[torch.dtype, ...] = (torch.float32,), **tensors: torch.Tensor | None
) -> None:
    """Refuse tensors that are not flat and contiguous, by name; ``None`` is left out.

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
    """Make the GPU of a tensor, of any shape, the current one for a while, since kernels are launched there."""
    guard: AbstractContextManager[Any] = torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]
    return guard
