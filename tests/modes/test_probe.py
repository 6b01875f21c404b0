# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The loss on fixed batches, read on real ranks: by the weights of that step, and training goes on as without it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, Static, topk
from gravac.controllers.base import Decision, Measurement
from gravac.modes.probe import Probe
from gravac.settings import SettingsError
from gravac.telemetry import StepRecord, read_jsonl
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, HOOK, NATIVE, Scripted, script
from tests.ranks import processes

TOUR = script((0, HOOK), (12, NATIVE), (27, APART), (32, HOOK))

STEPS = 54


class Probing(Scripted):
    """Asks for the loss on fixed batches every few measurements, as well as following a script."""

    asks: bool = True

    def with_probe(self, total_steps: int | None) -> "Probing":
        return self

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        made, decision = super().observe(state, measurement)
        return made, replace(decision, probe=self.asks and decision.candidate.mode != "outer" and made % 3 == 0)


class Noisy(torch.nn.Module):
    """Draws random numbers, and counts its forwards in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(2)
        self.drop = torch.nn.Dropout(0.1)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        out: torch.Tensor = self.drop(self.net(x))
        return out


def trained(rank: int, world: int, folder: Path, asks: bool) -> dict[str, Any]:
    """Train in all modes; return the weights, and each loss that the probe gave, with the number of steps before."""
    torch.manual_seed(rank)
    ddp = parallel(Noisy())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    step, read = 0, []

    def probe() -> torch.Tensor:
        x, y = batch(rank, 10**6)
        loss = torch.nn.functional.cross_entropy(ddp.module(x), y)
        read.append((step, float(loss)))
        return loss

    compressor = AdaptiveCompressor(
        topk,
        (10, 10),
        controller=Probing(script=TOUR, asks=asks),
        every=(1, 5),
        dense_below=0,
        probe=probe,
        log_dir=folder / f"rank{rank}",
    )
    compressor.attach(ddp, optimizer)
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        for half in (0, 1):  # two batches of a step, of which the second is exchanged
            ddp.require_backward_grad_sync = half == 1
            torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    compressor.close()
    return {"weights": [p.detach().clone() for p in ddp.parameters()], "read": read, "seen": float(ddp.module.seen)}


def with_probe_and_without(rank: int, world: int, folder: Path) -> list[dict[str, Any]]:
    return [trained(rank, world, folder / "with", True), trained(rank, world, folder / "without", False)]


def test_the_probe_is_read_between_steps_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (first, without), (second, _) = processes(with_probe_and_without, 2, tmp_path)
    assert not without["read"]
    assert all(torch.equal(one, other) for one, other in zip(first["weights"], without["weights"], strict=True))
    assert first["seen"] == without["seen"]
    assert [at for at, _ in first["read"]] == [at for at, _ in second["read"]]
    assert len(first["read"]) >= 5
    steps = [step for step in read_jsonl(tmp_path / "with" / "rank0" / "gravac.jsonl") if isinstance(step, StepRecord)]
    told = [step.probe for step in steps if step.probe == step.probe]
    means = [(one + other) / 2 for (_, one), (_, other) in zip(first["read"], second["read"], strict=True)]
    assert told == pytest.approx(means[: len(told)], rel=1e-5)
    assert len(told) >= len(means) - 1  # the last may have been on its way at the end
    assert {step.mode for step in steps if step.probe == step.probe} == {"hook", "native"}


def test_a_probe_that_raises_leaves_the_module_as_it_was() -> None:
    module = Noisy()

    def fails() -> float:
        module.eval()
        module.seen += 1
        torch.rand(1)
        raise ValueError("no batch")

    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="no batch"):
        Probe(fails, module).read()
    assert module.training and module.drop.training
    assert float(module.seen) == 0
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"probe": 3.0}, "probe: give a function"),
        ({"probe": lambda: 0.0, "controller": Static(cf=10)}, "probe: controller 'static' does not use the progress"),
        ({"probe": lambda: 0.0, "total_steps": 0}, "total_steps"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        AdaptiveCompressor(topk, **settings)


def test_goodput_learns_that_there_is_a_probe() -> None:
    compressor = AdaptiveCompressor(topk, controller="goodput", probe=lambda: 0.0, total_steps=500)
    assert compressor.policy.controller.probe
    assert compressor.policy.controller.total_steps == 500
    assert compressor.settings.shared()["probe"] == "True"
