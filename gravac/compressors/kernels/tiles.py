# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Divides the work of chunk kernels: how many chunks a program processes, and how many tensors a launch."""

import triton
import triton.language as tl

TILE = 2048
"""Numbers that a program keeps in registers at once."""

MAX_TENSORS = 32
"""Maximum number of tensors per launch: each tensor is one argument of the kernel."""


def tiling(chunk: int) -> dict[str, int]:
    """Return how many chunks a program processes (rows), and how many numbers of each it loads at once (columns)."""
    columns = min(TILE, triton.next_power_of_2(chunk))
    return {"rows": TILE // columns, "columns": columns}


@triton.jit
def pick(tensors: tl.tuple, index: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """Return the tensor of a tuple at an index that is only known at run time."""
    picked = tensors[0]
    for i in tl.static_range(1, count):
        picked = tl.where(index == i, tensors[i], picked)
    return picked
