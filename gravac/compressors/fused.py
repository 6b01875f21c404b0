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

Encoded = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Codes, scales and squared error of a piece."""

Encoder = Callable[[torch.Tensor, torch.Tensor], Encoded]
"""A kernel called with a piece, ``[rows, block]``, and where decoded numbers go; gives what is ``Encoded``."""


_failed: list[Exception] = []


@functools.cache
def _encoder(positive: tuple[float, ...], thresholds: tuple[float, ...], per_size: float) -> Encoder:
    def kernel(x: torch.Tensor, out: torch.Tensor) -> Encoded:
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
    return torch.compile(kernel, fullgraph=True, dynamic=False, options=options)


def encode(
    positive: tuple[float, ...], thresholds: tuple[float, ...], per_size: float, x: torch.Tensor, out: torch.Tensor
) -> Encoded | None:
    """Encode one piece by the compiled kernel, which is compiled when first called: seconds.

    When it does not compile, warn, and use no more compiled kernels in this process.

    Args:
        positive: positive levels, ascending.
        thresholds: magnitudes at which one level gives way to the next, one fewer.
        per_size: what a number is multiplied by, over its block's Euclidean norm, before it is compared.
        x: numbers to code: float32, shape ``[rows, block]``.
        out: like x; overwritten with what the codes stand for.

    Returns:
        Codes (uint8, ``[rows, block]``), scales (bfloat16, ``[rows]``) and the squared error (0-d); ``None`` when the
        kernel does not compile, or one did not before.
    """
    if _failed:
        return None
    try:
        with torch.no_grad():
            return _encoder(positive, thresholds, per_size)(x, out)
    except Exception as error:  # of many kinds: no compiler, one that fails, a PyTorch that cannot
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        log.warning("quantize: compiled=True does not work here, going on without: %s", reason)
        _failed.append(error)
        return None
