# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The paired probe: it ranks what it should, and leaves no trace."""

from collections.abc import Callable

import pytest
import torch

from gravac.compressors import quantize, topk
from gravac.lab.probe import probe

Parts = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[int, int], torch.Tensor], Callable[[], float]]


def parts(rate: float = 0.05) -> Parts:
    """A net with dropout that fits a linear map, some steps into training."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 32)
    )
    true = torch.randn(32, 32) / 6
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def loss(step: int, rank: int) -> torch.Tensor:
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(100 * step + rank))
        return torch.nn.functional.mse_loss(model(x), x @ true)

    def score() -> float:
        x = torch.randn(256, 32, generator=torch.Generator().manual_seed(9))
        with torch.no_grad():
            return float(torch.nn.functional.mse_loss(model.eval()(x), x @ true))

    for step in range(5):
        optimizer.zero_grad()
        loss(10_000 + step, 0).backward()
        optimizer.step()
    return model, optimizer, loss, score


def test_what_keeps_more_is_worth_more_and_eight_bits_nearly_all() -> None:
    fine, coarse = probe(*parts(), [(quantize(8), 4), (topk(values="float32"), 100)], steps=30, repeats=2)
    assert fine.efficiency == pytest.approx(1.0, abs=0.1)
    assert coarse.efficiency < 0.9 * fine.efficiency
    assert fine.gain > 0.99 > coarse.gain
    assert fine.low <= fine.efficiency <= fine.high
    assert 3 < fine.wire_ratio < 4


def test_all_is_put_back() -> None:
    model, optimizer, loss, score = parts()
    model.train()
    before = [value.clone() for value in model.state_dict().values()]
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    momentum = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    drawn = torch.random.get_rng_state()
    probe(model, optimizer, loss, score, [(topk, 10)], steps=3, repeats=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert all(torch.equal(s["momentum_buffer"], m) for s, m in zip(optimizer.state.values(), momentum, strict=True))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    assert model.training
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert [group["lr"] for group in optimizer.param_groups] == [0.05]


def test_where_dense_does_not_learn_it_says_so() -> None:
    model, optimizer, loss, score = parts(rate=50.0)
    with pytest.raises(ValueError, match=r"dense steps changed the score .*; use more steps, a lower learning rate"):
        probe(model, optimizer, loss, score, [(topk, 10)], steps=5, repeats=1)
