# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm on the CPU: the five kernels that torch has for GPUs only, as plain arithmetic.

torch's own autograd function calls them, with its own collectives between. Inputs are (N, C, ...), statistics (C,) or
(ranks, C); sums are made in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def on_cpu() -> None:
    """Let SyncBatchNorm run on the CPU, alone and under DDP."""
    kernels = {"stats": stats, "gather_stats_with_counts": gather, "elemt": normalize}
    for name, kernel in {**kernels, "backward_reduce": reduce, "backward_elemt": backward}.items():
        setattr(torch, f"batch_norm_{name}", kernel)
    forward = torch.nn.SyncBatchNorm.forward
    torch.nn.SyncBatchNorm.forward = _allowed(forward)  # type: ignore[method-assign]
    DistributedDataParallel._passing_sync_batchnorm_handle = lambda *_: None  # type: ignore[method-assign]


def stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation of this rank's input, by channel."""
    variance, mean = torch.var_mean(x.float(), _but_channels(x), correction=0)
    return mean, torch.rsqrt(variance + eps)


def gather(
    _: torch.Tensor,
    means: torch.Tensor,
    inverses: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_variance: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and inverse deviation over all ranks, and the running ones moved on."""
    share = (counts.float() / counts.sum())[:, None]
    mean = (share * means).sum(0)
    variance = (share * (inverses.pow(-2) - eps + (means - mean).square())).sum(0)
    if running_mean is not None and running_variance is not None:
        count = float(counts.sum())
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        running_variance.lerp_((variance * count / (count - 1)).to(running_variance.dtype), momentum)
    return mean, torch.rsqrt(variance + eps)


def normalize(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    _: float,
) -> torch.Tensor:
    """The layer's output."""
    y = (x - _by_channel(mean, x)) * _by_channel(inverse, x)
    if weight is not None and bias is not None:
        y = y * _by_channel(weight, x) + _by_channel(bias, x)
    return y.to(x.dtype)


def reduce(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    *_: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Sums of the output's gradient, alone and times the centred input; gradients of weight and bias."""
    total = grad.float().sum(_but_channels(x))
    centred = (grad.float() * (x - _by_channel(mean, x))).sum(_but_channels(x))
    if weight is None:
        return total, centred, None, None
    return total, centred, (centred * inverse).to(weight.dtype), total.to(weight.dtype)


def backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
    weight: torch.Tensor | None,
    total: torch.Tensor,
    centred: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    """Gradient of the input, from the sums over all ranks."""
    count = counts.sum()
    slope = _by_channel(inverse.square() * centred / count, x)
    scale = inverse if weight is None else inverse * weight
    step = grad - _by_channel(total / count, x) - (x - _by_channel(mean, x)) * slope
    return (step * _by_channel(scale, x)).to(x.dtype)


def _but_channels(x: torch.Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _by_channel(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return value.float().view(1, -1, *(1 for _ in range(x.dim() - 2)))


def _allowed(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Passes the layer's check of the device's name: a private back end is allowed, so the CPU is called one."""

    @functools.wraps(forward)
    def allowed(self: Any, x: torch.Tensor) -> torch.Tensor:
        name = torch._C._get_privateuse1_backend_name
        torch._C._get_privateuse1_backend_name = lambda: "cpu"
        try:
            return forward(self, x)
        finally:
            torch._C._get_privateuse1_backend_name = name

    return allowed
