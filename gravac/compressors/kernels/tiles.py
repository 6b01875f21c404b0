# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sizes for the kernels for chunks: the number of chunks per program, and the number of tensors per launch.

A program is one of the parallel instances of a Triton kernel.
"""

import triton
import triton.language as tl

TILE_ELEMENTS = 2048
"""Number of elements that a program keeps in registers at a time."""

MAX_TENSORS = 32
"""Maximum number of tensors per launch: each tensor is one argument of the kernel."""


def tiling(chunk: int) -> dict[str, int]:
    """Return keyword arguments of a launch, ``rows`` and ``columns``, for chunks of ``chunk`` numbers.

    A program processes ``rows`` chunks, and loads ``columns`` numbers of each chunk at a time.
    """
    columns = min(TILE_ELEMENTS, triton.next_power_of_2(chunk))
    return {"rows": TILE_ELEMENTS // columns, "columns": columns}


@triton.jit
def pick(tensors: tl.tuple, index: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """Return the tensor at an index of a tuple of ``count`` tensors; the index may be known only at run time."""
    picked = tensors[0]
    for i in tl.static_range(1, count):
        picked = tl.where(index == i, tensors[i], picked)
    return picked
