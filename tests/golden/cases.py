# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The runs that are recorded, by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gravac import Accordion, Goodput, GraVAC, Static, ladder, powersgd, quantize, topk
from gravac.modes.outer.sgd import OuterSGD
from tests.golden.ranks import DDPRank, LoopRank, ModesRank, OuterRank, Rank, ScaledRank, ShardsRank
from tests.modes.scripted import APART, DENSE, HALF, HOOK, NATIVE, Scripted, script

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        settings: settings of what compresses.
        rank: how a rank trains.
        optimizer: makes the optimizer of the model's parameters.
        in_memory: whether the ranks are in one process, run as a device's streams run them: with the latency and the
            masks of a host that must not wait.
        steps: number of steps before the run is stopped.
        more: number of steps after it is resumed.
        ranks: number of ranks.
        falls_at: number of the step before which the learning rate falls to a tenth; ``None``: the rate stays.
    """

    settings: Mapping[str, Any]
    rank: type[Rank] = DDPRank
    optimizer: Any = SGD
    in_memory: bool = False
    steps: int = 40
    more: int = 20
    ranks: int = 3
    falls_at: int | None = None


CASES: Mapping[str, Case] = {
    "topk-gravac": Case({"base": topk, "cf_range": (10, 1000), "controller": GraVAC(window=4)}),
    "ladder-goodput": Case({"base": ladder, "cf_range": (2, 1000), "controller": Goodput(window=5)}),
    "powersgd-static": Case({"base": powersgd, "cf_range": (2, 100), "controller": Static(cf=8)}),
    "one-bit-static": Case({"base": quantize(1), "cf_range": (32, 32), "controller": Static(cf=32)}),
    "topk-accordion": Case(
        {"base": topk, "cf_range": (4, 100), "controller": Accordion(eta=0.1, every=1, epoch=5, window=5)},
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
        falls_at=33,
    ),
    "masked-topk-gravac": Case(
        {"base": topk, "cf_range": (4, 400), "controller": GraVAC(window=3)}, rank=LoopRank, in_memory=True
    ),
    "masked-ladder-safe": Case(
        {
            "base": ladder,
            "cf_range": (2, 1000),
            "controller": GraVAC(window=3),
            "overflow_safety": True,
        },
        rank=LoopRank,
        in_memory=True,
    ),
    "outer-static": Case(
        {"base": quantize(2), "cf_range": (2, 16), "controller": Static(cf=16), "every": 5, "delay": 0}, rank=OuterRank
    ),
    "outer-goodput": Case(
        {"base": ladder, "controller": Goodput(window=5), "every": (1, 20), "delay": "auto"},
        rank=OuterRank,
        steps=150,
        more=100,
    ),
    "outer-delayed": Case(
        {
            "base": topk,
            "cf_range": (4, 100),
            "controller": Static(cf=10),
            "every": 5,
            "delay": 2,
            "outer": partial(OuterSGD, rate=0.7, momentum=0.9),
        },
        rank=OuterRank,
    ),
    "outer-masked": Case(
        {
            "base": topk,
            "cf_range": (4, 400),
            "controller": GraVAC(window=2),
            "every": 2,
            "delay": 1,
            "outer": partial(OuterSGD, rate=0.7, momentum=0.9),
        },
        rank=OuterRank,
        in_memory=True,
    ),
    "modes": Case(
        {
            "base": topk,
            "cf_range": (10, 10),
            "controller": Scripted(script=script((0, NATIVE), (8, HOOK), (20, APART), (40, HOOK), (50, NATIVE))),
            "every": (1, 5),
        },
        rank=ModesRank,
        steps=33,
        more=37,
    ),
    "modes-scaled": Case(
        {
            "base": topk,
            "cf_range": (10, 10),
            "controller": Scripted(script=script((0, DENSE), (6, HOOK), (20, HALF), (32, APART), (47, NATIVE))),
            "every": (1, 5),
        },
        rank=ScaledRank,
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
        steps=26,
        more=34,
    ),
    "modes-shards": Case(
        {
            "base": topk,
            "cf_range": (10, 10),
            "controller": Scripted(script=script((0, HOOK), (10, APART), (30, DENSE), (36, HOOK))),
            "every": (1, 5),
            "native": False,
        },
        rank=ShardsRank,
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
        steps=23,
        more=22,
        ranks=4,
    ),
}
