# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Encoding of one piece for fitted levels as a compiled kernel: few passes in place of some fifteen.

Only choosing codes and scales is compiled. What codes stand for is a level times its scale, rounded once, which no
compiler may change: products and sums are not contracted. Ranks with and without a compiler thus decode alike.
"""

import functools
import logging
from collections.abc import Callable

import torch

log = logging.getLogger(__name__)

Encoder = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""A kernel called with a piece, ``[rows, block]``, and where decoded numbers go; gives codes, scales, squared error."""


def encoder(positive: tuple[float, ...], thresholds: tuple[float, ...], per_size: float) -> Encoder | None:
    """The compiled encoder; ``None`` once compiling has failed. Compiles when first called: seconds.

    Args:
        positive: positive levels, ascending.
        thresholds: magnitudes at which one level gives way to the next, one fewer.
        per_size: what a number is multiplied by, over its block's Euclidean norm, before it is compared.
    """
    return None if _failed else _encoder(positive, thresholds, per_size)


_failed: list[Exception] = []


@functools.cache
def _encoder(positive: tuple[float, ...], thresholds: tuple[float, ...], per_size: float) -> Encoder:
    def encode(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inverse = per_size / torch.linalg.vector_norm(x, dim=1)
        fine = x * torch.where(inverse.isfinite(), inverse, 0.0).unsqueeze(1)
        size = fine.abs()
        magnitude, step = torch.full_like(x, positive[0]), torch.zeros_like(x)
        for at, threshold in enumerate(thresholds, start=1):
            magnitude = torch.where(size >= threshold, positive[at], magnitude)
            step = torch.where(size >= threshold, float(at), step)
        values = torch.where(fine >= 0, magnitude, -magnitude)
        codes = torch.where(fine >= 0, step + len(positive), len(positive) - 1 - step)
        scales = ((x * values).sum(1) / (values * values).sum(1)).to(torch.bfloat16)
        sent = values * scales.float().unsqueeze(1)
        out.copy_(sent)
        left = x - sent
        return codes.to(torch.uint8), scales, (left * left).sum()

    options: dict[str, str | int | bool | Callable[..., object]] = {"cpp.enable_floating_point_contract_flag": "off"}
    return torch.compile(encode, fullgraph=True, dynamic=False, options=options)


def attempt(
    kernel: Encoder, x: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Call a kernel; when it does not compile, warn, and use no more compiled kernels in this process.

    Args:
        kernel: what ``encoder`` returned.
        x: numbers to code: float32, shape ``[rows, block]``.
        out: like x; overwritten with what the codes stand for.

    Returns:
        Codes (uint8, ``[rows, block]``), scales (bfloat16, ``[rows]``) and the squared error (0-d); ``None`` when the
        kernel does not compile.
    """
    try:
        with torch.no_grad():
            return kernel(x, out)
    except Exception as error:  # of many kinds: no compiler, one that fails, a PyTorch that cannot
        if not _failed:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            log.warning("quantize: compiled=True does not work here, going on without: %s", reason)
        _failed.append(error)
        return None
