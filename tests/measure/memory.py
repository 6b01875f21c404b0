# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that gravac takes on a GPU beside the gradients, found without one: fake tensors, whose storages are followed.

    python -m tests.measure.memory [--json FILE]

Models of two and of four groups of 2^20 elements each, one tensor or four, go through whole steps, group by group. What
grows with the model is kept for every parameter, from step to step or until a step's end; the rest is what one group
takes while it is coded. Libraries (a sort, a QR) take more within an operator.
"""

import argparse
import logging
from typing import Any

from gravac import Compressor, dense, dgc, powersgd, quantize, randomk, thc, topk, topkc
from tests.device.steps import steps
from tests.device.storages import Storages
from tests.measure.results import write

CASES: tuple[tuple[str, Compressor, float, float | None], ...] = (
    ("dense", dense, 1.0, None),
    *((f"quantize({bits})", quantize(bits), 32.0 / bits, None) for bits in (8, 4, 2, 1)),
    ("quantize(4), error fed back", quantize(4), 8.0, 1.0),
    *((one.name, one, 100.0, None) for one in (topk, topkc, randomk, dgc)),
    ("powersgd(4)", powersgd(4), 128.0, None),
    ("thc", thc, 8.0, None),
)
"""What it is called, the compressor, its CF, and error feedback where that is not its own."""

WORLDS = (2, 8)

SIZE = 1 << 20
"""Elements of a tensor."""

FEW, MANY = 2, 4
"""Groups of the two models."""

EACH = (1, 4)
"""Tensors of a group."""


def needs(base: Compressor, cf: float, groups: int, world: int = 2, each: int = 1, **settings: Any) -> tuple[int, int]:
    """Bytes beside the gradients: between two steps, and at most within one."""
    storages, shape = Storages("npy"), (256, SIZE // 256 // each)
    shapes = {str(number): shape for number in range(groups * each)}
    steps(base, shapes, world, cf=cf, storages=storages, each=each, **settings)
    gradients = 4 * SIZE * groups
    return storages.kept - gradients, storages.peak - gradients


def row(label: str, base: Compressor, cf: float, fed_back: float | None, world: int, safe: bool) -> dict[str, Any]:
    """Bytes per parameter between steps and at a step's end, and bytes that a group takes for each of its elements."""
    settings = {"overflow_safety": safe, "error_feedback": fed_back}
    found = []
    for each in EACH:
        kept, peak = zip(*(needs(base, cf, groups, world, each, **settings) for groups in (FEW, MANY)), strict=True)
        within = (peak[1] - peak[0]) / (MANY - FEW)
        found.append((peak[0] - FEW * within, within, (kept[1] - kept[0]) / (MANY - FEW)))
    group, within, between = max(found)
    return {
        "compressor": label,
        "cf": cf,
        "world": world,
        "overflow_safety": safe,
        "kept": _of(between),
        "within_a_step": _of(within),
        "group": _of(group),
    }


def _of(found: float) -> float:
    """Bytes for each element of a tensor; what a run took for its tables is no more than a rounding of that."""
    return abs(round(found / SIZE, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = [row(*case, world, safe) for case in CASES for world in WORLDS for safe in (False, True)]
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
