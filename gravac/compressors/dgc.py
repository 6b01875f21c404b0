# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Deep gradient compression: top-k of a velocity that is summed up locally, momentum and all, until it is sent.

Source: Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), algorithm 2: momentum correction,
momentum factor masking, local gradient clipping, warm-up of the CF, and a threshold from a sample. It takes the place
of the optimizer's momentum, which must be off. It keeps its own memory and is no contraction of the gradient; gain is
measured against the velocity. Tensors that travel dense (small ones, of one dimension, and all in a dense step) bypass
it, so with the optimizer's momentum off they have none.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from gravac.compressors.base import Context, Reduced, Rounds, energy, k_for
from gravac.compressors.profile import CostPoints, Profile
from gravac.compressors.sparse import Sparse
from gravac.compressors.squares import norm
from gravac.compressors.threshold import ThresholdK

CORRECTIONS = 10
"""How often the published rule adjusts its threshold at most."""

BOUNDS = (0.8, 1.3)
"""Lowest and highest count over k that the published rule accepts; also the factors it adjusts its threshold by."""


class DGC(ThresholdK):
    """Top-k of a momentum-corrected velocity.

    Attributes:
        momentum: momentum of the velocity, in [0, 1); 0 leaves plain accumulation.
        nesterov: whether momentum takes Nesterov's form.
        masking: whether the momentum of coordinates that were sent is cleared too.
        clip: norm to which each tensor's gradient is clipped, times ``1/sqrt(ranks)``; ``None`` does not.
        warmup_steps: number of steps in which the CF rises exponentially from 4 to the CF asked for.
        sample: share of the velocity that is looked at for a threshold.
    """

    name: ClassVar[str] = "dgc"
    contractive: ClassVar[bool] = False
    owns_momentum: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.0
    coding_costs: ClassVar[CostPoints] = ((10, 26.37, 17.67), (100, 17.14, 13.57), (1000, 15.33, 4.35))

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: Annotated[float, Field(gt=0)] | None = None
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    sample: Annotated[float, Field(gt=0, le=1)] = 0.01

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """What is known at a CF: coding takes as for top-k, and a new momentum, a velocity and what is left of it."""
        own = super().profile(cf, world=world, shapes=shapes)
        return replace(own, coding_bytes=own.coding_bytes + 12)

    @property
    def exact_cf(self) -> bool:  # type: ignore[override]
        """Whether the CF asked for is achieved: not while it warms up, and only where exactly k are kept."""
        return self.keeps_k and self.warmup_steps == 0

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """A sample's quantile of flat ``magnitudes``; without ``exact_count`` corrected up to ``CORRECTIONS`` times."""
        stride = max(1, min(int(1 / self.sample), magnitudes.numel() // 256))
        sample = magnitudes[::stride]
        among = max(1, math.ceil(sample.numel() * k / magnitudes.numel()))
        threshold = float(sample.topk(among).values[-1])
        if self.exact_count:
            return BOUNDS[0] * threshold
        for _ in range(CORRECTIONS):
            count = int((magnitudes >= threshold).sum())
            if count > BOUNDS[1] * k:
                threshold *= BOUNDS[1]
            elif count < BOUNDS[0] * k:
                threshold *= BOUNDS[0]
            else:
                break
        return threshold

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Send the velocity's largest coordinates; x is flat.

        1. Add the gradient to the momentum, and the momentum to the velocity (both kept in ``ctx.state``).
        2. Select the velocity's k largest coordinates, or without ``exact_count`` those that reach a sampled threshold.
        3. All-gather their values and indices.
        4. Clear them from the velocity, but for what the wire rounded, and from the momentum (``masking``).
        """
        momentum, velocity = self._moved(x, ctx)
        at = self.cf_at(cf, ctx.step)
        chosen = self.select(velocity, k_for(x.numel(), at))
        came: Reduced = yield from self.send(chosen, velocity, at, ctx)
        assert isinstance(came.sent, Sparse)
        left = came.sent.add_to(velocity.clone(), alpha=-1.0)
        ctx.state["momentum"] = momentum.index_fill(0, chosen.indices, 0.0) if self.masking else momentum
        ctx.state["velocity"] = left
        return Reduced(came.mean, came.sent, came.cf, target=velocity, error=energy(left))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Squared errors of the velocity that flat x would make, at the CFs that this step of the warm-up has; 0-d."""
        _, velocity = self._moved(x, ctx)
        whole = energy(velocity)
        counts = [k_for(x.numel(), self.cf_at(cf, ctx.step)) for cf in cfs]
        return [(whole - energy(self.select(velocity, k).values)).clamp_(min=0) for k in counts]

    def cf_at(self, cf: float, step: int) -> float:
        """The CF that a step runs at, where ``cf`` is asked for: lower while warming up."""
        if step >= self.warmup_steps or cf <= 4:
            return cf
        return float(4 * (cf / 4) ** ((step + 1) / (self.warmup_steps + 1)))

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Say what is expected: momentum and velocity are flat, ``[elements]``."""
        fits = key not in ("momentum", "velocity") or memory.shape == (elements,)
        return "" if fits else f"{elements} elements in one dimension"

    def _moved(self, x: torch.Tensor, ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Momentum and velocity with this step's gradient."""
        gradient = x
        if self.clip is not None:
            limit = self.clip * ctx.world**-0.5
            gradient = x * (limit / norm(x).to(x.dtype)).clamp_(max=1)
        momentum, velocity = (ctx.state.get(name, torch.zeros_like(x)).to(x.dtype) for name in ("momentum", "velocity"))
        if self.nesterov:
            momentum = self.momentum * (momentum + gradient)
            return momentum, velocity + momentum + gradient
        momentum = self.momentum * momentum + gradient
        return momentum, velocity + momentum


dgc = DGC()
"""DGC with momentum 0.9, masked; ``dgc(clip=1.0, warmup_steps=1000)`` as published for language models."""
