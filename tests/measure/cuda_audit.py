# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a whole step would have a GPU do, counted without one: kernels, copies, and reads that the host waits for.

    python -m tests.measure.cuda_audit [--json FILE]

One tensor goes through the engine, with fake tensors on a made-up device (``tests.device``); so do 24 matrices as one
group. ``carried`` are the copies from and to pinned memory of what the ranks agree on, for which nobody waits before a
step is over. A kernel is an operator: what a library launches within one (a sort, a QR) counts once.
"""

import argparse
import logging
from typing import Any

from gravac import Compressor, dense, dgc, powersgd, quantize, randomk, redsync, signsgd, thc, topk, topkc
from tests.device.steps import steps
from tests.measure.results import write

CASES: tuple[tuple[str, Compressor, float], ...] = (
    ("dense", dense, 1.0),
    *((f"quantize({bits})", quantize(bits), 32.0 / bits) for bits in (8, 4, 2, 1)),
    *((one.name, one, 100.0) for one in (topk, topkc, randomk, dgc, redsync)),
    ("topkc(values=quantize(1))", topkc(values=quantize(1)), 100.0),
    ("powersgd(4)", powersgd(4), 128.0),
    ("thc", thc, 8.0),
    ("signsgd", signsgd, 32.0),
)

WORLDS = (2, 8)
ELEMENTS = (1 << 17, 1 << 20, 1 << 24)

GROUPS: tuple[tuple[str, Compressor, float], ...] = (
    ("quantize(4)", quantize(4), 8.0),
    ("topk", topk, 100.0),
    ("topkc", topkc, 100.0),
    ("topkc(values=quantize(1))", topkc(values=quantize(1)), 100.0),
    ("powersgd(4)", powersgd(4), 128.0),
)
"""Compressors of the group."""

TENSORS = 24
"""Matrices of a group, of 2^18 elements each."""


def row(label: str, base: Compressor, cf: float, world: int, elements: int, tensors: int = 1) -> dict[str, Any]:
    """Count one step of a group of tensors, each of so many elements."""
    shapes = {f"w{number}": (256, elements // 256) for number in range(tensors)}
    seen, executor = steps(base, shapes, world, cf=cf, apart=False)
    return {
        "compressor": label,
        "tensors": tensors,
        "cf": cf,
        "world": world,
        "elements": elements,
        "waits": len(seen.waits),
        "copies": len(seen.copies),
        "kernels": sum(seen.kernels.values()),
        "carried": len(executor.carried),
        "host_waits": executor.host_waits,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    found = [row(*case, world, elements) for case in CASES for world in WORLDS for elements in ELEMENTS]
    found += [row(*case, world, 1 << 18, TENSORS) for case in GROUPS for world in WORLDS]
    write(found, arguments.json)


if __name__ == "__main__":
    main()
