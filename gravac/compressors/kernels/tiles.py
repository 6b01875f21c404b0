# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Division of the work of chunk kernels: several chunks for a program, and several tensors for a launch."""

import triton
import triton.language as tl

TILE = 2048
"""Numbers that a program keeps in registers at once."""

MAX_TENSORS = 32
"""Maximum number of tensors of a launch: each is an argument of its own."""


def tiling(chunk: int) -> dict[str, int]:
    """Return the number of chunks of a program (rows), and of their numbers that it loads at once (columns)."""
    columns = min(TILE, triton.next_power_of_2(chunk))
    return {"rows": TILE // columns, "columns": columns}


@triton.jit
def pick(tensors: tl.tuple, index: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """Return the tensor of a tuple at an index that is only known at run time."""
    picked = tensors[0]
    for i in tl.static_range(1, count):
        picked = tl.where(index == i, tensors[i], picked)
    return picked
