# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Randomized Hadamard rotation of blocks: random signs, then a fast Walsh-Hadamard transform. Orthogonal.

Sources: Vargaftik et al., "DRIVE", NeurIPS 2021, section 5; stopping at blocks is the partial rotation of Han et al.,
"Beyond Throughput and Compression Ratios", HotNets 2024, section 3.2. A rotated block is nearly normal, whatever the
block is. On a CPU the transform runs on pieces that fit in a cache, and its first stages are one small matrix product.
On other devices the tensor is a single piece, and five stages at a time are a matrix product. If products are rounded
to TF32, each stage is a sum and a difference instead.
"""

import functools

import torch

from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import rounds_products

DEFAULT_BLOCK = 1024
"""Default number of elements of a block; a power of two."""

PIECE_NUMBERS = 1 << 18
"""How many numbers are rotated at once on a CPU (a piece): twice as many fit in a cache.

On all devices, the random signs repeat after this number.
"""

FIRST_TRANSFORM_LENGTH = 16
"""Number of elements of the first transforms on a CPU, which are computed by one matrix product."""

PRODUCT_LENGTH = 32
"""Number of elements of the transforms that are computed by one matrix product on other devices."""

WIDE_DISTANCE = 128
"""Smallest distance of the elements that a stage of the transform adds, from which a CPU computes three stages by one
product with an 8 x 8 matrix: for long rows the product takes less time than two stages."""


def length(elements: int, block: int = DEFAULT_BLOCK) -> int:
    """Return the number of elements of a rotated tensor: ``elements`` rounded up to whole blocks."""
    return -(-elements // block) * block


class Rotation:
    """A rotation of a flat tensor, applied piece by piece, so that a rotated piece is used while it is in a cache.

    Args:
        numbers: length of the rotated tensor, a multiple of ``block``.
        draws: random numbers for the signs; rotating back needs the same.
        block: number of elements of a block; a power of two, 16 or more.
        like: a tensor whose floating dtype and device are used.

    Attributes:
        slices: slice of the flat tensor for each piece, in order.
    """

    def __init__(self, numbers: int, draws: Draws, block: int, like: torch.Tensor) -> None:
        sign_period = min(max(PIECE_NUMBERS, block), numbers)
        signs = draws.signs(sign_period, like.device).to(like.dtype)
        piece = sign_period
        if like.device.type != "cpu" and numbers:
            piece, signs = numbers, signs.repeat(-(-numbers // sign_period))
        self.slices = [slice(start, min(start + piece, numbers)) for start in range(0, numbers, max(1, piece))]
        self._block = block
        self._signs = signs
        self._scratch = like.new_empty(piece)

    def scratch(self) -> torch.Tensor:
        """Return a new flat tensor, not initialized, as long as the largest piece."""
        return torch.empty_like(self._scratch)

    def rotate(self, piece: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Rotate a flat piece, padded with zeros to the length of ``out``, into ``out``; return ``out``."""
        signed_piece, piece_length = self._scratch[: len(out)], len(piece)
        torch.mul(piece, self._signs[:piece_length], out=signed_piece[:piece_length])
        signed_piece[piece_length:] = 0
        _transform(signed_piece, out, self._block)
        return out

    def rotate_back(self, piece: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Rotate a flat piece back into ``out``, of equal length; return ``out``. Overwrites ``piece`` too."""
        _transform(piece, out, self._block)
        return out.mul_(self._signs[: len(out)])


def rotate(x: torch.Tensor, draws: Draws, block: int = DEFAULT_BLOCK) -> torch.Tensor:
    """Rotate flat x, see ``Rotation``: return a new tensor, ``[length(x.numel(), block)]``, of x's dtype and norm."""
    out = x.new_empty(length(x.numel(), block))
    rotation = Rotation(out.numel(), draws, block, x)
    for piece_slice in rotation.slices:
        rotation.rotate(x[piece_slice], out[piece_slice])
    return out


def rotate_back(y: torch.Tensor, elements: int, draws: Draws, block: int = DEFAULT_BLOCK) -> torch.Tensor:
    """Rotate flat y back, as the inverse of ``rotate``: return a new tensor, ``[elements]``, of y's dtype."""
    out = torch.empty_like(y)
    rotation = Rotation(y.numel(), draws, block, y)
    scratch = rotation.scratch()
    for piece_slice in rotation.slices:
        piece = y[piece_slice]
        rotation.rotate_back(scratch[: len(piece)].copy_(piece), out[piece_slice])
    return out[:elements]


def _transform(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Write the orthogonal Walsh-Hadamard transform of each block of flat ``source`` into ``out``; changes both."""
    on_cpu = out.device.type == "cpu"
    sums_only = rounds_products(out)
    read_buffer, write_buffer = source, out
    if sums_only:
        stage_length = 1
        torch.mul(read_buffer, block**-0.5, out=write_buffer)
    else:
        stage_length = min(block, FIRST_TRANSFORM_LENGTH if on_cpu else PRODUCT_LENGTH)
        matrix = _matrix(stage_length, block**-0.5, out.dtype, out.device)
        torch.mm(read_buffer.view(-1, stage_length), matrix, out=write_buffer.view(-1, stage_length))
    while stage_length < block:
        read_buffer, write_buffer = write_buffer, read_buffer
        cpu_radix = 8 if stage_length >= WIDE_DISTANCE and 8 * stage_length <= block else 2
        radix = 2 if sums_only else cpu_radix if on_cpu else min(PRODUCT_LENGTH, block // stage_length)
        if radix > 2:
            rows = read_buffer.view(-1, radix, stage_length)
            matrix = _matrix(radix, 1.0, out.dtype, out.device).expand(len(rows), radix, radix)
            torch.bmm(matrix, rows, out=write_buffer.view(-1, radix, stage_length))
        else:
            pairs, butterflies = read_buffer.view(-1, 2, stage_length), write_buffer.view(-1, 2, stage_length)
            torch.add(pairs[:, 0], pairs[:, 1], out=butterflies[:, 0])
            torch.sub(pairs[:, 0], pairs[:, 1], out=butterflies[:, 1])
        stage_length *= radix
    if write_buffer is not out:
        out.copy_(write_buffer)


@functools.cache
def _matrix(size: int, scale: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the Hadamard matrix with entries ``scale`` and ``-scale``, ``[size, size]``.

    The matrix is cached, so that it is copied to a device only once.
    """
    rows = [[-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(size)] for row in range(size)]
    return torch.tensor(rows, dtype=dtype).mul_(scale).to(device)
