# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How kernels of chunks cut their work: so many chunks for a program, and several tensors for a launch."""

import triton
import triton.language as tl

TILE = 2048
"""Numbers that a program holds at once."""

MOST = 32
"""Tensors of a launch: each is an argument of its own."""


def tiling(chunk: int) -> dict[str, int]:
    """Chunks that a program takes, and as many of their numbers as it holds at once."""
    columns = min(TILE, triton.next_power_of_2(chunk))
    return {"rows": TILE // columns, "columns": columns}


@triton.jit
def pick(tensors: tl.tuple, at: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """Return that tensor of a tuple whose number is only known as the program runs."""
    one = tensors[0]
    for i in tl.static_range(1, count):
        one = tl.where(at == i, tensors[i], one)
    return one
