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

PIECE = 1 << 16
"""Numbers rotated at once; signs repeat after as many."""

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
    out = torch.nn.functional.pad(x, (0, length(x.numel(), block) - x.numel()))
    if out is x or out.data_ptr() == x.data_ptr():
        out = x.clone()
    signs = _signs(max(PIECE, block), generator, x)
    for piece in torch.split(out, max(PIECE, block)):
        piece.mul_(signs[: piece.numel()])
        _transform(piece, block)
    return out


def turn_back(y: torch.Tensor, elements: int, generator: torch.Generator, block: int = BLOCK) -> torch.Tensor:
    """The inverse of ``turn``: a new tensor, ``[elements]``."""
    out = y.clone()
    signs = _signs(max(PIECE, block), generator, y)
    for piece in torch.split(out, max(PIECE, block)):
        _transform(piece, block)
        piece.mul_(signs[: piece.numel()])
    return out[:elements]


def _signs(count: int, generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    return torch.randint(2, (count,), generator=generator).mul_(2).sub_(1).to(like)


def _transform(piece: torch.Tensor, block: int) -> None:
    """Walsh-Hadamard transform of each block, in place, scaled to be orthogonal."""
    first = min(block, SEED_STAGES)
    rows = piece.view(-1, first)
    rows.copy_(rows @ _matrix(first).to(piece) * block**-0.5)
    half = first
    while half < block:
        pairs = piece.view(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2


@functools.cache
def _matrix(size: int) -> torch.Tensor:
    """The Hadamard matrix of entries 1 and -1: float64, ``[size, size]``."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix
