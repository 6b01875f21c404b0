# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs with unusual backwards: dense hook steps leave the gradients of plain DDP, and each exchange is one step."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gravac import AdaptiveCompressor, Static, topk
from tests.distributed.training import batch, network
from tests.ranks import processes

Backward = Callable[[DistributedDataParallel, int, int], None]


def plainly(ddp: DistributedDataParallel, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    cross_entropy(ddp(x.to(next(ddp.parameters()).dtype)), y).backward()


def along_a_retained_graph(ddp: DistributedDataParallel, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    loss = cross_entropy(ddp(x), y)
    loss.backward(retain_graph=True)
    with ddp.no_sync():
        loss.backward()


def with_a_gradient_penalty(ddp: DistributedDataParallel, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    outputs = ddp(x.requires_grad_())
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    (cross_entropy(outputs, y) + slope.square().mean()).backward()


def after_a_gradient_of_the_input_alone(ddp: DistributedDataParallel, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    for _ in range(rank):  # another number of times on each rank
        torch.autograd.grad(ddp.module(x.requires_grad_()).sum(), x)
    cross_entropy(ddp(x.detach()), y).backward()


class TwoHeads(torch.nn.Module):
    """Two models of the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network(2), network(3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x), self.second(x)


def in_parts(ddp: DistributedDataParallel, rank: int, step: int) -> None:
    """Run a backward for one part of the parameters after the other."""
    x, y = batch(rank, step)
    for outputs in ddp(x):
        cross_entropy(outputs, y).backward()


class Tied(torch.nn.Module):
    """Two layers of one weight, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(96, 96), torch.nn.Linear(96, 96)
        self.last.weight = self.first.weight
        self.frozen = torch.nn.Linear(96, 96).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.frozen(torch.tanh(self.first(x))))


class Checkpointed(torch.nn.Module):
    """Layers that are computed again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(96, 96) for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        x = x.requires_grad_()
        for layer in self.layers:
            x = torch.tanh(checkpoint(layer, x, use_reentrant=self.reentrant))
        return x


PROGRAMS: dict[str, tuple[Callable[[], torch.nn.Module], Backward]] = {
    "retained graph": (network, along_a_retained_graph),
    "gradient penalty": (network, with_a_gradient_penalty),
    "gradient of the input": (network, after_a_gradient_of_the_input_alone),
    "tied and frozen": (Tied, plainly),
    "checkpointing": (lambda: Checkpointed(False), plainly),
    "reentrant checkpointing": (lambda: Checkpointed(True), plainly),
    "in parts": (TwoHeads, in_parts),
    "float64": (lambda: network().double(), plainly),
}


def trained(make: Callable[[], torch.nn.Module], backward: Backward, rank: int, hooked: bool) -> list[torch.Tensor]:
    """Return all gradients of three steps, and the number of steps that gravac counted if it is attached."""
    ddp = DistributedDataParallel(make(), bucket_cap_mb=0.03)
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1), native=False)
    if hooked:
        compressor.attach(ddp)
    seen = []
    for step in range(3):
        ddp.zero_grad()
        backward(ddp, rank, step)
        seen.append(torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None]))
    seen.append(torch.tensor(compressor.state_dict()["step"] if hooked else 3))
    compressor.close()
    return seen


def compared(rank: int, world: int) -> dict[str, list[bool]]:
    return {
        name: [
            torch.equal(gradient, expected)
            for gradient, expected in zip(*(trained(*program, rank, hooked) for hooked in (True, False)), strict=True)
        ]
        for name, program in PROGRAMS.items()
    }


def test_dense_hook_steps_leave_the_gradients_of_plain_ddp_and_count_each_exchange_once() -> None:
    for alike in processes(compared, 2):
        assert alike == {name: [True] * 4 for name in PROGRAMS}


def told(rank: int, world: int) -> list[Any]:
    ddp = DistributedDataParallel(network(2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with AdaptiveCompressor(topk, controller=Static(cf=10), native=False) as compressor:
        compressor.attach(ddp, optimizer, scaler)
        for step in range(2):
            x, y = batch(rank, step)
            with compressor.no_sync():
                scaler.scale(cross_entropy(ddp(x), y)).backward()
            scaler.scale(cross_entropy(ddp(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        steps = compressor.state_dict()["step"]
        measurement = compressor._engine.jobs._last_recording
    assert measurement is not None
    times = measurement.forward_began, measurement.optimizer_ended, measurement.backward_ended
    return [steps, measurement.learning_rate, measurement.loss_scale, None not in times]


def test_times_learning_rate_and_loss_scale_are_measured_and_accumulating_backwards_are_no_steps() -> None:
    assert processes(told, 2) == [[2, 0.25, 8.0, True]] * 2
