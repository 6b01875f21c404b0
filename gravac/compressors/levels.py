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
"""Placement of levels: fitted to a normal law, or evenly spaced."""

Table = npt.NDArray[np.uint8]
"""Codes that numpy looks up, one byte each."""

GRID = 40
"""Grid points per root mean square of a block with fitted levels; the outermost of the 255 is at 3.2 of these."""

FITTED: dict[int, tuple[float, ...]] = {
    1: (0.7980,),
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
}
"""Positive levels with the smallest mean squared error for N(0, 1), by bits per code."""


@functools.cache
def levels(bits: int, kind: Kind, device: torch.device = CPU) -> torch.Tensor:
    """Return all levels, ascending, in units of a block's scale: float32, flat, ``2 ** bits``; uniform: one unused."""
    return torch.tensor(_levels(bits, kind)).to(device)


def _levels(bits: int, kind: Kind) -> list[float]:
    if bits == 1:
        return [-1.0, 1.0]
    if kind == "uniform" or bits == 8:
        max_step = (1 << (bits - 1)) - 1
        return [min(step, max_step) / max_step for step in range(-max_step, max_step + 2)]
    return [-level for level in reversed(FITTED[bits])] + list(FITTED[bits])


@functools.cache
def points_between(bits: int, kind: Kind) -> list[int]:
    """Return the lowest grid point of each code except the first."""
    if bits == 1:
        return [0]
    if kind == "uniform":
        max_step = (1 << (bits - 1)) - 1
        return list(range(1 - max_step, max_step + 1))
    return [round((below + above) / 2 * GRID) for below, above in pairwise(_levels(bits, kind))]


@functools.cache
def thresholds(bits: int, kind: Kind, device: torch.device) -> torch.Tensor:
    """Return ``points_between`` as a tensor: float32, flat; copied to a device once."""
    return torch.tensor(points_between(bits, kind), dtype=torch.float32).to(device)


@functools.cache
def code_of_point(bits: int, kind: Kind) -> Table:
    """Return the code of each grid point, by the point's byte: uint8, ``[256]``."""
    points = np.arange(256, dtype=np.uint8).view(np.int8)
    codes: Table = np.searchsorted(points_between(bits, kind), points, side="right").astype(np.uint8)
    return codes


@functools.cache
def code_of_pair(bits: int, kind: Kind) -> Table:
    """Return the codes of each pair of neighbouring grid points, by the pair's two bytes: uint8, ``[65536]``.

    Codes of 3 bits have the two low bits of both codes first.
    """
    code = code_of_point(bits, kind)
    pairs = np.arange(1 << 16)
    first, second = code[pairs & 255].astype(np.int64), code[pairs >> 8].astype(np.int64)
    both = first | second << bits
    if bits == 3:
        both = (first & 3) | (second & 3) << 2 | (first >> 2) << 4 | (second >> 2) << 5
    table: Table = both.astype(np.uint8)
    return table


@functools.cache
def levels_of_bytes(bits: int, kind: Kind, device: torch.device) -> torch.Tensor:
    """Return the levels of all codes, 1, 2 or 4 bits, in each byte: float32, ``[256, 8 // bits]``; copied once."""
    all_levels, mask = _levels(bits, kind), (1 << bits) - 1
    rows = [[all_levels[byte >> shift & mask] for shift in range(0, 8, bits)] for byte in range(256)]
    return torch.tensor(rows).to(device)


@functools.cache
def levels_by_key(bits: int, kind: Kind) -> npt.NDArray[np.void]:
    """Return the levels of all codes in each key, joined to a single array element per key.

    A key is a byte; for 3 bits, it has four codes in 12 bits, with the codes' low bits in the low byte.
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
    """Return the levels of four codes of 3 bits, with their low bits in the low byte: float32, ``[4096, 4]``.

    The table is copied to a device once.
    """
    all_levels = _levels(3, kind)
    codes = [[key >> 2 * i & 3 | (key >> 8 + i & 1) << 2 for i in range(4)] for key in range(1 << 12)]
    return torch.tensor([[all_levels[code] for code in codes_of_key] for codes_of_key in codes]).to(device)


@functools.cache
def shifts_of_nibbles(device: torch.device) -> torch.Tensor:
    """Return the shifts, in bits, that move a byte's two halves above the low byte: int32, ``[2]``."""
    return torch.tensor([8, 4], dtype=torch.int32).to(device)


@functools.cache
def levels_of_nibbles(kind: Kind) -> torch.Tensor:
    """Return the levels of both codes in each byte, as one complex number: complex64, ``[256]``."""
    return torch.from_numpy(levels_by_key(4, kind).view(np.complex64))
