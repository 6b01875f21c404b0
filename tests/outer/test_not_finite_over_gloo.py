# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A NaN gradient on one of several real ranks, without a scaler: long after it all train, and agree on the anchor."""

import itertools
import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import Static, checkpoint, quantize, topk
from gravac.modes.outer.not_finite import NotFiniteError
from tests.device.idle import streams
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import equal, finite, flat, network
from tests.ranks import processes

HURT = 7
"""Step in which a gradient is NaN."""

INNER: dict[str, Any] = {
    "adamw": partial(torch.optim.AdamW, lr=3e-3),
    "momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.9),
}

RUNS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "top-k, late": {
        "every": 6, "delay": 2, "base": topk, "controller": Static(cf=10), "cf_range": (10, 10), "dense_below": 0,
    },
    "4 bits": {
        "every": 5, "delay": 0, "base": quantize(bits=4), "controller": Static(cf=8), "cf_range": (2, 100),
        "dense_below": 0,
    },
}  # fmt: skip
"""Settings of outer steps."""


def loss_of(module: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 48, generator=generator)
    return (module(x) - x[:, :8].sin()).square().mean()


def train(rank: int, inner: str, steps: int, hurt: bool, **settings: Any) -> tuple[Any, torch.nn.Module, list[float]]:
    module = network()
    optimizer = INNER[inner](module.parameters())
    outer = OuterByHand(module, optimizer, **settings)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module, step, rank)
        loss.backward()
        if hurt and rank == 1 and step == HURT:
            next(module.parameters()).grad[0, 0] = math.nan  # type: ignore[index]
        losses.append(float(loss.detach()))
        optimizer.step()
        outer.step()
    return outer, module, losses


def healed(
    rank: int, world: int, run: str, gpu_streams: bool, inners: Sequence[str], later: int
) -> list[dict[str, Any]]:
    """Train with inner optimizers, one after the other, for some steps after the NaN gradient."""
    found = []
    for inner in inners:
        with streams(rank) if gpu_streams else nullcontext(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outer, module, losses = train(rank, inner, HURT + 1 + later, True, **RUNS[run])
            outer.synchronize()
            with outer.shared_weights():
                anchor = flat(module)
            outer.state_dict()  # the host reads all verdicts
            found.append(
                {
                    "anchor": anchor,
                    "losses": losses,
                    "skipped": outer.skipped,
                    "warned": [str(one.message) for one in caught if "not finite" in str(one.message)],
                    "state": all(finite(one) for kept in outer.inner.state.values() for one in kept.values()),
                }
            )
            outer.close()
    return found


@pytest.mark.parametrize(
    ("world", "run", "gpu_streams", "inners", "later"),
    [
        (3, "defaults", False, ["adamw"], 100),
        (2, "defaults", True, ["momentum"], 100),
        (3, "top-k, late", False, ["adamw"], 100),
        (2, "top-k, late", True, ["adamw"], 100),
        (2, "4 bits", False, ["momentum"], 100),
        *(
            pytest.param(world, run, gpu_streams, [*INNER], 200, marks=pytest.mark.long)
            for world, run, gpu_streams in itertools.product((2, 3), RUNS, (False, True))
        ),
    ],
)
def test_long_after_one_nan_gradient_all_ranks_train_and_agree(
    world: int, run: str, gpu_streams: bool, inners: Sequence[str], later: int
) -> None:
    for ranks in zip(*processes(healed, world, run, gpu_streams, inners, later), strict=True):
        assert equal([rank["anchor"] for rank in ranks])
        assert finite(ranks[0]["anchor"])
        (skipped,) = {rank["skipped"] for rank in ranks}
        assert 1 <= skipped <= 4
        for number, rank in enumerate(ranks):
            assert rank["state"], number
            assert rank["warned"], number
            assert all(map(math.isfinite, rank["losses"][-50:])), number
            assert sum(rank["losses"][-20:]) < 0.7 * sum(rank["losses"][:7]) * 20 / 7, number
        assert any("rank 1 is a cause" in text and "0.weight" in text for text in ranks[1]["warned"])
        assert not any("is a cause" in text for text in ranks[0]["warned"])


def diverging(rank: int, world: int, folder: Path) -> tuple[str, int, list[torch.Tensor]]:
    """Train with a learning rate that no rank survives; the anchor is saved when training has ended."""
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e30)
    outer = OuterByHand(module, optimizer, every=2, delay=0, base=topk, controller=Static(cf=10), cf_range=(10, 10))
    with outer.shared_weights():
        start = flat(module)
    said = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(40):
            optimizer.zero_grad()
            loss_of(module, step, rank).backward()
            optimizer.step()
            try:
                outer.step()
            except NotFiniteError as failure:
                said = str(failure)
                break
    with outer.shared_weights():
        anchor = flat(module)
    checkpoint.save(folder, outer)
    rounds = outer.rounds
    outer.close()
    fresh = network()
    again = OuterByHand(
        fresh, torch.optim.SGD(fresh.parameters(), lr=0.1), every=2, delay=0,
        base=topk, controller=Static(cf=10), cf_range=(10, 10),
    )  # fmt: skip
    checkpoint.load(folder, again)
    with again.shared_weights():
        loaded = flat(fresh)
    again.close()
    return said, rounds, [start, anchor, loaded]


def test_ranks_that_diverge_all_raise_at_one_round_and_the_anchor_can_be_saved(tmp_path: Path) -> None:
    (first, rounds, anchors), *others = processes(diverging, 2, tmp_path)
    assert "rounds 0, 1, 2: the mean of the ranks' weight changes was not finite" in first
    assert rounds == 3
    assert equal(anchors)
    for said, made, found in others:
        assert (said, made) == (first, rounds)
        assert equal([*anchors, *found])
