# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Division of the work of the kernels for chunks: how many chunks a program processes, and how many tensors a launch.

A program is one of the parallel instances of a Triton kernel.
"""

import triton
import triton.language as tl

TILE_NUMBERS = 2048
"""How many numbers a program keeps in registers at once."""

MAX_TENSORS = 32
"""Maximum number of tensors per launch: each tensor is one argument of the kernel."""


def tiling(chunk: int) -> dict[str, int]:
    """Return keyword arguments of a launch for chunks of ``chunk`` numbers: rows and columns of a program's tile.

    A program processes as many chunks as there are rows, and loads as many numbers of each at once as columns.
    """
    columns = min(TILE_NUMBERS, triton.next_power_of_2(chunk))
    return {"rows": TILE_NUMBERS // columns, "columns": columns}


@triton.jit
def pick(tensors: tl.tuple, index: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """Return the tensor at an index of a tuple of ``count`` tensors; the index may be known only at run time."""
    picked = tensors[0]
    for i in tl.static_range(1, count):
        picked = tl.where(index == i, tensors[i], picked)
    return picked
