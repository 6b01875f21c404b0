# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Multi-level compression: the coordinates for a higher CF are selected among those selected for a lower CF.

C(c, x) is x compressed by a CF of c. C(c2, x) is computed by compressing C(c1, x) again, by a CF of c2/c1. With exact
top-k, the result is exact. Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section IV-C.
"""

from collections.abc import Callable

import torch

from gravac.compressors.base import Context, k_for
from gravac.compressors.sparse import Selection

Select = Callable[[torch.Tensor, int], Selection]
"""Type of a function ``select(x, k)`` that takes a flat tensor, ``[elements]``, and a number of coordinates to select.

The function returns the coordinates that a sparsifier sends, usually ``k``: indices, ascending, and their values.
"""


def select_at(select: Select, x: torch.Tensor, cf: float, ctx: Context) -> Selection:
    """Return the coordinates of x that are selected at a CF, and store them in ``ctx.selections``.

    Only the coordinates that are stored for the next lower CF are searched. If none are stored for a lower CF, all of x
    is searched.

    Args:
        select: function that selects the coordinates that a sparsifier sends, see ``Select``.
        x: tensor to select from: flat, ``(elements,)``.
        cf: compression factor.
        ctx: the tensor's context; ``ctx.selections`` has the selections of this step, by CF.
    """
    if cf not in ctx.selections:
        lower_cf = max((stored_cf for stored_cf in ctx.selections if stored_cf < cf), default=None)
        wider_selection = None if lower_cf is None else ctx.selections[lower_cf]
        selection = select(x if wider_selection is None else wider_selection.values, k_for(x.numel(), cf))
        if wider_selection is not None:
            selection = Selection(wider_selection.indices[selection.indices], selection.values)
        ctx.selections[cf] = selection
    return ctx.selections[cf]
