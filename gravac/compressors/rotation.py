# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Randomized Hadamard rotation: multiplies by random signs, then applies a fast Walsh-Hadamard transform, by blocks.

The rotation is orthogonal. The numbers of a rotated block are nearly normally distributed, whatever the block contains.
Sources: Vargaftik et al., "DRIVE", NeurIPS 2021, section 5; for rotating blocks instead of the whole tensor ("partial
rotation"), Han et al., "Beyond Throughput and Compression Ratios", HotNets 2024, section 3.2.

On a CPU the transform runs on pieces that fit in a cache, and one small matrix product computes its first stages. On
other devices the tensor is a single piece, and each matrix product computes five stages. If a GPU rounds the factors of
products to TF32, every stage is computed by a sum and a difference instead.
"""

import functools

import torch

from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import rounds_products

DEFAULT_BLOCK = 1024
"""Default number of elements of a block; a power of two."""

PIECE_ELEMENTS = 1 << 18
"""Number of elements of a piece, which a CPU rotates at a time: two pieces fit in its cache.

On all devices, the random signs repeat after this many elements.
"""

FIRST_TRANSFORM_LENGTH = 16
"""Number of neighbouring elements that a CPU transforms together first, by a matrix product."""

PRODUCT_LENGTH = 32
"""Number of elements that a matrix product transforms together on devices other than a CPU: 5 stages at once."""

WIDE_DISTANCE = 128
"""Distance, in elements, from which a CPU computes three stages by one product with an 8 x 8 matrix.

A stage adds and subtracts elements at a distance that doubles from stage to stage. At large distances the product takes
less time than two separate stages.
"""


def padded_length(elements: int, block: int = DEFAULT_BLOCK) -> int:
    """Return the number of elements of a rotated tensor: ``elements`` rounded up to whole blocks."""
    return -(-elements // block) * block


class Rotation:
    """A rotation of a flat tensor, applied piece by piece, so that a rotated piece is used while it is in a cache.

    Args:
        elements: number of elements of the rotated tensor, a multiple of ``block``.
        draws: random numbers for the signs; rotating back needs a ``Draws`` of the same key.
        block: number of elements of a block; a power of two, 16 or more.
        like: tensor of the floating dtype and on the device in which the rotation is computed.

    Attributes:
        slices: slice of the flat tensor that each piece covers, in order.
    """

    def __init__(self, elements: int, draws: Draws, block: int, like: torch.Tensor) -> None:
        sign_period = min(max(PIECE_ELEMENTS, block), elements)
        signs = draws.signs(sign_period, like.device).to(like.dtype)
        piece_length = sign_period
        if like.device.type != "cpu" and elements:
            piece_length, signs = elements, signs.repeat(-(-elements // sign_period))
        self.slices = [
            slice(start, min(start + piece_length, elements)) for start in range(0, elements, max(1, piece_length))
        ]
        self._block = block
        self._signs = signs
        self._scratch = like.new_empty(piece_length)

    def scratch(self) -> torch.Tensor:
        """Return a new flat tensor, not initialized, as long as the largest piece."""
        return torch.empty_like(self._scratch)

    def rotate(self, piece: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Rotate a flat piece, and write the result into ``out``; return ``out``.

        The last piece of a tensor may be shorter than ``out``, and is then padded with zeros.
        """
        signed_piece, piece_length = self._scratch[: len(out)], len(piece)
        torch.mul(piece, self._signs[:piece_length], out=signed_piece[:piece_length])
        signed_piece[piece_length:] = 0
        _transform(signed_piece, out, self._block)
        return out

    def rotate_back(self, piece: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Rotate a flat piece back, and write the result into ``out``, of equal length; return ``out``.

        The argument ``piece`` is overwritten too.
        """
        _transform(piece, out, self._block)
        return out.mul_(self._signs[: len(out)])


def rotate(x: torch.Tensor, draws: Draws, block: int = DEFAULT_BLOCK) -> torch.Tensor:
    """Return flat x rotated (see ``Rotation``): a new tensor, ``[length(x.numel(), block)]``, of x's dtype and norm."""
    out = x.new_empty(padded_length(x.numel(), block))
    rotation = Rotation(out.numel(), draws, block, x)
    for piece_slice in rotation.slices:
        rotation.rotate(x[piece_slice], out[piece_slice])
    return out


def rotate_back(y: torch.Tensor, elements: int, draws: Draws, block: int = DEFAULT_BLOCK) -> torch.Tensor:
    """Return flat y, rotated back (the inverse of ``rotate``): a new tensor, ``[elements]``, of y's dtype.

    Args:
        y: rotated tensor, flat, of a multiple of ``block`` elements.
        elements: number of elements before ``rotate`` padded them.
        draws: random numbers of the same key as in ``rotate``.
        block: number of elements of a block, as in ``rotate``.
    """
    out = torch.empty_like(y)
    rotation = Rotation(y.numel(), draws, block, y)
    scratch = rotation.scratch()
    for piece_slice in rotation.slices:
        piece = y[piece_slice]
        rotation.rotate_back(scratch[: len(piece)].copy_(piece), out[piece_slice])
    return out[:elements]


def _transform(source: torch.Tensor, out: torch.Tensor, block: int) -> None:
    """Write the orthogonal Walsh-Hadamard transform of each block of ``source`` (flat) into ``out``.

    Both tensors are overwritten, since stages write into them by turns.
    """
    on_cpu = out.device.type == "cpu"
    uses_sums_only = rounds_products(out)
    read_buffer, write_buffer = source, out
    if uses_sums_only:
        stage_length = 1
        torch.mul(read_buffer, block**-0.5, out=write_buffer)
    else:
        stage_length = min(block, FIRST_TRANSFORM_LENGTH if on_cpu else PRODUCT_LENGTH)
        matrix = _hadamard_matrix(stage_length, block**-0.5, out.dtype, out.device)
        torch.mm(read_buffer.view(-1, stage_length), matrix, out=write_buffer.view(-1, stage_length))
    while stage_length < block:
        read_buffer, write_buffer = write_buffer, read_buffer
        cpu_radix = 8 if stage_length >= WIDE_DISTANCE and 8 * stage_length <= block else 2
        radix = 2 if uses_sums_only else cpu_radix if on_cpu else min(PRODUCT_LENGTH, block // stage_length)
        if radix > 2:
            rows = read_buffer.view(-1, radix, stage_length)
            matrix = _hadamard_matrix(radix, 1.0, out.dtype, out.device).expand(len(rows), radix, radix)
            torch.bmm(matrix, rows, out=write_buffer.view(-1, radix, stage_length))
        else:
            pairs, butterflies = read_buffer.view(-1, 2, stage_length), write_buffer.view(-1, 2, stage_length)
            torch.add(pairs[:, 0], pairs[:, 1], out=butterflies[:, 0])
            torch.sub(pairs[:, 0], pairs[:, 1], out=butterflies[:, 1])
        stage_length *= radix
    if write_buffer is not out:
        out.copy_(write_buffer)


@functools.cache
def _hadamard_matrix(size: int, scale: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the Hadamard matrix with entries ``scale`` and ``-scale``, ``[size, size]``.

    The matrix is cached, so that it is copied to a device only once.
    """
    rows = [[-1.0 if (row & column).bit_count() % 2 else 1.0 for column in range(size)] for row in range(size)]
    return torch.tensor(rows, dtype=dtype, device="cpu").mul_(scale).to(device)
