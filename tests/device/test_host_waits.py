# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What compressors say of the host's waiting is what is counted; and what timing them asks for."""

import pytest
import torch

from gravac import COMPRESSORS, Compressor, Goodput, Policy, ladder
from gravac.compressors import (
    artopk,
    dgc,
    powersgd,
    quantize,
    randomk,
    redsync,
    thc,
    topk,
    topkc,
)
from gravac.engine.codec_timing import time_codecs
from gravac.exchange.link_probe import LinkProbe
from gravac.exchange.opening import OpenedExecutor
from gravac.exchange.reading import HostCopy
from tests.device.counting import DEVICE, counting
from tests.device.idle import Idle
from tests.device.steps import Counted, Ones, steps
from tests.device.test_steps import CASES

SETTINGS: tuple[Compressor, ...] = (
    *(artopk(choose=choose) for choose in ("star", "var")),
    *(powersgd(alternating=alternating) for alternating in (False, True)),
    *(rule(exact_count=exact) for rule in (dgc, redsync) for exact in (False, True)),
    *(redsync(search="bisection", exact_count=exact) for exact in (False, True)),
    *(quantize(bits) for bits in (8, 4, 2, 1)),
    *(quantize(4, **how) for how in ({"rotate": True}, {"block": 64}, {"exchange": "gather"})),
    *(topkc(values=values) for values in (None, quantize(1))),
    *(one(values="float16") for one in (topk, randomk)),
    *(randomk(block=64), thc(exchange="lanes"), thc(sum_bits=4)),
    *(ladder(powersgd(4), quantize(2)), ladder(redsync(search="bisection", exact_count=False), quantize(2))),
)

SHAPES = {"head": (512, 256), "body": (64, 3, 3, 3), "bias": (256,)}


def cf_of(compressor: Compressor) -> float:
    reach = compressor.candidates((2.0, 300.0))
    return reach[-1] if isinstance(reach, tuple) and reach else 1.0 if not compressor.compresses else 64.0


EVERY: tuple[Compressor, ...] = (*COMPRESSORS.values(), *SETTINGS)

IN_WHOLE_STEPS = {(base, world) for base, _, world in CASES}
"""Those of which ``tests.device.test_steps`` finds that nothing makes the host wait, and that they say so."""


@pytest.mark.parametrize(
    ("compressor", "world"),
    [
        (one, world)
        for one in dict.fromkeys(EVERY)
        for world in ((8, 2) if one.name in ("quantize", "ladder") else (8,))  # between two ranks they go another way
        if (one, world) not in IN_WHOLE_STEPS
    ],
    ids=repr,
)
def test_a_compressor_says_whether_the_host_waits(compressor: Compressor, world: int) -> None:
    seen, _ = steps(compressor, SHAPES, world, cf=cf_of(compressor))
    assert compressor.host_waits == bool(seen.waits), seen.waits
    assert not seen.copies


class Agreeing(Counted):
    """All ranks measure what this one does."""

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        return Ones(super().to_host(tensor), len(tensor), self.agree_world)


@pytest.mark.parametrize("base", [ladder(quantize(2), powersgd(4)), topk], ids=lambda one: one.name)
def test_timing_waits_for_events_alone(base: Compressor) -> None:
    policy = Policy(base=base, controller=Goodput())
    forms = [((512, 256), torch.float32), ((256,), torch.float32)]
    for _ in range(2):  # the first makes tables
        with counting() as seen:
            device = Idle(torch.device(DEVICE))
            executor = Agreeing(seen, 2)
            found = time_codecs(policy, forms, OpenedExecutor(executor, LinkProbe(1e-5, 1e10, 1e12), device))
    assert found
    assert not seen.waits
    assert not seen.copies
