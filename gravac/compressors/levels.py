# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tables of a codebook: the levels, which are the numbers that codes stand for, and the thresholds between levels.

Further tables have the levels of several codes at once, for fast decoding. Tables for the CPU are numpy arrays or torch
tensors. A table for another device is copied to that device once, and the host waits for the copy.
"""

import functools
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from gravac.compressors.packing import unpack

CPU = torch.device("cpu")

LevelKind = Literal["fitted", "uniform"]
"""Placement of a codebook's levels: fitted to a normal distribution, or evenly spaced."""

ByteTable = npt.NDArray[np.uint8]
"""Type of a numpy table of codes: one byte per entry."""

GRID_POINTS_PER_RMS = 40
"""Number of grid points in an interval as long as a block's root mean square, for fitted levels.

Numbers are rounded to a grid of 255 points before they are coded. The grid reaches from -3.2 to 3.2 (127 / 40) times
the block's root mean square.
"""

FITTED_LEVELS: dict[int, tuple[float, ...]] = {
    1: (0.7980,),
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
}
"""Positive levels, by bits per code, that minimize the mean squared error for numbers drawn from N(0, 1)."""


@functools.cache
def levels(bits: int, kind: LevelKind, device: torch.device = CPU) -> torch.Tensor:
    """Return the level of each code, ascending, as a multiple of the block's scale: float32, shape ``[2 ** bits]``.

    With uniform levels and 2 bits or more, there is one level fewer than codes. The highest code is then never sent,
    and its entry repeats the highest level.
    """
    return torch.tensor(_level_list(bits, kind), dtype=torch.float32, device=CPU).to(device)


def _level_list(bits: int, kind: LevelKind) -> list[float]:
    """Return the same levels as ``levels``, as a list."""
    if bits == 1:
        return [-1.0, 1.0]
    if kind == "uniform" or bits == 8:
        max_code = (1 << (bits - 1)) - 1
        return [min(signed_code, max_code) / max_code for signed_code in range(-max_code, max_code + 2)]
    return [-level for level in reversed(FITTED_LEVELS[bits])] + list(FITTED_LEVELS[bits])


@functools.cache
def threshold_points_of(bits: int, kind: LevelKind) -> list[int]:
    """Return the thresholds between neighbouring codes: the lowest grid point of each code except the first.

    Numbers are rounded to integers, the grid points, before they are coded. For fitted levels, a grid point is a
    multiple of the block's root mean square divided by ``GRID_POINTS_PER_RMS``. For uniform levels, it is a multiple of
    the distance between two levels.
    """
    if bits == 1:
        return [0]
    if kind == "uniform":
        max_code = (1 << (bits - 1)) - 1
        return list(range(1 - max_code, max_code + 1))
    return [
        round((lower_level + upper_level) / 2 * GRID_POINTS_PER_RMS)
        for lower_level, upper_level in pairwise(_level_list(bits, kind))
    ]


@functools.cache
def thresholds(bits: int, kind: LevelKind, device: torch.device) -> torch.Tensor:
    """Return the thresholds of ``threshold_points_of`` as a tensor: float32, flat.

    The tensor is cached, so that it is copied to a device only once.
    """
    return torch.tensor(threshold_points_of(bits, kind), dtype=torch.float32, device=CPU).to(device)


@functools.cache
def code_of_point(bits: int, kind: LevelKind) -> ByteTable:
    """Return the codes of the grid points -128 to 127 (see ``threshold_points_of``) as a table: uint8, ``[256]``.

    The code of a grid point is at the index ``point % 256``, which is the int8 point read as uint8.
    """
    grid_points = np.arange(256, dtype=np.uint8).view(np.int8)
    codes: ByteTable = np.searchsorted(threshold_points_of(bits, kind), grid_points, side="right").astype(np.uint8)
    return codes


@functools.cache
def code_of_pair(bits: int, kind: LevelKind) -> ByteTable:
    """Return a table of the two codes of each pair of grid points (see ``threshold_points_of``): uint8, ``[65536]``.

    An entry has both codes packed in a byte, the first code in the lowest bits. The index is the pair's two bytes, the
    first grid point in the low byte. If codes have 3 bits, an entry has the low two bits of both codes, then their high
    bits.
    """
    code_table = code_of_point(bits, kind)
    pair_keys = np.arange(1 << 16)
    first_code, second_code = code_table[pair_keys & 255].astype(np.int64), code_table[pair_keys >> 8].astype(np.int64)
    packed_pairs = first_code | second_code << bits
    if bits == 3:
        packed_pairs = (first_code & 3) | (second_code & 3) << 2 | (first_code >> 2) << 4 | (second_code >> 2) << 5
    table: ByteTable = packed_pairs.astype(np.uint8)
    return table


@functools.cache
def levels_of_bytes(bits: int, kind: LevelKind, device: torch.device) -> torch.Tensor:
    """Return the levels of the codes packed in each byte: float32, shape ``[256, 8 // bits]``; for 1, 2 or 4 bits.

    The table is cached, so that it is copied to a device only once.
    """
    all_levels, mask = _level_list(bits, kind), (1 << bits) - 1
    rows = [[all_levels[byte >> shift & mask] for shift in range(0, 8, bits)] for byte in range(256)]
    return torch.tensor(rows, dtype=torch.float32, device=CPU).to(device)


@functools.cache
def levels_by_key(bits: int, kind: LevelKind) -> npt.NDArray[np.void]:
    """Return a table that maps several packed codes to their levels in one lookup: 1-D, numpy ``void`` elements.

    The index is a byte of codes; for 3 bits, it is four codes in 12 bits, with the codes' low two bits in the low byte.
    A ``void`` element has the codes' levels as consecutive float32.
    """
    if bits == 3:
        keys = torch.arange(1 << 12, dtype=torch.int64, device=CPU).unsqueeze(1)
        codes = unpack((keys & 255).byte(), 2, 4) | unpack((keys >> 8).byte(), 1, 4) << 2
        table = levels(bits, kind)[codes.long()].contiguous().numpy()
    else:
        table = levels_of_bytes(bits, kind, CPU).numpy()
    return table.view(f"V{table.dtype.itemsize * table.shape[1]}").reshape(-1)


@functools.cache
def levels_of_twelve_bits(kind: LevelKind, device: torch.device) -> torch.Tensor:
    """Return a table of the levels of four packed codes of 3 bits: float32, shape ``[4096, 4]``.

    The index has the codes' low two bits in its low byte, and their high bits in the next four bits. The table is
    cached, so that it is copied to a device only once.
    """
    all_levels = _level_list(3, kind)
    codes_by_key = [[key >> 2 * i & 3 | (key >> 8 + i & 1) << 2 for i in range(4)] for key in range(1 << 12)]
    rows = [[all_levels[code] for code in codes_of_key] for codes_of_key in codes_by_key]
    return torch.tensor(rows, dtype=torch.float32, device=CPU).to(device)


@functools.cache
def shifts_of_nibbles(device: torch.device) -> torch.Tensor:
    """Return the left shifts, 8 and 4, that move a byte's low and high half to bits 8 to 11: int32, shape ``[2]``.

    The result is cached, so that it is copied to a device only once.
    """
    return torch.tensor([8, 4], dtype=torch.int32, device=CPU).to(device)


@functools.cache
def levels_of_nibbles(kind: LevelKind) -> torch.Tensor:
    """Return a table of the levels of a byte's two codes of 4 bits: complex64, shape ``[256]``.

    The real part is the level of the byte's low half, the imaginary part that of its high half.
    """
    return torch.from_numpy(levels_by_key(4, kind).view(np.complex64))
