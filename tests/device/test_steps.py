# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""On a GPU the host waits once in a step, for what is a step old, whatever is sent and whatever is asked for beside."""

from typing import Any

import pytest
import torch

from gravac import Compressor, dense, dgc, ladder, powersgd, quantize, randomk, thc, topk, topkc
from gravac.collectives import AllReduce
from gravac.controllers import Accordion, Goodput, GraVAC
from gravac.controllers.base import Controller
from tests.device.steps import There, steps

SHAPES = {"head": (1024, 256), "body.1": (256, 256), "body.1.bias": (256,), "body.2": (64, 3, 3, 3), "stem": (512, 32)}

BASES: tuple[tuple[Compressor, float], ...] = (
    *((one, 100.0) for one in (topk, topkc, powersgd, randomk, dgc, topkc(values=quantize(1)))),
    *((one, 8.0) for one in (quantize(4), thc)),
    *((quantize(bits), 32.0 / bits) for bits in (8, 2, 1)),
)

CASES: tuple[tuple[Compressor, float, int], ...] = (
    *((*base, 8) for base in BASES),
    *((*base, 2) for base in BASES if base[0].name in ("quantize", "thc")),  # between two ranks they go another way
)
"""Compressors, compression factors and numbers of ranks."""


def quiet(seen: Any, executor: Any, count: int) -> None:
    assert not seen.waits
    assert not seen.copies
    assert executor.host_waits == count  # in the beginning, for what is a step old
    assert len(executor.carried) <= 4 * count


@pytest.mark.parametrize(("base", "cf", "world"), CASES, ids=repr)
def test_the_host_waits_for_nothing(base: Compressor, cf: float, world: int) -> None:
    assert not base.host_waits
    quiet(*steps(base, SHAPES, world, cf=cf, count=2), 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("base", [topk, quantize(2)], ids=repr)
def test_nor_with_narrow_gradients_and_a_loss_scale(base: Compressor, dtype: torch.dtype) -> None:
    quiet(*steps(base, SHAPES, cf=16.0, count=2, dtype=dtype, scaled=True), 2)


def test_nor_when_all_is_sent() -> None:
    seen, executor = steps(dense, SHAPES, count=3)
    quiet(seen, executor, 3)
    groups = 1 + len(SHAPES)  # small ones too, and what the ranks agree on
    assert sum(seen.kernels.values()) <= 3 * (2 * groups + 8), seen.kernels


@pytest.mark.parametrize(
    ("base", "controller"),
    [
        (topk, GraVAC(window=2, warmup=1)),
        (topkc, Accordion(every=2, window=3)),
        (ladder, Goodput(window=5)),
        (powersgd, GraVAC(window=3, warmup=3)),
    ],
    ids=lambda one: one.name,
)
def test_nor_while_other_factors_are_tried(base: Compressor, controller: Controller[Any]) -> None:
    if base is ladder:
        steps(base, SHAPES, controller=controller, count=12)  # brings tables to the device, once
    quiet(*steps(base, SHAPES, controller=controller, count=12), 12)


def test_what_strays_to_the_host_fails() -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        There(2).launch([AllReduce(torch.zeros(3))])

    class Stray(type(topk)):  # type: ignore[misc]
        """Sends all from the host."""

        name = "stray"

        def rounds(self, x: torch.Tensor, cf: float, ctx: Any) -> Any:
            yield AllReduce(x.cpu())

    with pytest.raises(RuntimeError, match="cpu and npy"):
        steps(Stray(), SHAPES, cf=8.0)


@pytest.mark.parametrize(("world", "operators"), [(2, 54), (8, 90)])
def test_a_group_of_matrices_is_coded_as_one(world: int, operators: int) -> None:
    matrices = {f"{number}": (256, 256) for number in range(24)}  # as much as goes together at most
    seen, executor = steps(quantize(4), matrices, world, cf=8.0, apart=False)
    quiet(seen, executor, 1)
    assert sum(seen.kernels.values()) <= operators, seen.kernels


def test_many_tensors_of_a_quantizer_take_hardly_more_launches_than_one() -> None:
    counts = []
    for tensors in (1, 24):
        seen, _ = steps(quantize(4), {str(number): (256, 256) for number in range(tensors)}, cf=8.0, apart=False)
        counts.append(sum(seen.kernels.values()))
    assert counts[1] <= 1.5 * counts[0], counts
