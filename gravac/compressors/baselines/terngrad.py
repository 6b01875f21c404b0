# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""TernGrad: rounds every element stochastically to -1, 0 or 1 times the tensor's largest magnitude.

Source: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS 2017,
algorithm 1, per tensor ("layer-wise ternarizing"), with the paper's gradient clipping as an option. Each rank uses its
own largest magnitude. Unbiased if nothing is clipped. Not contractive: with outliers the error is many times the
gradient.
"""

import sys
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field

from gravac.collectives import Traffic
from gravac.compressors.base import Compressor, Context, Rounds
from gravac.compressors.baselines.qsgd import QSGD
from gravac.compressors.profile import CostPoints
from gravac.compressors.squares import energy, power_of_two

TERNARY = QSGD(bits=2, bucket=sys.maxsize, norm="max")
"""QSGD with settings that make it equal to TernGrad without clipping: -1, 0 or 1 times the largest magnitude."""


class TernGrad(Compressor):
    """TernGrad: ternary codes, 2 bits each, and one scale per tensor, exchanged by all-gather.

    Attributes:
        clip: limit to which magnitudes are clipped before they are rounded, as a multiple of the tensor's root mean
            square; 2.5 in the paper. Clipping lowers the error, but makes ``sent`` biased. 0, the default: no clipping.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "terngrad"
    cf: ClassVar[float] = 16.0
    one_round: ClassVar[bool] = True
    coding_costs: ClassVar[CostPoints] = ((16, 32.08, 24.70),)

    clip: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """True if nothing is clipped: the expectation of ``sent`` is then x."""
        return self.clip == 0

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic, in bytes: an all-gather of packed codes and one scale."""
        return TERNARY.traffic(shape, cf, dtype, world)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-gather of each rank's codes and scale."""
        return (yield from TERNARY.rounds(self.clipped(x), cf, ctx))

    def clipped(self, x: torch.Tensor) -> torch.Tensor:
        """Return flat x with magnitudes clipped to ``clip`` times its root mean square; x itself if ``clip`` is 0."""
        if not self.clip or not x.numel():
            return x
        exponent = x.abs().max().frexp().exponent.clamp(-126, 126)
        scaled_x = x * power_of_two(-exponent, x.dtype)  # exact; squares then neither overflow nor underflow
        limit = self.clip * scaled_x.square_().mean().sqrt_().mul_(power_of_two(exponent, x.dtype))
        return x.clamp(-limit, limit)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the expected squared error of flat x, 0-d.

        The error is the sum over elements of ``|c| (scale - |c|) + (x - c)²``: c is the element after clipping, and
        ``scale`` the tensor's largest magnitude after clipping.
        """
        clipped = self.clipped(x)
        return [error + energy(x - clipped) for error in TERNARY.errors(clipped, cfs, ctx)]


terngrad = TernGrad()
"""TernGrad without clipping; ``terngrad(clip=2.5)`` is the published form."""
