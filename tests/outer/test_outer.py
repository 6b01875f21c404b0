# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of ranks in memory: what they come to, whatever is late, saved or forced."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import Goodput, OuterOptimizer, SettingsError, Static, dense, quantize, topk
from gravac.exchange.lockstep import Lockstep

SGD = partial(torch.optim.SGD, lr=0.05)


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.Tanh(), torch.nn.Linear(32, 40), torch.nn.Linear(40, 8))


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, 48, generator=generator), torch.randn(16, 8, generator=generator)


class Ranks:
    """N ranks that train a small model with outer steps, in one process."""

    def __init__(self, ranks, inner=SGD, lockstep=None, module=model, **settings):
        self.lockstep = lockstep or Lockstep(ranks)
        self.modules = [module() for _ in range(ranks)]
        self.inner = [inner(one.parameters()) for one in self.modules]
        settings = {"base": dense, "cf_range": (1, 2), "controller": Static(cf=1), "every": 1, "dense_below": 0, **settings}
        self.outer = [
            OuterOptimizer(module, optimizer, executor=executor, **settings)
            for module, optimizer, executor in zip(self.modules, self.inner, self.lockstep.executors, strict=True)
        ]
        self.made = 0

    def train(self, steps):
        for _ in range(steps):
            for rank, (module, inner, outer) in enumerate(zip(self.modules, self.inner, self.outer, strict=True)):
                x, y = batch(self.made, rank)
                inner.zero_grad()
                (module(x) - y).square().mean().backward()
                inner.step()
                outer.leave()
            self.lockstep.run()
            for outer in self.outer:
                outer.arrive()
            self.made += 1
        return self

    def synchronize(self):
        for outer in self.outer:
            outer._rounds.leave_now(0.05, whole=True)
        self.lockstep.run()
        for outer in self.outer:
            outer.synchronize()

    @property
    def weights(self):
        return [torch.nn.utils.parameters_to_vector(module.parameters()).detach() for module in self.modules]

    @property
    def anchors(self):
        found = []
        for module, outer in zip(self.modules, self.outer, strict=True):
            with outer.synced():
                found.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone())
        return found


def averaged(ranks, steps):
    """Weights after steps with all ranks' mean gradient: what DistributedDataParallel does."""
    module = model()
    optimizer = SGD(module.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            x, y = batch(step, rank)
            ((module(x) - y).square().mean() / ranks).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_one_step_a_round_is_gradient_averaging(ranks):
    trained = Ranks(ranks).train(12)
    for weights in trained.weights:
        torch.testing.assert_close(weights, averaged(ranks, 12))


@given(
    ranks=st.integers(1, 3),
    every=st.integers(1, 7),
    fragments=st.integers(1, 4),
    delay=st.integers(0, 5),
    mixing=st.sampled_from([0.0, 0.5]),
)
def test_anchors_are_the_same_on_all_ranks(ranks, every, fragments, delay, mixing):
    settings = {"base": quantize(bits=4), "controller": Static(cf=8), "cf_range": (2, 100)}
    trained = Ranks(ranks, every=every, fragments=fragments, delay=delay, mixing=mixing, **settings).train(16)
    first, *others = trained.anchors
    assert all(torch.equal(first, other) for other in others)
    assert trained.outer[0].rounds == 16 // every
    trained.synchronize()
    first, *others = trained.weights
    assert fragments > 1 or mixing or all(torch.equal(first, other) for other in others)


def test_the_mean_of_weights_is_what_a_plain_outer_step_gives():
    trained = Ranks(3, every=5).train(4)
    expected = torch.stack(trained.weights)
    apart = [copy.deepcopy(module) for module in trained.modules]
    trained.train(1)
    del expected
    for rank, module in enumerate(apart):
        x, y = batch(4, rank)
        optimizer = SGD(module.parameters())
        (module(x) - y).square().mean().backward()
        optimizer.step()
    mean = torch.stack([torch.nn.utils.parameters_to_vector(m.parameters()).detach() for m in apart]).mean(0)
    for weights in trained.weights:
        torch.testing.assert_close(weights, mean)


def test_a_range_of_steps_needs_a_controller_that_chooses():
    with pytest.raises(SettingsError, match=r"every: static decides .* give one number, such as every=10"):
        Ranks(1, every=(1, 10))


def test_goodput_chooses():
    ranks = Ranks(2, base="ladder", cf_range=(2, 1000), controller=Goodput(), every=(1, 20)).train(60)
    print(ranks.outer[0].history, ranks.outer[0].every, ranks.outer[0].rounds)
    assert [o.history for o in ranks.outer][0] == ranks.outer[1].history
