# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The tables of a codebook: levels, flat, the thresholds between them, and both for several codes at once.

Tables for the CPU are numpy's, or one of torch's for it; those for another device are copied to it once, for which the
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
"""How levels lie: fitted to a normal law, or evenly."""

Table = npt.NDArray[np.uint8]
"""Codes looked up by numpy, one byte each."""

GRID = 40
"""Grid points per root mean square of a fitted block; the outermost of the 255 is at 3.2 times."""

FITTED: dict[int, tuple[float, ...]] = {
    1: (0.7980,),
    2: (0.4528, 1.5104),
    3: (0.2451, 0.7560, 1.3439, 2.1520),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326),
}
"""The positive levels with the least mean squared error for N(0, 1), by bits per code."""


@functools.cache
def levels(bits: int, kind: Kind, device: torch.device = CPU) -> torch.Tensor:
    """Levels, ascending, in units of a block's scale: float32, flat, ``2 ** bits`` numbers (uniform: one unused)."""
    return torch.tensor(_levels(bits, kind)).to(device)


def _levels(bits: int, kind: Kind) -> list[float]:
    if bits == 1:
        return [-1.0, 1.0]
    if kind == "uniform" or bits == 8:
        most = (1 << (bits - 1)) - 1
        return [min(step, most) / most for step in range(-most, most + 2)]
    return [-level for level in reversed(FITTED[bits])] + list(FITTED[bits])


@functools.cache
def points_between(bits: int, kind: Kind) -> list[int]:
    """The lowest grid point of every code but the first."""
    if bits == 1:
        return [0]
    if kind == "uniform":
        most = (1 << (bits - 1)) - 1
        return list(range(1 - most, most + 1))
    every = _levels(bits, kind)
    return [round((below + above) / 2 * GRID) for below, above in pairwise(every)]


@functools.cache
def thresholds(bits: int, kind: Kind, device: torch.device) -> torch.Tensor:
    """The same as numbers: float32, flat."""
    return torch.tensor(points_between(bits, kind), dtype=torch.float32).to(device)


@functools.cache
def code_of_point(bits: int, kind: Kind) -> Table:
    """The code of every grid point, in the order of its byte: uint8, ``[256]``."""
    points = np.arange(256, dtype=np.uint8).view(np.int8)
    codes: Table = np.searchsorted(points_between(bits, kind), points, side="right").astype(np.uint8)
    return codes


@functools.cache
def code_of_pair(bits: int, kind: Kind) -> Table:
    """The codes of two neighbouring grid points, by both bytes: uint8, ``[65536]``. Of 3 bits, low ones first."""
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
    """The levels of all codes in a byte, of 1, 2 or 4 bits: float32, ``[256, 8 // bits]``; copied to a device once."""
    every, last = _levels(bits, kind), (1 << bits) - 1
    return torch.tensor([[every[byte >> at & last] for at in range(0, 8, bits)] for byte in range(256)]).to(device)


@functools.cache
def levels_of_words(bits: int, kind: Kind) -> npt.NDArray[np.void]:
    """The levels of all codes in a byte (of 3 bits: of four codes, low bits in the low byte), as one element each."""
    if bits == 3:
        keys = torch.arange(1 << 12).unsqueeze(1)
        codes = unpack((keys & 255).byte(), 2, 4) | unpack((keys >> 8).byte(), 1, 4) << 2
        table = levels(bits, kind)[codes.long()].contiguous().numpy()
    else:
        table = levels_of_bytes(bits, kind, CPU).numpy()
    return table.view(f"V{table.dtype.itemsize * table.shape[1]}").reshape(-1)


@functools.cache
def levels_of_twelve_bits(kind: Kind, device: torch.device) -> torch.Tensor:
    """The levels of four codes of 3 bits, their low bits in the low byte: float32, ``[4096, 4]``; copied there once."""
    every = _levels(3, kind)
    codes = [[key >> 2 * at & 3 | (key >> 8 + at & 1) << 2 for at in range(4)] for key in range(1 << 12)]
    return torch.tensor([[every[code] for code in of_key] for of_key in codes]).to(device)


@functools.cache
def shifts_of_nibbles(device: torch.device) -> torch.Tensor:
    """How far a byte moves so that its first and its second half come to lie above a byte: int32, ``[2]``."""
    return torch.tensor([8, 4], dtype=torch.int32).to(device)


@functools.cache
def levels_of_nibbles(kind: Kind) -> torch.Tensor:
    """The levels of both codes in a byte, as one complex number: complex64, ``[256]``."""
    return torch.from_numpy(levels_of_words(4, kind).view(np.complex64))
