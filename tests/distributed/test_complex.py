# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Complex parameters are refused by name wherever they may come in, and never averaged by their real parts alone."""

import re

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.lockstep import Lockstep
from tests.distributed.test_alike import heard
from tests.outer.ranks import Ranks
from tests.policies import adaptive
from tests.ranks import processes

REMEDY = (
    r"gradients cannot be averaged, .*; train torch.view_as_real\(parameter\) in place of the parameter, or exclude"
)


class Rotated(torch.nn.Module):
    """A layer with a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(48, 8)
        self.turn = torch.nn.ParameterDict({"phase": torch.randn(8, 8, dtype=torch.complex64)})

    @property
    def phase(self) -> torch.nn.Parameter:
        return self.turn["phase"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x).to(torch.complex64) @ self.phase).abs()


def compressor() -> AdaptiveCompressor:
    return adaptive(topk, controller=Static(cf=10), dense_below=0)


def test_the_door_refuses_complex_parameters_and_gradients_by_name() -> None:
    one_rank = Lockstep(1).executors[0]
    refused, taken = compressor(), compressor()
    with pytest.raises(TypeError, match=f"turn.phase: complex64 {REMEDY}"):
        refused.attach_parameters(dict(Rotated().named_parameters()), executor=one_rank)
    engine = refused.attach_parameters(
        {"w": torch.ones(64, 64)}, executor=one_rank
    )  # what was refused has changed nothing
    engine.begin()
    with pytest.raises(TypeError, match=f"v: complex128 {REMEDY}"):
        engine.ready([("v", torch.ones(64, 64, dtype=torch.complex128))])
    with pytest.raises(TypeError, match=f"turn.phase: complex64 {REMEDY}"):
        taken.bind(Rotated())
    taken.bind(torch.nn.Linear(4, 4))


def test_outer_steps_refuse_complex_parameters_by_name() -> None:
    with pytest.raises(TypeError, match=f"turn.phase: complex64 {REMEDY}"):
        Ranks(1, make=Rotated)


def frozen() -> torch.nn.Module:
    module = Rotated()
    module.phase.requires_grad_(False)
    return module


def test_a_complex_parameter_that_is_not_trained_is_left_alone() -> None:
    before = frozen().phase
    assert torch.equal(Ranks(2, make=frozen).train(2).modules[1].phase, before)  # type: ignore[arg-type]


def over_gloo(rank: int, world: int) -> tuple[list[str], torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(rank))
    said = [heard(lambda: compressor().attach(DistributedDataParallel(Rotated())))]
    said.append(heard(lambda: compressor().bind(DistributedDataParallel(Rotated()))))
    hooked = DistributedDataParallel(Rotated())
    hooked.register_comm_hook(None, compressor().hook)
    said.append(heard(lambda: hooked(x).sum().backward()))

    module = Rotated()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["turn.phase"])
    ddp = DistributedDataParallel(module)
    with compressor() as one:
        one.attach(ddp)
        ddp(x).square().mean().backward()
        one.ledger  # noqa: B018 (waits)
    assert module.linear.weight.grad is not None and module.phase.grad is not None
    return said, module.linear.weight.grad, module.phase.grad


def test_ddp_refuses_complex_parameters_by_name_and_averages_beside_those_left_out() -> None:
    (said, averaged, own), (same, also_averaged, others) = processes(over_gloo, 2)
    for at_attach, at_bind, at_backward in (said, same):
        assert re.match(f"TypeError: turn.phase: complex64 {REMEDY}", at_attach)
        assert re.match(f"TypeError: turn.phase: complex64 {REMEDY}", at_bind)
        assert re.search(f"TypeError: parameter.: complex64 {REMEDY}", at_backward)
    assert torch.equal(averaged, also_averaged)
    assert not torch.equal(own, others)
