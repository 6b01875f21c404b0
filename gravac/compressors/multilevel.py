# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Multi-level compression: C(c2, x) obtained by compressing C(c1, x) again by c2/c1.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section IV-C. Exact for exact top-k.
"""

from collections.abc import Callable, Sequence

import torch

from gravac.compressors.base import Context, Selection, kept

Select = Callable[[torch.Tensor, int], Selection]
"""``select(x, k)``: the k coordinates of flat x that a sparsifier would send."""


def levels(select: Select, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[Selection]:
    """The selection at every CF, each made from the one before; remembered in ``ctx.selections``.

    Args:
        select: the sparsifier's rule.
        x: flat.
        cfs: ascending.
        ctx: of the tensor.
    """
    chosen: list[Selection] = []
    for cf in cfs:
        if not chosen:
            level = select(x, kept(x.numel(), cf))
        else:
            last = chosen[-1]
            again = select(last.values, min(kept(x.numel(), cf), last.values.numel()))
            level = Selection(last.indices[again.indices], again.values)
        chosen.append(level)
        ctx.selections[cf] = level
    return chosen


def at(select: Select, x: torch.Tensor, cf: float, ctx: Context) -> Selection:
    """The selection at one CF: the remembered one, or a fresh one."""
    return ctx.selections.get(cf) or select(x, kept(x.numel(), cf))
