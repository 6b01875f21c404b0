# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What sums of squares cost that neither overflow nor vanish, against those that did: on a processor, one thread.

    python -m tests.measure.norms [--json FILE] [--pairs N]

Pairs of turns, before first and after first in turns: the energy of a 25 MiB tensor alone, and a step of one rank that
averages one such tensor. Before is a dot product in the own format of the numbers, put in place of ``energy``;
all else is the present code. Ratios are medians over pairs, with their 95 % bootstrap interval.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from gravac import Compressor, dense, quantize, topk, topkc
from gravac.compressors import squares
from gravac.testing.trial import average, averagers
from tests.measure.results import interval, write

ELEMENTS = 25 * 2**18

WARM = 2
"""Runs of each side before any counts."""

CASES: tuple[tuple[str, Compressor, float], ...] = (
    ("dense(float16)", dense(dtype="float16"), 2.0),
    ("quantize(4)", quantize(4), 8.0),
    ("topk", topk, 100.0),
    ("topkc", topkc, 100.0),
)

USERS = (
    *("gravac.averaging.norms", "gravac.averaging.average", "gravac.averaging.folding", "gravac.averaging.feedback"),
    *("gravac.compressors.quantize", "gravac.compressors.topk"),
)
"""Modules that sum squares in such a step."""


def dot(x: torch.Tensor) -> torch.Tensor:
    """``‖x‖²`` of flat x as it was: 0-d, in the dtype of x."""
    return torch.dot(x, x)


def before() -> ExitStack:
    """Put what was there in place of ``energy``, until the stack is closed."""
    stack = ExitStack()
    for module in USERS:
        stack.enter_context(patch(f"{module}.energy", dot))
    stack.enter_context(patch("gravac.averaging.norms.recompute_if_inexact", lambda sum_of_squares, _: sum_of_squares))
    return stack


def pairs(old: Callable[[], object], new: Callable[[], object], count: int) -> list[tuple[float, float]]:
    """Seconds of each side, taking turns."""

    def seconds(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    for _ in range(WARM):
        old(), new()
    found = []
    for number in range(count):
        sides = (old, new) if number % 2 == 0 else (new, old)
        took = [seconds(side) for side in sides]
        found.append((took[0], took[1]) if number % 2 == 0 else (took[1], took[0]))
    return found


def row(what: str, turns: list[tuple[float, float]]) -> dict[str, Any]:
    """Return a row: medians in milliseconds, and the ratio of after to before."""
    ratios = [new / old for old, new in turns]
    low, high = interval(ratios)
    return {
        "what": what,
        "elements": ELEMENTS,
        "before_ms": round(1e3 * statistics.median(old for old, _ in turns), 3),
        "after_ms": round(1e3 * statistics.median(new for _, new in turns), 3),
        "ratio": round(statistics.median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "pairs": len(turns),
    }


def step_of(base: Compressor, cf: float, x: torch.Tensor) -> Callable[[], object]:
    """Return what runs a step of one rank."""
    ranks, steps = averagers(base, 1), iter(range(1_000_000))
    return lambda: average(ranks, [x], cf, next(steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--pairs", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(2560, 2560, generator=torch.Generator().manual_seed(0))
    flat = x.view(-1)

    rows = [row("energy", pairs(lambda: float(dot(flat)), lambda: float(squares.energy(flat)), 10 * arguments.pairs))]
    for what, base, cf in CASES:
        old, new = step_of(base, cf, x), step_of(base, cf, x)

        def patched(step: Callable[[], object] = old) -> None:
            with before():
                step()

        rows.append(row(f"step: {what}", pairs(patched, new, arguments.pairs)))
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
