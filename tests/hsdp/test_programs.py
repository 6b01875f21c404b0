# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that people train with, on two replicas by FSDP2: as ``tests/modes/test_programs.py``.

A replica is on one rank, or on two with ``make test-all``.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from gravac import AdaptiveCompressor
from tests.hsdp.test_outer import same_over_replicas
from tests.hsdp.training import WIDTH, mesh_of, sharded, shards_of
from tests.modes.scripted import APART, DENSE, HOOK, Entry, script
from tests.modes.test_switch import compressor_of
from tests.ranks import processes

STEPS = 11

OUTER: Entry = (*APART[:-1], 3)
"""Outer steps, in rounds of three."""


class Answer:
    """A class of the program's own, which hides a model's output."""

    def __init__(self, output: torch.Tensor) -> None:
        self.output = output


class Answering(torch.nn.Module):
    """The model in shards, which returns an ``Answer``."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = sharded(mesh_of(2))

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(self.inner(x))


def replica() -> int:
    """Return the number of this rank's replica."""
    return mesh_of(2)["replicate"].get_local_rank()


class Program:
    """Training in outer steps, with something that a program does besides.

    Args:
        name: what it does; nothing, if empty.
        plan: script of decisions.
    """

    def __init__(self, name: str, plan: Any) -> None:
        self.name = name
        self.module: Any = Answering() if name == "scaler skips" else sharded(mesh_of(2))
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        self.chance = torch.Generator().manual_seed(dist.get_rank())
        self.compressor: AdaptiveCompressor = compressor_of(plan, native=False)
        scaler = self.scaler if name == "scaler skips" else None
        self.compressor.attach(self.module, self.optimizer, scaler)
        self.right: list[bool] = []

    def step(self, step: int) -> None:
        x = torch.randn(8, WIDTH, generator=self.chance)
        if self.name == "frozen":
            for name, parameter in self.module.named_parameters():
                parameter.requires_grad_(name.startswith("1.") or not 4 <= step < 8)
        if self.name == "new optimizer" and step == 7:
            self.optimizer = torch.optim.RMSprop(self.module.parameters(), lr=1e-3, momentum=0.9)
        if self.name == "adversarial":
            for _ in range(2 + replica()):
                x = x.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self.loss(x), x)
                x = (x + 0.01 * gradient.sign()).detach()
        loss = self.loss(x)
        if self.name == "looks in between" and step % 2 == 0:
            with torch.no_grad():
                self.module(x)
        if self.name == "scaler skips":
            spoilt = replica() == 1 and step in (1, 3, 4)
            self.scaler.scale(loss * (float("inf") if spoilt else 1.0)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.optimizer.zero_grad()
        if self.name == "swaps weights" and step % 4 == 3:
            self.evaluate_zeros(x)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        output: Any = self.module(x)
        output = output.output if isinstance(output, Answer) else output
        loss: torch.Tensor = (output - x.roll(1, 1)).square().mean()
        return loss

    @torch.no_grad()
    def evaluate_zeros(self, x: torch.Tensor) -> None:
        """Evaluate the model with weights that are all zero, with which it is the identity; then go on."""
        stored = [parameter.to_local().clone() for parameter in self.module.parameters()]
        for parameter in self.module.parameters():
            parameter.to_local().zero_()
        self.right.append(torch.equal(self.module(x), x))
        for parameter, weight in zip(self.module.parameters(), stored, strict=True):
            parameter.to_local().copy_(weight)


def trained(rank: int, world: int, plan: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Train each program; return counts, whether replicas are the same, evaluations, and this rank's shards."""
    results = {}
    for name in names:
        program = Program(name, plan)
        for step in range(STEPS):
            program.step(step)
        outer: Any = program.compressor.outer
        counts = None if outer is None else (outer.ended, outer.steps)
        moments = [
            entry.to_local() if isinstance(entry, DTensor) else entry
            for state in program.optimizer.state.values()
            for _, entry in sorted(state.items())
            if isinstance(entry, torch.Tensor)
        ]
        shards = shards_of(program.module)
        flat = torch.cat([tensor.flatten() for tensor in (*shards.values(), *moments)])
        replicas_equal = same_over_replicas({"all": flat})
        results[name] = counts, replicas_equal, program.right, shards
        program.compressor.close()
    return results


NAMES = "", "frozen", "new optimizer", "adversarial", "looks in between", "scaler skips", "swaps weights"


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
def test_programs_in_outer_steps_count_alike_and_train_as_if_nobody_had_looked(world: int) -> None:
    ranks = processes(trained, world, script((0, OUTER)), NAMES)
    for results in ranks:
        _, _, _, undisturbed = results[""]
        for name, (counts, _, right, shards) in results.items():
            assert counts == (3, STEPS), name
            assert all(right) and len(right) == (2 if name == "swaps weights" else 0), name
            if name in ("looks in between", "swaps weights"):
                assert all(torch.equal(shard, undisturbed[key]) for key, shard in shards.items()), name


@pytest.mark.parametrize(
    ("plan", "world"),
    [
        (((0, HOOK),), 2),
        pytest.param(((0, HOOK),), 4, marks=pytest.mark.long),
        pytest.param(((0, OUTER), (5, DENSE)), 4, marks=pytest.mark.long),
    ],
    ids=["hook-2", "hook-4", "outer, then hook-4"],
)
def test_programs_in_the_hook_have_equal_replicas(plan: tuple[Any, ...], world: int) -> None:
    ranks = processes(trained, world, script(*plan), NAMES)
    for results in ranks:
        assert all(counts is None and equal for counts, equal, _, _ in results.values()), {
            name: (counts, equal) for name, (counts, equal, _, _) in results.items()
        }
