# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A NaN or an infinity on one rank: no anchor takes it, the rank starts again, all ranks train on, or all raise."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from gravac import Goodput, Static, dense, topk
from gravac.engine.agreement import gain
from gravac.modes.outer.not_finite import NotFiniteError
from tests.outer.ranks import FOUR_BITS, MOMENTUM, Ranks, equal, finite, flat, inner_step, network, saved

ADAMW = partial(torch.optim.AdamW, lr=1e-2)
SGD_MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
TOP_K: dict[str, Any] = {"base": topk, "controller": Static(cf=10), "cf_range": (10, 10)}
DENSE: dict[str, Any] = {"base": dense, "controller": Static(cf=1), "cf_range": (1, 2)}

Hurt = Callable[["Hurting", int], None]


class Hurting(Ranks):
    """Ranks, one of which is hurt in some steps; warnings are kept."""

    def __init__(self, ranks: int, hurt: Hurt, **settings: Any) -> None:
        super().__init__(ranks, **settings)
        self.hurt = hurt
        self.warned: list[str] = []

    def before_leaving(self, rank: int) -> None:
        self.hurt(self, rank)

    def train(self, steps: int) -> "Hurting":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            super().train(steps)
        self.warned += [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
        return self


def nan_gradient(at: int, hurt_rank: int = 1, everywhere: bool = False) -> Hurt:
    """Make one gradient, or all, NaN on one rank in the step ``at``, and have the inner optimizer apply it."""

    def hurt(ranks: Hurting, rank: int) -> None:
        if (rank, ranks.made) == (hurt_rank, at):
            for parameter in [*ranks.modules[rank].parameters()][:: 1 if everywhere else 1000]:
                parameter.grad.fill_(math.nan)  # type: ignore[union-attr]
            ranks.inner[rank].step()

    return hurt


def batch_norm() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(48, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Linear(32, 8)
    return torch.nn.Sequential(*layers)


def copied(kept: Any) -> Any:
    """Copies of tensors within dictionaries and lists."""
    if isinstance(kept, torch.Tensor):
        return kept.detach().clone()
    if isinstance(kept, dict):
        return {key: copied(one) for key, one in kept.items()}
    return kept


def known(ranks: Ranks, rank: int) -> dict[str, torch.Tensor]:
    """All that a refused round must leave as it was."""
    outer = ranks.outer[rank]
    names = {anchor: name for name, anchor in outer._anchor.weights.items()}
    momenta = {
        f"{key} of {names[anchor]}": one for anchor, kept in outer.outer.state.items() for key, one in kept.items()
    }
    buffers = {f"buffer {name}": anchor for name, anchor in outer._buffers.anchors.items()}
    residuals = {f"residual {name}": one for name, one in outer._engine.averager.residuals.by_name.items()}
    return copied({**outer._anchor.weights, **momenta, **buffers, **residuals})


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return before.keys() == after.keys() and all(
        torch.equal(one.view(torch.uint8), after[name].view(torch.uint8))
        if one.dim()
        else torch.equal(one, after[name])
        for name, one in before.items()
    )


LEAVE_ANCHORS: list[dict[str, Any]] = [
    DENSE,
    FOUR_BITS,
    TOP_K,
    {**TOP_K, "make": batch_norm},
    {**DENSE, "make": batch_norm},
]


@pytest.mark.parametrize(
    ("settings", "host_looks"),
    [
        *((settings, False) for settings in LEAVE_ANCHORS),
        *((settings, True) for settings in LEAVE_ANCHORS),
    ],
)
def test_nan_on_one_rank_leaves_every_anchor_as_it_was(settings: dict[str, Any], host_looks: bool) -> None:
    ranks = Hurting(
        3, nan_gradient(at=9), host_looks=host_looks, every=3, outer=MOMENTUM, inner=ADAMW, **settings
    ).train(11)
    assert ranks.outer[0].rounds == 3
    before, rounds = [known(ranks, rank) for rank in range(3)], ranks.outer[0].rounds
    ranks.train(1)
    assert ranks.outer[0].rounds == rounds + 1
    for rank in range(3):
        assert same(before[rank], known(ranks, rank)), rank
    lost = 1 if host_looks else 2  # rounds until the host has seen it
    ranks.train(3 * 4)
    assert [outer.skipped for outer in ranks.outer] == [lost] * 3
    assert equal(ranks.anchors)
    assert all(map(finite, [*ranks.anchors, *ranks.weights]))
    assert not same(before[0], known(ranks, 0))


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize(("delay", "every"), [(2, 4), (0, 4), (3, 3)])
@pytest.mark.parametrize(
    "cases",
    [
        [(8, None, ADAMW), (10, 0.5, SGD_MOMENTUM), (10, 0.0, ADAMW)],
        pytest.param([*itertools.product((8, 10), (None, 0.0, 0.5), (ADAMW, SGD_MOMENTUM))], marks=pytest.mark.long),
    ],
    ids=len,
)
def test_ranks_heal_behind_a_delay_too(
    cases: list[tuple[int, float | None, Any]], delay: int, every: int, host_looks: bool
) -> None:
    for at, mixing, inner in cases:
        if mixing == 0 and delay == every:
            continue  # whatever a rank learns is overwritten just before it leaves
        when = {"delay": delay, "every": every, "mixing": mixing, "inner": inner}
        ranks = Hurting(2, nan_gradient(at), host_looks=host_looks, outer=MOMENTUM, **when, **FOUR_BITS).train(32)
        assert 1 <= ranks.outer[0].skipped == ranks.outer[1].skipped <= 2
        assert equal(ranks.anchors)
        assert all(map(finite, [*ranks.anchors, *ranks.weights])), (when, at)
        assert ranks.warned


@pytest.mark.parametrize("host_looks", [True, False])
def test_what_a_healthy_rank_learned_leaves_with_the_next_round(host_looks: bool) -> None:
    """At rate 1, dense, the anchor goes to the mean of weights that were never interrupted."""
    ranks = Hurting(2, nan_gradient(at=5), host_looks=host_looks, every=3, **DENSE).train(5)
    alone = Ranks(1, every=1000, **DENSE)  # rank 0, if nobody had exchanged since
    alone.modules[0].load_state_dict(ranks.modules[0].state_dict())
    alone.made = 5
    ranks.train(1)
    alone.train(1)
    torch.testing.assert_close(ranks.weights[0], alone.weights[0], rtol=0, atol=0)


@pytest.mark.parametrize("host_looks", [True, False])
def test_a_mended_rank_starts_from_the_anchor_with_zeros_in_its_inner_optimizer(host_looks: bool) -> None:
    ranks = Hurting(2, nan_gradient(at=5), host_looks=host_looks, every=3, inner=ADAMW, **DENSE).train(6)
    if not host_looks:
        ranks.train(5)  # the host reads the verdict where the round after the next one begins
        assert not finite(ranks.weights[1])
        ranks.train(1)
    state = ranks.inner[1].state
    assert all(finite(one) for kept in state.values() for one in kept.values())
    assert {float(kept["step"]) for kept in state.values()} == {7.0 if host_looks else 13.0}, "counts stay"
    weight = next(ranks.modules[1].parameters())
    assert not state[weight]["exp_avg"].any()
    assert torch.equal(ranks.weights[1], ranks.anchors[1])


def test_warnings_name_round_rank_and_tensor() -> None:
    ranks = Hurting(3, nan_gradient(at=9), every=3, inner=ADAMW, **FOUR_BITS).train(14)
    by_rank = {rank: [text for text in ranks.warned if f"rank {rank} " in text.split(";")[1]] for rank in range(3)}
    assert [len(texts) for texts in by_rank.values()] == [1, 1, 1]
    assert all("round 3: the mean over the ranks is not finite" in text for text in ranks.warned)
    assert "rank 1 is a cause: some of its tensors are not finite: 0.weight" in by_rank[1][0]
    assert "exp_avg of 0.weight" in by_rank[1][0]
    assert "keeps its own weights" in by_rank[0][0]
    two = Hurting(2, nan_gradient(at=9), every=3, inner=ADAMW, **FOUR_BITS).train(14)
    assert any("round 3: " in text and "the cause is rank 1" in text for text in two.warned)
    last = Hurting(2, nan_gradient(at=11), every=3, inner=ADAMW, **FOUR_BITS).train(14)
    assert any(text.endswith("not finite: exp_avg of 0.weight, exp_avg_sq of 0.weight") for text in last.warned)


def test_warnings_that_raise_leave_a_run_that_goes_on() -> None:
    ranks = Hurting(2, nan_gradient(at=5), every=3, **FOUR_BITS).train(5)
    raised = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rank in range(2):
            ranks.hurt(ranks, rank)
            ranks.outer[rank].leave()
        ranks.lockstep.run()
        for outer in ranks.outer:
            with pytest.raises(RuntimeWarning, match="round 1"):
                outer.arrive()
            raised += 1
    ranks.made += 1
    ranks.train(12)
    assert (raised, [outer.skipped for outer in ranks.outer]) == (2, [1, 1])
    assert equal(ranks.anchors)
    assert all(map(finite, ranks.weights))


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("settings", [DENSE, TOP_K])
def test_nan_in_a_buffer_of_one_rank_is_replaced_and_its_weights_stay(
    settings: dict[str, Any], host_looks: bool
) -> None:
    def hurt(ranks: Hurting, rank: int) -> None:
        if (rank, ranks.made) == (1, 8):
            ranks.modules[1][1].running_var[3] = math.nan

    ranks = Hurting(2, hurt, host_looks=host_looks, every=3, make=batch_norm, **settings).train(12)
    unhurt = Hurting(2, lambda *_: None, host_looks=host_looks, every=3, make=batch_norm, **settings).train(12)
    assert all(map(finite, ranks.anchors)), "also the mean over the ranks whose buffer is finite"
    for rank in range(2):
        weights = [known(one, rank) for one in (ranks, unhurt)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in ranks.outer[rank]._anchor.weights)
    ranks.train(9)
    assert [outer.skipped for outer in ranks.outer] == [0, 0]
    assert all(map(finite, ranks.weights))
    assert equal(ranks.anchors)
    assert [
        text for text in ranks.warned if "buffer 1.running_var" in text and "local_buffers=['1.running_var']" in text
    ]


def overflowing(ranks: Hurting, rank: int) -> None:
    """Weights that are finite, and so far from the anchor that the sum over three ranks is not."""
    outer = ranks.outer[rank]
    with torch.no_grad():
        for name, weights in ranks.modules[rank].named_parameters():
            weights.copy_(outer._anchor.weights[name])
            weights.view(-1)[0] = -3e38


def diverging(ranks: Hurting, rank: int) -> None:
    nan_gradient(ranks.made, everywhere=True)(ranks, rank)


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("hurt", [overflowing, diverging])
@pytest.mark.parametrize("when", [{}, {"delay": 1}])
def test_three_refused_rounds_on_end_raise_on_all_ranks_and_the_anchor_is_good(
    when: dict[str, Any], hurt: Hurt, host_looks: bool
) -> None:
    settings = {"host_looks": host_looks, "every": 2, "outer": MOMENTUM, "inner": ADAMW, **when, **DENSE}
    world = 3 if hurt is overflowing else 2  # among two, means are divided before they are summed
    ranks = Hurting(world, lambda *_: None, **settings).train(8)
    good = ranks.anchors
    ranks.hurt = hurt
    raised: list[tuple[int, str]] = []
    while not raised:
        assert ranks.made < 24
        for step in raising_steps(ranks):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    step()
                except NotFiniteError as failure:
                    raised.append((ranks.outer[0].rounds, str(failure)))
    assert len(raised) == world
    assert len({*raised}) == 1, "all ranks, at the same round"
    mended = not host_looks and hurt is diverging  # just before round 6 left
    assert f"rounds 4, 5, {7 if mended else 6}: the mean of the ranks' weight changes was not finite" in raised[0][1]
    ranks.lockstep.run()
    anchors = ranks.anchors
    assert all(map(finite, anchors))
    assert equal(anchors)
    assert mended or all(map(torch.equal, good, anchors))
    states = [saved(outer.state_dict()) for outer in ranks.outer]
    again = Ranks(world, **settings)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    assert all(map(torch.equal, anchors, again.anchors))
    assert [outer.skipped for outer in again.outer] == [outer.skipped for outer in ranks.outer]
    ranks.hurt = lambda *_: None
    for outer, module in zip(ranks.outer, ranks.modules, strict=True):
        with outer.shared_weights():
            weights = copied(dict(module.state_dict()))
        module.load_state_dict(weights)
    ranks.train(16)
    assert all(map(finite, [*ranks.weights, *ranks.anchors]))
    assert equal(ranks.anchors)
    assert not torch.equal(anchors[0], ranks.anchors[0])


def with_a_large_weight() -> torch.nn.Module:
    module = network()
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = 3e38
    return module


@pytest.mark.parametrize("host_looks", [True, False])
def test_finite_weights_whose_distance_from_the_anchor_is_not_finite_restart_from_the_anchor(host_looks: bool) -> None:
    def hurt(ranks: Hurting, rank: int) -> None:
        ranks.outer[rank]._anchor.reset_parameters()
        if (rank, ranks.made) == (1, 0):
            overflowing(ranks, rank)

    ranks = Hurting(2, hurt, host_looks=host_looks, make=with_a_large_weight, **DENSE).train(4)
    assert equal([*ranks.anchors, *ranks.weights, flat(with_a_large_weight())])
    overflowed = "rank 1 is a cause: the distance of its weights from the anchor overflowed; its weights restart from"
    assert any(overflowed in text for text in ranks.warned)


def raising_steps(ranks: Hurting) -> Iterator[Callable[[], None]]:
    """The halves of a step of each rank, in the order in which ranks in memory make them."""
    for rank, outer in enumerate(ranks.outer):
        inner_step(ranks.modules[rank], ranks.inner[rank], ranks.made, rank)
        ranks.before_leaving(rank)
        yield outer.leave
    ranks.lockstep.run()
    for outer in ranks.outer:
        yield outer.arrive
    ranks.made += 1


@pytest.mark.parametrize("host_looks", [True, False])
def test_a_refused_round_is_in_no_window_and_its_gain_is_not_1(host_looks: bool) -> None:
    settings = {"base": topk, "controller": Goodput(window=50, trial=50), "cf_range": (10, 10), "every": 2}
    quiet = Ranks(2, host_looks=host_looks, clock=0.1, **settings)
    ranks = Hurting(2, nan_gradient(at=11), host_looks=host_looks, clock=0.1, **settings).train(9)
    gains, steps = [], []
    for _ in range(8):
        ranks.train(2)
        gains.append(ranks.outer[0].gain)
        steps.append(ranks.outer[0]._engine.settled.controller.window.steps)
    quiet.train(25)
    lost = 1 if host_looks else 2
    assert gains.count(None) == lost
    assert steps[-1] == quiet.outer[0]._engine.settled.controller.window.steps - 2 * lost


def test_a_gain_that_is_not_finite_is_not_1() -> None:
    assert gain(math.nan, 0.0) is None
    assert gain(0.0, math.nan) is None
    assert gain(math.inf, math.inf) is None
    assert gain(0.0, 0.0) == 1.0


@pytest.mark.parametrize("outer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_other_outer_optimizers_are_left_as_they_were(outer: Any) -> None:
    for host_looks in (True, False):
        settings = {"every": 3, "outer": outer, "host_looks": host_looks, **FOUR_BITS}
        ranks = Hurting(2, nan_gradient(at=8), **settings).train(8)
        before = known(ranks, 0)
        ranks.train(1)
        assert same(before, known(ranks, 0))


def test_a_first_round_that_is_refused_leaves_nothing_behind() -> None:
    for host_looks in (True, False):
        ranks = Hurting(2, nan_gradient(at=1), every=3, outer=MOMENTUM, host_looks=host_looks, **DENSE).train(3)
        assert torch.equal(ranks.anchors[0], torch.cat([one.flatten() for one in network().state_dict().values()]))
        ranks.train(12)
        assert equal(ranks.anchors)
        assert all(map(finite, [*ranks.anchors, *ranks.weights]))


class Masked(torch.nn.Module):
    """A layer with a mask of minus infinities, as causal attention has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("between", [{"delay": 0}, {"delay": 2, "mixing": 0.5}])
def test_a_mask_of_infinities_stays_as_it_is_and_no_round_is_refused(between: dict[str, Any]) -> None:
    ranks = Hurting(2, lambda *_: None, make=Masked, **{**DENSE, "every": 4, **between}).train(16)
    assert [outer.skipped for outer in ranks.outer] == [0, 0]
    assert not ranks.warned
    assert all(torch.equal(module.mask, Masked().mask) for module in ranks.modules)


def test_a_rank_that_is_not_finite_when_it_is_saved_is_saved_as_it_starts_again_and_loads() -> None:
    settings = {**DENSE, "every": 10, "inner": ADAMW}
    ranks = Hurting(2, nan_gradient(7), **settings).train(8)
    with pytest.warns(RuntimeWarning, match="gravac repaired this rank: some of its tensors are not finite"):
        states = [outer.state_dict() for outer in ranks.outer]
    again = Hurting(2, lambda *_: None, **settings)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.made = 8
    again.train(12)
    assert equal(again.anchors)
    assert torch.isfinite(again.anchors[0]).all()


def test_an_optimizer_that_keeps_other_things_of_other_parameters_is_loaded() -> None:
    settings = {**DENSE, "every": 4, "inner": partial(torch.optim.Adafactor, lr=1e-2)}
    ranks = Ranks(2, **settings).train(6)
    states = [saved(outer.state_dict()) for outer in ranks.outer]
    again = Ranks(2, **settings)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.made = 6
    assert all(map(torch.equal, again.train(6).weights, ranks.train(6).weights))
