# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Number formats by name, their roundoff and their range."""

import torch

SIXTEEN_BIT_FORMATS = ("float16", "bfloat16")
"""Number formats that take half of float32's bytes."""


def dtype_of(name: str | None, default: torch.dtype) -> torch.dtype:
    """Return the torch dtype called ``name``, or ``default`` for ``None``."""
    dtype: torch.dtype = default if name is None else getattr(torch, name)
    return dtype


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return the largest relative error of rounding to ``dtype``: half its ``eps``."""
    return torch.finfo(dtype).eps / 2


def working(dtype: torch.dtype) -> torch.dtype:
    """Return the number format in which gradients of ``dtype`` are compressed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rounds_products(like: torch.Tensor) -> bool:
    """True if matrix products on the device and in the dtype of ``like`` round their factors to TF32 (11 bits).

    Users allow TF32 for the whole process (``torch.backends.cuda.matmul``); gravac only reads that setting.
    """
    if like.is_cpu or like.dtype != torch.float32:
        return False
    matmul = torch.backends.cuda.matmul
    # since torch 2.9, reading allow_tf32 raises if fp32_precision was set
    tf32_allowed = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
    return bool(tf32_allowed)


def magnitudes_in(dtype: torch.dtype) -> tuple[float, float]:
    """Return the smallest and largest magnitude of elements that can safely be sent in ``dtype``.

    Compressors return this from ``Compressor.magnitudes``. The range is narrower than that of ``dtype``.
    """
    return (2.0**-14, 2.0**15) if dtype == torch.float16 else (2.0**-100, 2.0**100)


def convert_clamped(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert x to ``dtype``, in its shape; numbers too large for float16 become float16's largest number."""
    if dtype == torch.float16:
        maximum = torch.finfo(dtype).max
        x = x.clamp(-maximum, maximum)
    return x.to(dtype)
