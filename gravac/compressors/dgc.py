# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Deep gradient compression: each rank sends the top-k of its velocity, the sum of unsent gradients with momentum.

Source: Lin et al., "Deep Gradient Compression", ICLR 2018 (arXiv 1712.01887), algorithm 2: momentum correction,
momentum factor masking, local gradient clipping, warm-up of the CF, and a threshold from a sample. DGC replaces the
optimizer's momentum, which must be off. The velocity contains what was not sent, so DGC needs no residual. DGC is not
contractive for the gradient; its gain compares what is sent with the velocity. DGC does not handle tensors that are
sent dense: small or 1-D tensors, and all tensors in a dense step. These train without momentum.
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

MAX_CORRECTIONS = 10
"""Maximum number of times that the published rule adjusts its threshold."""

COUNT_BOUNDS = (0.8, 1.3)
"""Range of the number of coordinates that reach the threshold, as multiples of the requested number k.

The published rule accepts a threshold if the number is in this range.

If too few coordinates reach the threshold, the rule multiplies it by the first number; if too many do, by the second.
"""


class DGC(ThresholdK):
    """Top-k of a momentum-corrected velocity.

    Attributes:
        momentum: momentum of the velocity, in [0, 1); default: 0.9. 0: the velocity is a plain sum of gradients.
        nesterov: whether the velocity uses Nesterov momentum; default: False.
        masking: whether the momentum of sent coordinates is set to 0, as their velocity is; default: True.
        clip: norm, above 0; each tensor's gradient is clipped to this norm divided by ``sqrt(number of ranks)``.
            ``None``, the default: no clipping.
        warmup_steps: number of steps in which the CF rises exponentially from 4 to the requested CF, 0 or more;
            default: 0.
        sample: fraction of the velocity's elements from which the threshold is estimated, in (0, 1]; default: 0.01.
        exact_count: whether exactly the k largest coordinates are sent (default: True); False: those that reach the
            threshold, as published.
        values: number format of the values on the wire; see ``TopK``.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "dgc"
    contractive: ClassVar[bool] = False
    owns_momentum: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.0
    coding_costs: ClassVar[CostPoints] = ((10, 20.99, 9.97), (100, 13.10, 8.09), (1000, 12.66, 7.63))

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: Annotated[float, Field(gt=0)] | None = None
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    sample: Annotated[float, Field(gt=0, le=1)] = 0.01

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs at a CF; coding also needs memory for a new momentum, velocity and unsent rest."""
        profile = super().profile(cf, world=world, shapes=shapes)
        return replace(profile, coding_bytes_per_element=profile.coding_bytes_per_element + 12)

    @property
    def exact_cf(self) -> bool:  # type: ignore[override]
        """True if the achieved CF is the requested CF: no warm-up is set, and exactly k coordinates are sent."""
        return self.keeps_k and self.warmup_steps == 0

    def threshold(self, magnitudes: torch.Tensor, k: int) -> float:
        """Return a magnitude that about k of flat ``magnitudes`` reach, estimated as a quantile of a sample.

        With ``exact_count``, the result is 0.8 times that quantile. Otherwise the quantile is adjusted, at most
        ``MAX_CORRECTIONS`` times, until the number of magnitudes that reach it is within ``COUNT_BOUNDS`` times k.
        """
        stride = max(1, min(int(1 / self.sample), magnitudes.numel() // 256))
        sample = magnitudes[::stride]
        sample_k = max(1, math.ceil(sample.numel() * k / magnitudes.numel()))
        threshold = float(sample.topk(sample_k).values[-1])
        if self.exact_count:
            return COUNT_BOUNDS[0] * threshold
        for _ in range(MAX_CORRECTIONS):
            reaching_count = int((magnitudes >= threshold).sum())
            if reaching_count > COUNT_BOUNDS[1] * k:
                threshold *= COUNT_BOUNDS[1]
            elif reaching_count < COUNT_BOUNDS[0] * k:
                threshold *= COUNT_BOUNDS[0]
            else:
                break
        return threshold

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average the velocity's largest coordinates; x is this step's gradient, flat.

        1. Add the gradient to the momentum, and the momentum to the velocity (both kept in ``ctx.state``).
        2. Select the velocity's k largest coordinates, or without ``exact_count`` those above a sampled threshold.
        3. All-gather their values and indices.
        4. Subtract the sent values from the velocity, which leaves their rounding errors. With ``masking``, set the
           momentum of these coordinates to 0.
        """
        momentum, velocity = self._accumulated(x, ctx)
        step_cf = self.cf_at(cf, ctx.step)
        selection = self.select(velocity, k_for(x.numel(), step_cf))
        reduced: Reduced = yield from self.send(selection, velocity, step_cf, ctx)
        assert isinstance(reduced.sent, Sparse)
        unsent = reduced.sent.add_to(velocity.clone(), alpha=-1.0)
        ctx.state["momentum"] = momentum.index_fill(0, selection.indices, 0.0) if self.masking else momentum
        ctx.state["velocity"] = unsent
        return Reduced(reduced.mean, reduced.sent, reduced.cf, target=velocity, error=energy(unsent))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return, for each CF, the squared error (0-d) of sending the velocity, after adding flat gradient x to it."""
        _, velocity = self._accumulated(x, ctx)
        velocity_energy = energy(velocity)
        ks = [k_for(x.numel(), self.cf_at(cf, ctx.step)) for cf in cfs]
        return [(velocity_energy - energy(self.select(velocity, k).values)).clamp_(min=0) for k in ks]

    def cf_at(self, cf: float, step: int) -> float:
        """Return the CF that a step uses if ``cf`` is requested: during the first ``warmup_steps`` steps a lower CF."""
        if step >= self.warmup_steps or cf <= 4:
            return cf
        return float(4 * (cf / 4) ** ((step + 1) / (self.warmup_steps + 1)))

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Return the shape that a momentum or velocity from a checkpoint should have; ``""`` if it has this shape."""
        memory_fits = key not in ("momentum", "velocity") or memory.shape == (elements,)
        return "" if memory_fits else f"{elements} elements in one dimension"

    def _accumulated(self, x: torch.Tensor, ctx: Context) -> tuple[torch.Tensor, torch.Tensor]:
        """Return momentum and velocity after flat gradient x was added: both ``[elements]``, dtype of x."""
        gradient = x
        if self.clip is not None:
            norm_limit = self.clip * ctx.world**-0.5
            gradient = x * (norm_limit / norm(x).to(x.dtype)).clamp_(max=1)
        momentum, velocity = (ctx.state.get(key, torch.zeros_like(x)).to(x.dtype) for key in ("momentum", "velocity"))
        if self.nesterov:
            momentum = self.momentum * (momentum + gradient)
            return momentum, velocity + momentum + gradient
        momentum = self.momentum * momentum + gradient
        return momentum, velocity + momentum


dgc = DGC()
"""DGC with momentum 0.9 and masking; as published for language models: ``dgc(clip=1.0, warmup_steps=1000)``."""
