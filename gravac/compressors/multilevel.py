# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Multi-level compression: a selection at a higher CF is made from the selection at a lower CF.

C(c2, x) is computed by compressing C(c1, x) again by c2/c1. Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section
IV-C. Exact for exact top-k.
"""

from collections.abc import Callable

import torch

from gravac.compressors.base import Context, k_for
from gravac.compressors.sparse import Selection

Select = Callable[[torch.Tensor, int], Selection]
"""``select(x, k)``: returns the k coordinates of flat x that a sparsifier sends."""


def select_at(select: Select, x: torch.Tensor, cf: float, ctx: Context) -> Selection:
    """Return the selection at a CF, made from the stored selection at the nearest lower CF; store it in the context.

    Args:
        select: the sparsifier's rule.
        x: tensor to select from: flat, ``(elements,)``.
        cf: compression factor.
        ctx: the tensor's context, in which selections are stored.
    """
    if cf not in ctx.selections:
        lower = max((level for level in ctx.selections if level < cf), default=None)
        wider = None if lower is None else ctx.selections[lower]
        selection = select(x if wider is None else wider.values, k_for(x.numel(), cf))
        if wider is not None:
            selection = Selection(wider.indices[selection.indices], selection.values)
        ctx.selections[cf] = selection
    return ctx.selections[cf]
