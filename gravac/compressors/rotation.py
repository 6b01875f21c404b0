# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Randomized Hadamard rotation of blocks: random signs, then a fast Walsh-Hadamard transform. Orthogonal.

Sources: Vargaftik et al., "DRIVE", NeurIPS 2021, section 5; stopping at blocks is the partial rotation of Han et al.,
"Beyond Throughput and Compression Ratios", HotNets 2024, section 3.2. What comes out of a block is nearly normal,
whatever goes in. The butterfly runs on pieces that stay in a cache; its first stages are one small matrix product.
"""

import functools

import torch

BLOCK = 1024
"""Numbers rotated together, unless said otherwise; a power of two."""

PIECE = 1 << 18
"""Numbers rotated at once: what fits in a cache, twice. Signs repeat after as many."""

SEED_STAGES = 16
"""Length of the transform that is done as a matrix product."""


def length(elements: int, block: int = BLOCK) -> int:
    """How many numbers come out: whole blocks."""
    return -(-elements // block) * block


def turn(x: torch.Tensor, generator: torch.Generator, block: int = BLOCK) -> torch.Tensor:
    """Rotate flat x.

    Args:
        x: flat, floating.
        generator: for the signs; ``turn_back`` needs one in the same state.
        block: a power of two, 16 or more.

    Returns:
        A new tensor, ``[length(x.numel(), block)]``, of the same dtype and norm.
    """
    padded = torch.nn.functional.pad(x, (0, length(x.numel(), block) - x.numel()))
    out = torch.empty_like(padded)
    signs, scratch = _signs(block, generator, x), torch.empty_like(padded[: max(PIECE, block)])
    pieces = zip(torch.split(padded, max(PIECE, block)), torch.split(out, max(PIECE, block)), strict=True)
    for piece, turned in pieces:
        spare = scratch[: piece.numel()]
        torch.mul(piece, signs[: piece.numel()], out=spare)
        _transform(spare, turned, block)
    return out


def turn_back(y: torch.Tensor, elements: int, generator: torch.Generator, block: int = BLOCK) -> torch.Tensor:
    """The inverse of ``turn``: a new tensor, ``[elements]``."""
    out = torch.empty_like(y)
    signs, scratch = _signs(block, generator, y), torch.empty_like(y[: max(PIECE, block)])
    for piece, turned in zip(torch.split(y, max(PIECE, block)), torch.split(out, max(PIECE, block)), strict=True):
        spare = scratch[: piece.numel()]
        spare.copy_(piece)
        _transform(spare, turned, block)
        turned.mul_(signs[: piece.numel()])
    return out[:elements]


def _signs(block: int, generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    count = max(PIECE, block) if like.numel() > block else block
    return torch.randint(2, (count,), generator=generator).mul_(2).sub_(1).to(like)


def _transform(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Walsh-Hadamard transform of each block, scaled to be orthogonal. Overwrites ``source``, too."""
    first = min(block, SEED_STAGES)
    matrix = _matrix(first).to(out) * block**-0.5
    here, there = source, out
    torch.mm(here.view(-1, first), matrix, out=there.view(-1, first))
    half = first
    while half < block:
        here, there = there, here
        pairs, turned = here.view(-1, 2, half), there.view(-1, 2, half)
        torch.add(pairs[:, 0], pairs[:, 1], out=turned[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=turned[:, 1])
        half *= 2
    if there is not out:
        out.copy_(there)


@functools.cache
def _matrix(size: int) -> torch.Tensor:
    """The Hadamard matrix of entries 1 and -1: float64, ``[size, size]``."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix
