# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether two recordings are the same: every tensor bit for bit, every plain value through a written mapping.

Sums that a step records (errors, energies, gains) agree within ``RECORDED``, as the way squares are summed may change.
What was decided by them, and whatever else is in words or whole numbers, must be equal.
"""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gravac.checkpoint.state import VERSION
from tests.golden.runs import CASES

MAPPING: Mapping[str, Callable[[Any], Any]] = {"gravac.version": lambda version: VERSION}
"""By its path in a checkpoint (``gravac.version``), what a plain value of before is now; others are unchanged."""

RECORDED = 1e-6
"""Largest relative difference of a recorded floating-point number."""

UNPAIRED: frozenset[str] = frozenset()
"""Paths of a checkpoint that stand on one side alone."""


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Every path at which two recordings differ, with what stands there."""
    where = re.sub(r"^(checkpoint|end)\.", "", path)
    if where in MAPPING:
        before = MAPPING[where](before)
    if isinstance(before, torch.Tensor):
        same = (
            isinstance(after, torch.Tensor) and before.dtype == after.dtype and torch.equal(_bits(before), _bits(after))
        )
        return [] if same else [f"{path}: tensors differ"]
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = sorted({*before, *after}, key=str)
        found = []
        for key in keys:
            at = f"{path}.{key}" if path else str(key)
            if key not in after or key not in before:
                found += (
                    []
                    if re.sub(r"^(checkpoint|end)\.", "", at) in UNPAIRED
                    else [f"{at}: only {'before' if key in before else 'after'}"]
                )
            else:
                found += differences(before[key], after[key], at)
        return found
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        if len(before) != len(after):
            return [f"{path}: {len(before)} entries before, {len(after)} after"]
        pairs = enumerate(zip(before, after, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
    same = before == after or (before != before and after != after) or _recorded_alike(path, before, after)
    return [] if same else [f"{path}: {before!r} before, {after!r} after"]


def compare(before: Path, after: Path) -> int:
    """Print what differs; the number of differences."""
    found = 0
    for case in CASES:
        ranks = zip(torch.load(before / f"{case}.pt"), torch.load(after / f"{case}.pt"), strict=True)
        lines = [f"rank {rank}: {line}" for rank, (one, other) in enumerate(ranks) for line in differences(one, other)]
        same = f"tensors the same, bit for bit; recorded numbers within {RECORDED:g}"
        print(f"{case}: {same if not lines else f'{len(lines)} differences'}")
        for line in lines[:20]:
            print(f"  {line}")
        found += len(lines)
    return found


def _recorded_alike(path: str, before: Any, after: Any) -> bool:
    """Whether these are two floats, recorded by gravac, that are close; losses must be equal."""
    floats = isinstance(before, float) and isinstance(after, float)
    return floats and "gravac" in path and math.isclose(before, after, rel_tol=RECORDED)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor.view(-1)
