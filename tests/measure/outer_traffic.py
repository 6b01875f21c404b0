# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a rank hands to collectives in each step, by the number of fragments that the model is exchanged in.

    python -m tests.measure.outer_traffic [--json FILE]

Ranks in memory, a model of 64 equal matrices, 40 steps from one exchange to the next: no clock, the same figures on
every machine. A step's bytes are those that leave a rank where it ends; what one step has over the mean of all is how
much faster a link must be for them not to last into the next.
"""

import argparse
import itertools
from typing import Any

import torch

from gravac import Compressor, Static, dense, quantize, topk
from gravac.exchange.lockstep import Lockstep
from tests.measure.results import write
from tests.outer.by_hand import OuterByHand

CASES: tuple[tuple[str, Compressor, float], ...] = (
    ("dense", dense, 1.0),
    ("quantize(4)", quantize(4), 8.0),
    ("topk", topk, 50.0),
)
"""What it is called, the compressor, its CF."""

FRAGMENTS = (1, 2, 4, 8)

EVERY = 40
"""Steps of a round."""

RANKS = 2

MATRICES, SIZE = 64, 128
"""Number of the model's matrices, and rows and columns of each."""


def bytes_of_steps(base: Compressor, cf: float, fragments: int) -> list[int]:
    """Bytes that rank 0 sends in each step of a round, after one that is not counted."""
    lockstep = Lockstep(RANKS)
    torch.manual_seed(0)
    start = [torch.randn(SIZE, SIZE) for _ in range(MATRICES)]
    modules = [torch.nn.ParameterList(one.clone() for one in start) for _ in range(RANKS)]
    outer = [
        OuterByHand(
            module,
            torch.optim.SGD(module.parameters()),
            base=base,
            cf_range=(1, 100),
            controller=Static(cf=cf),
            every=EVERY,
            delay=0,
            fragments=fragments,
            executor=executor,
        )
        for module, executor in zip(modules, lockstep.executors, strict=True)
    ]
    sent = [0]
    for _ in range(2 * EVERY):
        for module, one in zip(modules, outer, strict=True):
            for parameter in module:
                parameter.data.add_(torch.randn(SIZE, SIZE), alpha=0.01)
            one.leave()
        lockstep.run()
        for one in outer:
            one.arrive()
        sent.append(outer[0].ledger.wire_bytes)
    of_steps = [after - before for before, after in itertools.pairwise(sent)]
    return of_steps[EVERY:]


def row(label: str, base: Compressor, cf: float, fragments: int) -> dict[str, Any]:
    """What a round's steps come to."""
    found = bytes_of_steps(base, cf, fragments)
    return {
        "compressor": label,
        "cf": cf,
        "every": EVERY,
        "ranks": RANKS,
        "elements": MATRICES * SIZE * SIZE,
        "fragments": fragments,
        "bytes": sum(found),
        "peak_bytes": max(found),
        "peak_over_mean": round(max(found) * EVERY / sum(found), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    write([row(*case, fragments) for case in CASES for fragments in FRAGMENTS], arguments.json)


if __name__ == "__main__":
    main()
