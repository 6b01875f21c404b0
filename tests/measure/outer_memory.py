# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that outer steps take beside the weights, on a GPU and in CPU memory, found without one; see ``memory.py``.

    python -m tests.measure.outer_memory [--json FILE]

A model of eight matrices of 2^20 elements each goes through rounds, dense: between two rounds there are anchors and
what the outer optimizer keeps; within one, pseudo-gradients too. What a compressor takes comes on top.
"""

import argparse
import logging
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from gravac import Static, dense
from tests.device.counting import DEVICE, counting
from tests.device.steps import Counted
from tests.device.storages import Storages
from tests.measure.results import write
from tests.outer.by_hand import OuterByHand

FRAGMENTS = (1, 8)

MATRICES, SIZE = 8, 1 << 20
"""Number of the model's matrices, and elements of each."""

ROUNDS = 4
"""Rounds before the one that is counted."""


def needs(weights: torch.dtype, momentum: float, size: int = SIZE, **settings: Any) -> tuple[Storages, Storages]:
    """Follow one round on a made-up GPU: its memory, and the CPU's.

    Args:
        weights: number format of the model.
        momentum: the outer optimizer's.
        size: elements of each matrix.
        settings: of ``OuterByHand``.
    """
    there, here = Storages("npy"), Storages("cpu")
    with ExitStack() as within:
        seen = within.enter_context(counting())
        within.enter_context(there)
        within.enter_context(here)
        matrices = [torch.empty(256, size // 256, dtype=weights, device=DEVICE) for _ in range(MATRICES)]
        module = torch.nn.ParameterList(matrices)
        outer = OuterByHand(
            module,
            torch.optim.SGD(module.parameters()),
            base=dense,
            cf_range=(1, 2),
            controller=Static(cf=1),
            every=MATRICES,
            delay=0,
            outer=partial(torch.optim.SGD, lr=0.7, momentum=momentum, nesterov=momentum > 0),
            executor=Counted(seen, 2),
            **settings,
        )
        for number in range(ROUNDS + 1):
            if number == ROUNDS:
                there.begin()
                here.begin()
            for _ in range(MATRICES):
                outer.step()
        there.end()
        here.end()
    return there, here


def row(weights: torch.dtype, anchor_dtype: str, momentum: float, offload: bool, fragments: int) -> dict[str, Any]:
    """Bytes per parameter."""
    kept = {"anchor_dtype": anchor_dtype, "offload": offload, "fragments": fragments}
    there, here = needs(weights, momentum, **kept)
    own = MATRICES * SIZE * weights.itemsize
    return {
        "weights": str(weights).removeprefix("torch."),
        "momentum": momentum > 0,
        **kept,
        "device_kept": _of(there.kept - own),
        "device_peak": _of(there.peak - own),
        "host_kept": _of(here.kept),
        "host_peak": _of(here.peak),
    }


def _of(found: float) -> float:
    """Bytes for each parameter; tables are no more than a rounding of that."""
    return round(found / MATRICES / SIZE, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = [
        row(torch.bfloat16, anchor_dtype, momentum, offload, fragments)
        for anchor_dtype in ("float32", "bfloat16")
        for momentum in (0.0, 0.9)
        for offload in (False, True)
        for fragments in FRAGMENTS
    ]
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
