# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tables of a codebook: flat tensors of levels, of thresholds between levels, and of levels of several codes at once.

Tables for the CPU are numpy arrays or torch tensors; tables for another device are copied to it once, for which the
host waits.
"""

import functools
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gravac.compressors.packing import unpack

CPU = torch.device("cpu")

Kind = Literal["fitted", "uniform"]
"""Placement of a codebook's levels: fitted to a normal distribution, or evenly spaced."""

Table = npt.NDArray[np.uint8]
"""Table of codes, one byte each, in which numpy looks up."""

GRID_POINTS_PER_RMS = 40
"""Grid points per root mean square of a block, for fitted levels.

Numbers are rounded to a grid of 255 points, which ends at 127 / 40 = 3.2 root mean squares on both sides.
"""

FITTED_LEVELS: dict[int, tuple[float, ...]] = {
    1: (0.7980,),
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
}
"""Positive levels, by bits per code, with the smallest mean squared error for numbers drawn from N(0, 1)."""


@functools.cache
def levels(bits: int, kind: Kind, device: torch.device = CPU) -> torch.Tensor:
    """Return all levels, ascending, in units of a block's scale: float32, ``[2 ** bits]``.

    Uniform levels of 2 bits or more are odd in number; the last entry repeats the highest level, and no code uses it.
    """
    return torch.tensor(_level_list(bits, kind)).to(device)


def _level_list(bits: int, kind: Kind) -> list[float]:
    """Return all levels as ``levels`` does, as a list."""
    if bits == 1:
        return [-1.0, 1.0]
    if kind == "uniform" or bits == 8:
        max_step = (1 << (bits - 1)) - 1
        return [min(step, max_step) / max_step for step in range(-max_step, max_step + 2)]
    return [-level for level in reversed(FITTED_LEVELS[bits])] + list(FITTED_LEVELS[bits])


@functools.cache
def points_between(bits: int, kind: Kind) -> list[int]:
    """Return the thresholds between neighbouring codes: the lowest grid point of each code except the first.

    Grid points are the integers to which numbers are rounded before they are coded: in units of a block's root mean
    square / ``GRID_POINTS_PER_RMS`` for fitted levels, of the distance between levels for uniform levels.
    """
    if bits == 1:
        return [0]
    if kind == "uniform":
        max_step = (1 << (bits - 1)) - 1
        return list(range(1 - max_step, max_step + 1))
    return [round((below + above) / 2 * GRID_POINTS_PER_RMS) for below, above in pairwise(_level_list(bits, kind))]


@functools.cache
def thresholds(bits: int, kind: Kind, device: torch.device) -> torch.Tensor:
    """Return the thresholds of ``points_between`` as a tensor: float32, flat.

    The tensor is cached, so that it is copied to a device only once.
    """
    return torch.tensor(points_between(bits, kind), dtype=torch.float32).to(device)


@functools.cache
def code_of_point(bits: int, kind: Kind) -> Table:
    """Return the codes of the grid points -128 to 127 (see ``points_between``) as a table: uint8, ``[256]``.

    The entry of a grid point is at the index ``point % 256``: the point as int8, read as an unsigned byte.
    """
    points = np.arange(256, dtype=np.uint8).view(np.int8)
    codes: Table = np.searchsorted(points_between(bits, kind), points, side="right").astype(np.uint8)
    return codes


@functools.cache
def code_of_pair(bits: int, kind: Kind) -> Table:
    """Return a table of the two codes of each pair of grid points (see ``points_between``): uint8, ``[65536]``.

    Both codes are packed in a byte; the index is the pair's two bytes. Codes of 3 bits are stored as the low two bits
    of each code, then the high bits.
    """
    code = code_of_point(bits, kind)
    pairs = np.arange(1 << 16)
    first, second = code[pairs & 255].astype(np.int64), code[pairs >> 8].astype(np.int64)
    code_pair = first | second << bits
    if bits == 3:
        code_pair = (first & 3) | (second & 3) << 2 | (first >> 2) << 4 | (second >> 2) << 5
    table: Table = code_pair.astype(np.uint8)
    return table


@functools.cache
def levels_of_bytes(bits: int, kind: Kind, device: torch.device) -> torch.Tensor:
    """Return a table of the levels of a byte's codes, of 1, 2 or 4 bits: float32, ``[256, 8 // bits]``.

    The table is cached, so that it is copied to a device only once.
    """
    all_levels, mask = _level_list(bits, kind), (1 << bits) - 1
    rows = [[all_levels[byte >> shift & mask] for shift in range(0, 8, bits)] for byte in range(256)]
    return torch.tensor(rows).to(device)


@functools.cache
def levels_by_key(bits: int, kind: Kind) -> npt.NDArray[np.void]:
    """Return a table of the levels of all codes in a key: 1-D, indexed by the key.

    A key is a byte of codes. For 3 bits, a key is four codes in 12 bits, with the codes' low bits in the low byte. An
    element of the table has several float32, joined to one of numpy's ``void`` elements, to look them up at once.
    """
    if bits == 3:
        keys = torch.arange(1 << 12).unsqueeze(1)
        codes = unpack((keys & 255).byte(), 2, 4) | unpack((keys >> 8).byte(), 1, 4) << 2
        table = levels(bits, kind)[codes.long()].contiguous().numpy()
    else:
        table = levels_of_bytes(bits, kind, CPU).numpy()
    return table.view(f"V{table.dtype.itemsize * table.shape[1]}").reshape(-1)


@functools.cache
def levels_of_twelve_bits(kind: Kind, device: torch.device) -> torch.Tensor:
    """Return a table of the levels of four codes of 3 bits: float32, ``[4096, 4]``.

    The index has the codes' low two bits in its low byte, and their high bits in the next four bits. The table is
    copied to a device once.
    """
    all_levels = _level_list(3, kind)
    codes = [[key >> 2 * i & 3 | (key >> 8 + i & 1) << 2 for i in range(4)] for key in range(1 << 12)]
    return torch.tensor([[all_levels[code] for code in codes_of_key] for codes_of_key in codes]).to(device)


@functools.cache
def shifts_of_nibbles(device: torch.device) -> torch.Tensor:
    """Return the left shifts that move a byte's low half and its high half to bits 8 to 11: int32, ``[2]``."""
    return torch.tensor([8, 4], dtype=torch.int32).to(device)


@functools.cache
def levels_of_nibbles(kind: Kind) -> torch.Tensor:
    """Return a table of the levels of a byte's two codes of 4 bits, as one complex number: complex64, ``[256]``."""
    return torch.from_numpy(levels_by_key(4, kind).view(np.complex64))
