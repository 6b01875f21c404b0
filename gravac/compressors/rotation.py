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

WIDE = 128
"""Distance from which three stages are one product with a matrix of 8: rows so long make it cost less than two."""


def length(elements: int, block: int = BLOCK) -> int:
    """How many numbers come out of ``elements`` when rotated: those of whole blocks."""
    return -(-elements // block) * block


class Rotation:
    """One rotation, done piece by piece, so that what comes out can be used while it is in a cache.

    Args:
        numbers: how many numbers are turned; whole blocks.
        generator: source of the random signs; turning back needs one in the same state.
        block: numbers rotated together; a power of two, 16 or more.
        like: a tensor of the floating dtype and device to work in.

    Attributes:
        parts: where the pieces lie in the flat tensor, in order.
    """

    def __init__(self, numbers: int, generator: torch.Generator, block: int, like: torch.Tensor) -> None:
        piece = min(max(PIECE, block), numbers)
        signs = torch.randint(2, (max(piece, block),), generator=generator)
        self.parts = [slice(start, min(start + piece, numbers)) for start in range(0, numbers, max(1, piece))]
        self._block = block
        self._signs = signs.mul_(2).sub_(1).to(like)
        self._scratch = like.new_empty(piece)

    def scratch(self) -> torch.Tensor:
        """Make a flat tensor, not initialized, that holds the largest piece."""
        return torch.empty_like(self._scratch)

    def turn(self, piece: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Rotate a flat piece into ``out``, the last one filled up with zeros to the size of that; returns ``out``."""
        signed, given = self._scratch[: len(out)], len(piece)
        torch.mul(piece, self._signs[:given], out=signed[:given])
        signed[given:] = 0
        _transform(signed, out, self._block)
        return out

    def turn_back(self, piece: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Rotate a flat piece back into ``out``, which is as long; returns ``out``. Overwrites ``piece``, too."""
        _transform(piece, out, self._block)
        return out.mul_(self._signs[: len(out)])


def turn(x: torch.Tensor, generator: torch.Generator, block: int = BLOCK) -> torch.Tensor:
    """Rotate flat x: a new tensor, ``[length(x.numel(), block)]``, of the same dtype and norm. See ``Rotation``."""
    out = x.new_empty(length(x.numel(), block))
    rotation = Rotation(out.numel(), generator, block, x)
    for part in rotation.parts:
        rotation.turn(x[part], out[part])
    return out


def turn_back(y: torch.Tensor, elements: int, generator: torch.Generator, block: int = BLOCK) -> torch.Tensor:
    """Rotate flat y back, as the inverse of ``turn``: a new tensor, ``[elements]``, of the same dtype."""
    out = torch.empty_like(y)
    rotation = Rotation(y.numel(), generator, block, y)
    scratch = rotation.scratch()
    for part in rotation.parts:
        piece = y[part]
        rotation.turn_back(scratch[: len(piece)].copy_(piece), out[part])
    return out[:elements]


def _transform(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Walsh-Hadamard transform of each block, scaled to be orthogonal. Overwrites ``source``, too."""
    first = min(block, SEED_STAGES)
    here, there = source, out
    torch.mm(here.view(-1, first), _matrix(first).to(out) * block**-0.5, out=there.view(-1, first))
    half = first
    while half < block:
        here, there = there, here
        if half >= WIDE and 8 * half <= block:
            rows = here.view(-1, 8, half)
            torch.bmm(_matrix(8).to(out).expand(len(rows), 8, 8), rows, out=there.view(-1, 8, half))
            half *= 8
        else:
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
