# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Multi-level compression: C(c2, x) obtained by compressing C(c1, x) again by c2/c1.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section IV-C. Exact for exact top-k.
"""

from collections.abc import Callable

import torch

from gravac.compressors.base import Context, k_for
from gravac.compressors.sparse import Selection

Select = Callable[[torch.Tensor, int], Selection]
"""``select(x, k)``: the k coordinates of flat x that a sparsifier would send."""


def at(select: Select, x: torch.Tensor, cf: float, ctx: Context) -> Selection:
    """The selection at one CF, made from the nearest lower one that is remembered; itself remembered from then on.

    Args:
        select: the sparsifier's rule.
        x: what to select from: flat, ``(elements,)``.
        cf: compression factor.
        ctx: the tensor's context; holds what was selected of it before.
    """
    if cf not in ctx.selections:
        lower = max((level for level in ctx.selections if level < cf), default=None)
        first = None if lower is None else ctx.selections[lower]
        chosen = select(x if first is None else first.values, k_for(x.numel(), cf))
        ctx.selections[cf] = chosen if first is None else Selection(first.indices[chosen.indices], chosen.values)
    return ctx.selections[cf]
