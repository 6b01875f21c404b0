# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of ranks in memory: what they come to, when exchanged, saved or taken up by other ranks."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gravac import (
    AdaptiveCompressor,
    Goodput,
    GraVAC,
    SettingsError,
    Static,
    merge_states,
    topk,
)
from gravac.candidate import Candidate, Forecast
from gravac.modes.outer.candidates import outer_efficiency
from gravac.modes.outer.sgd import OuterSGD
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import (
    FOUR_BITS,
    MOMENTUM,
    SGD,
    Ranks,
    averaged,
    equal,
    flat,
    inner_step,
    network,
    saved,
    with_statistics,
)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_one_step_a_round_is_gradient_averaging(ranks: int) -> None:
    trained = Ranks(ranks).train(12)
    for weights in trained.weights:
        torch.testing.assert_close(weights, averaged(ranks, 12))


def test_an_outer_step_of_rate_1_goes_to_the_mean_of_the_ranks_weights() -> None:
    alone = [network() for _ in range(3)]
    for rank, module in enumerate(alone):
        optimizer = SGD(module.parameters())
        for step in range(5):
            inner_step(module, optimizer, step, rank)
    mean = torch.stack([flat(module) for module in alone]).mean(0)
    for weights in Ranks(3, every=5).train(5).weights:
        torch.testing.assert_close(weights, mean)


@example(ranks=3, every=4, delay=2, mixing=0.5)
@example(ranks=2, every=3, delay=5, mixing=None)
@example(ranks=2, every=5, delay=5, mixing=0.0)
@given(
    ranks=st.integers(1, 3),
    every=st.integers(1, 7),
    delay=st.integers(0, 5),
    mixing=st.sampled_from([None, 0.0, 0.5]),
)
def test_anchors_are_the_same_on_all_ranks(ranks: int, every: int, delay: int, mixing: float | None) -> None:
    when = {"every": every, "delay": delay, "mixing": mixing}
    trained = Ranks(ranks, outer=MOMENTUM, **when, **FOUR_BITS).train(16)
    assert equal(trained.anchors)
    assert trained.outer[0].rounds == 16 // every
    trained.synchronize()
    assert equal(trained.anchors)
    assert mixing or equal(trained.weights)


@pytest.mark.parametrize(("every", "delay"), [(4, 2), (3, 3), (2, 5), (5, 2)])
def test_nothing_is_lost_of_what_is_learned_behind_a_delay(every: int, delay: int) -> None:
    """One rank's anchor, at rate 1, goes to where it was: then nothing happens but training."""
    when = {"every": every, "delay": delay, "mixing": None}
    alone = averaged(1, 20)
    torch.testing.assert_close(Ranks(1, **when).train(20).weights[0], alone)
    lost = Ranks(1, **{**when, "mixing": 0.0}).train(20).weights[0]
    assert not torch.allclose(lost, alone)


def test_shared_weights_put_back_what_a_rank_has() -> None:
    trained = Ranks(2, every=4, **FOUR_BITS).train(6)
    before = trained.weights
    assert not equal(before)
    assert equal(trained.anchors)
    assert all(map(torch.equal, before, trained.weights))


def test_what_was_not_sent_is_sent_later() -> None:
    """Residual and mean together are what all ranks had to send: the law of error feedback, of pseudo-gradients."""
    settings = {"base": topk, "controller": Static(cf=10), "cf_range": (10, 10), "every": 3}
    trained = Ranks(2, **settings).train(9)
    start = flat(network())
    moved = start - trained.anchors[0]  # the sum of all means that came
    residuals = [outer._engine.averager.residuals.by_name for outer in trained.outer]
    anchor = trained.outer[0]._anchor.weights
    left = torch.stack(
        [
            torch.cat([one.get(name, torch.zeros_like(weight)).flatten() for name, weight in anchor.items()])
            for one in residuals
        ]
    ).mean(0)
    progress = _progress(trained, 9)
    torch.testing.assert_close(moved + left, progress, atol=1e-5, rtol=1e-4)


def _progress(trained: Ranks, steps: int) -> torch.Tensor:
    """The mean over ranks of all pseudo-gradients, as another run of the same ranks has them."""
    again = Ranks(2, base=topk, controller=Static(cf=10), cf_range=(10, 10), every=3)
    total = torch.zeros_like(flat(network()))
    for _ in range(steps // 3):
        before = again.weights
        for _ in range(3):
            for rank, (module, inner) in enumerate(zip(again.modules, again.inner, strict=True)):
                inner_step(module, inner, again.made, rank)
            again.made += 1
            if again.made % 3 == 0:
                total += torch.stack([b - w for b, w in zip(before, again.weights, strict=True)]).mean(0)
            for outer in again.outer:
                outer.leave()
            again.lockstep.run()
            for outer in again.outer:
                outer.arrive()
    return total


@example(at=6, every=4, delay=3, inner=partial(torch.optim.AdamW, lr=1e-2))
@example(at=5, every=2, delay=1, inner=SGD)
@given(
    at=st.integers(1, 14),
    every=st.integers(1, 6),
    delay=st.integers(0, 3),
    inner=st.sampled_from([SGD, partial(torch.optim.AdamW, lr=1e-2)]),
)
def test_a_run_taken_up_is_the_run_that_went_on(at: int, every: int, delay: int, inner: Any) -> None:
    how = {"every": every, "delay": delay, "outer": MOMENTUM, "inner": inner, **FOUR_BITS}
    whole = Ranks(2, **how).train(at)
    states = [saved(outer.state_dict()) for outer in whole.outer]
    whole.train(7)
    again = Ranks(2, **how)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.made = at
    again.train(7)
    assert all(map(torch.equal, whole.weights, again.weights))
    assert all(map(torch.equal, whole.anchors, again.anchors))
    assert whole.outer[0].history == again.outer[0].history


@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_begins_a_round_at_the_anchor(ranks: int) -> None:
    before = Ranks(2, every=4, **FOUR_BITS).train(6)
    merged = merge_states([saved(outer.state_dict()) for outer in before.outer])
    after = Ranks(ranks, every=4, **FOUR_BITS)
    for outer in after.outer:
        outer.load_state_dict(merged)
    assert all(torch.equal(weights, before.anchors[0]) for weights in (*after.weights, *after.anchors))
    assert equal(after.train(9).anchors)


def test_buffers_are_averaged_and_counters_are_not() -> None:
    apart = Ranks(2, every=100, make=with_statistics).train(4)
    together = Ranks(2, every=4, make=with_statistics).train(4)
    mean = torch.stack([module[1].running_var for module in apart.modules]).mean(0)
    for module in together.modules:
        torch.testing.assert_close(module[1].running_var, mean)
        assert module[1].num_batches_tracked == 4
    assert equal(together.anchors)


def test_buffers_may_stay_each_ranks_own() -> None:
    trained = Ranks(2, every=4, make=with_statistics, local_buffers=["1"]).train(4)
    assert not equal([module[1].running_mean for module in trained.modules])
    assert equal([module[1].weight for module in trained.modules])


def test_weights_of_sixteen_bit_have_anchors_of_thirty_two() -> None:
    trained = Ranks(2, every=3, make=lambda: network().to(torch.bfloat16), **FOUR_BITS)
    for rank, module in enumerate(trained.modules):
        for _ in range(3):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(0.25 * (rank + 1))
            trained.outer[rank].leave()
    trained.lockstep.run()
    for outer in trained.outer:
        outer.arrive()
    assert {weight.dtype for weight in trained.outer[0]._anchor.weights.values()} == {torch.float32}
    assert equal(trained.weights)


def test_goodput_chooses_how_often_too_and_alike_on_all_ranks() -> None:
    trained = Ranks(2, base="ladder", cf_range=(2, 1000), controller=Goodput(), every=(1, 20), clock=0.01).train(80)
    first, second = trained.outer
    assert first.history == second.history
    assert {record.every for record in first.history} <= {1, 2, 5, 10, 20}
    assert first.rounds < 80
    assert equal(trained.anchors)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"every": (1, 10)},
            r"every: \(1, 10\) needs .* 'static' chooses the compression factor only.* such as every=10",
        ),
        ({"every": (1, 10), "controller": GraVAC()}, r"every: \(1, 10\) needs .* 'gravac' chooses .* give one number"),
        ({"every": 0}, r"every.*give a number of steps, such as 10"),
        ({"every": (20, 10)}, r"every.*the lowest and the highest"),
        ({"every": True}, r"every.*give a number of steps"),
        ({"delay": -1}, r"delay"),
        ({"delay": "soon"}, r"delay.*'auto'"),
        ({"mixing": 1.0}, r"mixing"),
        ({"error_feedback": 2.0}, r"error_feedback"),
        ({"every": 10, "window": 20}, r"window: unknown setting .value 20.; known settings: base, cf_range"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Ranks(1, **settings)


def test_what_cannot_be_trained_so_is_refused() -> None:
    with pytest.raises(ValueError, match="module: it has no parameters to train; give a module of which some"):
        Ranks(1, make=lambda: network().requires_grad_(False))
    with pytest.raises(
        ValueError, match=r"local_buffers: .bn. is neither a buffer .*; buffers of the module: 1.running_mean"
    ):
        Ranks(1, make=with_statistics, local_buffers=["bn"])
    with pytest.raises(SettingsError, match="unknown_setting"):
        Ranks(1, unknown_setting=1)
    module = network()
    with pytest.raises(RuntimeError, match="no process group: call"):
        OuterByHand(module, SGD(module.parameters()), every=10)


def test_a_state_of_something_else_is_refused() -> None:
    one = Ranks(1, every=2, **FOUR_BITS).train(2).outer[0]
    state = one.state_dict()
    with pytest.raises(SettingsError, match="outer: the state is of ranks that do not train apart"):
        Ranks(1, every=2, **FOUR_BITS).outer[0].load_state_dict({k: v for k, v in state.items() if k != "outer"})
    with pytest.raises(SettingsError, match="base"):
        Ranks(1, every=2).outer[0].load_state_dict(state)
    assert isinstance(one.compressor, AdaptiveCompressor)


def test_a_closed_one_says_so() -> None:
    (one,) = Ranks(1).train(1).outer
    one.close()
    one.close()
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        one.step()


@pytest.mark.parametrize("every", [1, 4, 20])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_by_default_ranks_go_on_from_the_mean_of_their_weights_however_far_apart_exchanges_are(
    ranks: int, every: int
) -> None:
    by_default, mean = (Ranks(ranks, every=every, **how).train(20) for how in ({"outer": OuterSGD}, {}))
    assert equal([*by_default.weights, *mean.weights])


def test_an_outer_rate_that_is_given_stays() -> None:
    anchor = torch.nn.Parameter(torch.ones(1))
    outer = OuterSGD([anchor], rate=0.5)
    anchor.grad = torch.ones(1)
    outer.step()
    assert anchor.item() == 0.5


def test_momentum_of_the_default_outer_optimizer_is_nesterovs() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    OuterSGD([weight], momentum=0.5).step()
    assert weight.item() == -1.5, "the gradient, and half of the momentum that has it already"


@given(st.floats(0.05, 1), st.integers(2, 100), st.integers(0, 50), st.integers(1, 50), st.integers(2, 32))
def test_fewer_exchanges_later_ones_more_loss_and_more_ranks_are_never_worth_more(
    loss: float, every: int, delay: int, more: int, world: int
) -> None:
    base = Candidate("hook", "any", 10.0)
    lossy, dense = Forecast(base, 10.0, efficiency=loss), Forecast(base, 10.0)
    own, waits = (outer_efficiency(lossy, every, steps, world).efficiency for steps in (delay, 0))
    assert 0 <= outer_efficiency(lossy, every + more, 0, world).efficiency <= waits
    assert outer_efficiency(lossy, more * every, more * delay, world).efficiency <= own  # in flight for the same share
    assert outer_efficiency(lossy, every, delay + more, world).efficiency <= own
    assert outer_efficiency(lossy, every, delay, world + more).efficiency <= own
    assert own <= loss * outer_efficiency(dense, every, delay, world).efficiency + 1e-4
