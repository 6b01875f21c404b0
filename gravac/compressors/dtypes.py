# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Number formats by name, and how finely they round."""

import torch

SIXTEEN_BIT = ("float16", "bfloat16")
"""Number formats that send half of float32's bytes."""


def dtype_of(name: str | None, default: torch.dtype) -> torch.dtype:
    """The torch dtype called ``name``, or ``default`` for ``None``."""
    dtype: torch.dtype = default if name is None else getattr(torch, name)
    return dtype


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to ``dtype``: half its ``eps``."""
    return torch.finfo(dtype).eps / 2


def working(dtype: torch.dtype) -> torch.dtype:
    """The number format that gradients of ``dtype`` are compressed in: float64 for itself, float32 for the rest."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rounds_products(like: torch.Tensor) -> bool:
    """Whether matrix products of tensors like this one round what they multiply to TF32, of 11 bits, on a GPU.

    A user says so for the whole process (``torch.backends.cuda.matmul``); it is only asked here, never changed.
    """
    if like.is_cpu or like.dtype != torch.float32:
        return False
    matmul = torch.backends.cuda.matmul
    # since torch 2.9 the old name raises where the new one was set
    named = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
    return bool(named)


def magnitudes_in(dtype: torch.dtype) -> tuple[float, float]:
    """Least and largest magnitude of gradients' elements that travel in ``dtype``: see ``Compressor.magnitudes``."""
    return (2.0**-14, 2.0**15) if dtype == torch.float16 else (2.0**-100, 2.0**100)


def narrow(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert x to ``dtype``, in its shape; what is too large for float16 becomes the largest that float16 can hold."""
    if dtype == torch.float16:
        most = torch.finfo(dtype).max
        x = x.clamp(-most, most)
    return x.to(dtype)
