# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that gravac takes on a GPU beside the gradients, found without one: fake tensors, whose storages are followed.

    python -m tests.measure.memory [--json FILE]

Models of two and of four tensors of 2^20 elements each go through whole steps, tensor by tensor. What grows with the
model is kept for every parameter, from step to step or until a step's end; the rest is what one group takes while it is
coded. By plain torch operators: kernels take less, libraries (a sort, a QR) take more within an operator.
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
"""Tensors of the two models."""


def needs(base: Compressor, cf: float, tensors: int, world: int = 2, **settings: Any) -> tuple[int, int]:
    """Bytes beside the gradients: between two steps, and at most within one."""
    storages = Storages("npy")
    steps(base, {str(n): (256, SIZE // 256) for n in range(tensors)}, world, cf=cf, storages=storages, **settings)
    gradients = 4 * SIZE * tensors
    return storages.kept - gradients, storages.peak - gradients


def row(
    label: str, base: Compressor, cf: float, fed_back: float | None, world: int, residual_dtype: str, safe: bool
) -> dict[str, Any]:
    """Bytes per parameter between steps and at a step's end, and bytes that a group takes for each of its elements."""
    settings = {"residual_dtype": residual_dtype, "overflow_safety": safe, "error_feedback": fed_back}
    kept, peak = zip(*(needs(base, cf, tensors, world, **settings) for tensors in (FEW, MANY)), strict=True)
    within = (peak[1] - peak[0]) / (MANY - FEW)
    return {
        "compressor": label,
        "cf": cf,
        "world": world,
        "residual_dtype": residual_dtype,
        "overflow_safety": safe,
        "kept": _of((kept[1] - kept[0]) / (MANY - FEW)),
        "within_a_step": _of(within),
        "group": _of(peak[0] - FEW * within),
    }


def _of(found: float) -> float:
    """Bytes for each element of a tensor; what a run took for its tables is no more than a rounding of that."""
    return abs(round(found / SIZE, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = [
        row(*case, world, residual_dtype, safe)
        for case in CASES
        for world in WORLDS
        for residual_dtype in ("float32", "bfloat16")
        for safe in (False, True)
    ]
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
