# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Randomized Hadamard rotation of blocks: random signs, then a fast Walsh-Hadamard transform. Orthogonal.

Sources: Vargaftik et al., "DRIVE", NeurIPS 2021, section 5; stopping at blocks is the partial rotation of Han et al.,
"Beyond Throughput and Compression Ratios", HotNets 2024, section 3.2. What comes out of a block is nearly normal,
whatever goes in. On CPU the butterfly runs on pieces that stay in a cache, its first stages as one small matrix
product; elsewhere all is one piece, and five stages at a time are a product; stage by stage, in sums and differences,
where products would be rounded to TF32.
"""

import functools

import torch

from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import rounds_products

BLOCK = 1024
"""Numbers rotated together, unless said otherwise; a power of two."""

PIECE = 1 << 18
"""Numbers rotated at once on CPU: what fits in a cache, twice. Signs repeat after as many, everywhere."""

SEED_STAGES = 16
"""Length of the transform that is done as a matrix product on CPU."""

PRODUCT = 32
"""Length of those that are done as matrix products elsewhere."""

WIDE = 128
"""Distance from which three stages are one product with a matrix of 8: rows so long make it cost less than two."""


def length(elements: int, block: int = BLOCK) -> int:
    """How many numbers come out of ``elements`` when rotated: those of whole blocks."""
    return -(-elements // block) * block


class Rotation:
    """One rotation, done piece by piece, so that what comes out can be used while it is in a cache.

    Args:
        numbers: how many numbers are turned; whole blocks.
        draws: source of the random signs, the same for turning back.
        block: numbers rotated together; a power of two, 16 or more.
        like: a tensor of the floating dtype and device to work in.

    Attributes:
        parts: where the pieces lie in the flat tensor, in order.
    """

    def __init__(self, numbers: int, draws: Draws, block: int, like: torch.Tensor) -> None:
        period = min(max(PIECE, block), numbers)
        signs = draws.signs(period, like.device).to(like.dtype)
        piece = period
        if like.device.type != "cpu" and numbers:
            piece, signs = numbers, signs.repeat(-(-numbers // period))
        self.parts = [slice(start, min(start + piece, numbers)) for start in range(0, numbers, max(1, piece))]
        self._block = block
        self._signs = signs
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


def turn(x: torch.Tensor, draws: Draws, block: int = BLOCK) -> torch.Tensor:
    """Rotate flat x: a new tensor, ``[length(x.numel(), block)]``, of the same dtype and norm. See ``Rotation``."""
    out = x.new_empty(length(x.numel(), block))
    rotation = Rotation(out.numel(), draws, block, x)
    for part in rotation.parts:
        rotation.turn(x[part], out[part])
    return out


def turn_back(y: torch.Tensor, elements: int, draws: Draws, block: int = BLOCK) -> torch.Tensor:
    """Rotate flat y back, as the inverse of ``turn``: a new tensor, ``[elements]``, of the same dtype."""
    out = torch.empty_like(y)
    rotation = Rotation(y.numel(), draws, block, y)
    scratch = rotation.scratch()
    for part in rotation.parts:
        piece = y[part]
        rotation.turn_back(scratch[: len(piece)].copy_(piece), out[part])
    return out[:elements]


def _transform(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Walsh-Hadamard transform of each block, scaled to be orthogonal. Overwrites ``source``, too."""
    on_cpu = out.device.type == "cpu"
    sums_only = rounds_products(out)
    here, there = source, out
    if sums_only:
        half = 1
        torch.mul(here, block**-0.5, out=there)
    else:
        half = min(block, SEED_STAGES if on_cpu else PRODUCT)
        torch.mm(here.view(-1, half), _matrix(half, block**-0.5, out.dtype, out.device), out=there.view(-1, half))
    while half < block:
        here, there = there, here
        wide = 8 if half >= WIDE and 8 * half <= block else 2
        factor = 2 if sums_only else wide if on_cpu else min(PRODUCT, block // half)
        if factor > 2:
            rows = here.view(-1, factor, half)
            matrix = _matrix(factor, 1.0, out.dtype, out.device).expand(len(rows), factor, factor)
            torch.bmm(matrix, rows, out=there.view(-1, factor, half))
        else:
            pairs, turned = here.view(-1, 2, half), there.view(-1, 2, half)
            torch.add(pairs[:, 0], pairs[:, 1], out=turned[:, 0])
            torch.sub(pairs[:, 0], pairs[:, 1], out=turned[:, 1])
        half *= factor
    if there is not out:
        out.copy_(there)


@functools.cache
def _matrix(size: int, scale: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The Hadamard matrix of entries ``scale`` and its negative, ``[size, size]``; copied to a device once."""
    rows = [[-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(size)] for row in range(size)]
    return torch.tensor(rows, dtype=dtype).mul_(scale).to(device)
