# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run with Accelerate."""

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from gravac.integrations.accelerate import attach
from tests.distributed.training import batch
from tests.integrations import apart
from tests.integrations.by_hand import SETTINGS, Trained, as_torchrun_says, by_hand, model, trained

BATCHES, SAVED_AT = 12, 6


def train(
    rank: int,
    world: int,
    folder: Path,
    accumulate: int = 1,
    resume: bool = False,
    killed_at: int | None = None,
    **settings: Any,
) -> Trained:
    """Train on all batches, saving after some; or on those that come after the checkpoint."""
    as_torchrun_says(rank, world)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    module = model()
    ddp, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9))
    losses = []
    with attach(accelerator, ddp, optimizer, **SETTINGS, **settings) as compressor:
        if resume:
            accelerator.load_state(str(folder))
        for position in range(SAVED_AT if resume else 0, BATCHES):
            if position == killed_at:
                torch.distributed.barrier()
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = batch(rank, position)
            with accelerator.accumulate(ddp):
                loss = cross_entropy(ddp(x), y)
                accelerator.backward(loss)
                losses.append(float(loss.detach()))
                optimizer.step()
                optimizer.zero_grad()
            if position + 1 == SAVED_AT:
                accelerator.save_state(str(folder))
        return trained(losses, module, compressor)


def train_and_by_hand(rank: int, world: int, folder: Path, accumulate: int) -> tuple[Trained, Trained]:
    batches = [batch(rank, position) for position in range(BATCHES)]
    return train(rank, world, folder, accumulate), by_hand(batches, accumulate)


def told(rank: int, world: int, folder: Path, accumulate: int) -> list[float]:
    """Losses of a run that is logged."""
    return train(rank, world, folder, accumulate, log_dir=folder).losses


def train_apart(rank: int, folder: Path, every: apart.Every, accumulate: int, resume: bool = False) -> Trained:
    """Train, saving in the middle; or go on from there."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    module = model()
    ddp, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9))
    losses = []
    with attach(accelerator, ddp, optimizer, **apart.settings(every)) as compressor:
        if resume:
            accelerator.load_state(str(folder))
        for position in range(apart.SAVED_AT * accumulate if resume else 0, apart.STEPS * accumulate):
            with accelerator.accumulate(ddp):
                x, y = batch(rank, position)
                loss = cross_entropy(ddp(x), y)
                accelerator.backward(loss)
                losses.append(float(loss.detach()))
                optimizer.step()
                optimizer.zero_grad()
            if not resume and position + 1 == apart.SAVED_AT * accumulate:
                accelerator.save_state(str(folder))
        compressor.synchronize()
        return trained(losses, module, compressor)


def went_on(rank: int, world: int, folder: Path, every: apart.Every, accumulate: int) -> apart.Runs:
    as_torchrun_says(rank, world)
    batches = [batch(rank, position) for position in range(apart.STEPS * accumulate)]
    straight = train_apart(rank, folder, every, accumulate)
    resumed = train_apart(rank, folder, every, accumulate, resume=True)
    return straight, resumed, by_hand(batches, accumulate, settings=apart.settings(every))


def saved(rank: int, world: int, folder: Path) -> list[tuple[float, float]]:
    """Loss that was evaluated, and that of the file which was saved then, of each time."""
    as_torchrun_says(rank, world)
    accelerator = Accelerator(cpu=True)
    module = model()
    ddp, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9))
    losses = []
    with attach(accelerator, ddp, optimizer, **apart.settings(5)) as compressor:
        for position in range(14):
            accelerator.backward(cross_entropy(ddp(batch(rank, position)[0]), batch(rank, position)[1]))
            optimizer.step()
            optimizer.zero_grad()
            if position == 13:
                compressor.synchronize()
            if position % 3 == 1:
                evaluated = apart.validation_loss(ddp)
                accelerator.save_state(str(folder / str(position)))
                accelerator.wait_for_everyone()
                losses.append((evaluated, apart.loss_of(load_file(folder / str(position) / "model.safetensors"))))
                assert apart.loss_of(accelerator.get_state_dict(ddp)) == evaluated
    return losses


def own_in_the_folder(rank: int, world: int, folder: Path) -> tuple[bool, bool]:
    """Whether a rank's own weights are its own in the folder's state, and the file's are what the ranks share."""
    as_torchrun_says(rank, world)
    train_apart(rank, folder, 5, 1)
    (path,) = folder.glob(f"gravac/*/rank{rank}.pt")
    state = torch.load(path)
    return apart.is_apart(state), apart.holds_shared(load_file(folder / "model.safetensors"), state)


def without_gravac_before(rank: int, world: int, folder: Path) -> list[str]:
    """Go on from a checkpoint of a run without gravac, apart; what is warned of."""
    as_torchrun_says(rank, world)
    for apart_now in (False, True):
        accelerator = Accelerator(cpu=True)
        module = model()
        ddp, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9))
        if not apart_now:
            accelerator.save_state(str(folder))
            accelerator.wait_for_everyone()
            continue
        with attach(accelerator, ddp, optimizer, **apart.settings(5)), warnings.catch_warnings(record=True) as told:
            accelerator.load_state(str(folder))
            for position in range(7):
                accelerator.backward(cross_entropy(ddp(batch(rank, position)[0]), batch(rank, position)[1]))
                optimizer.step()
                optimizer.zero_grad()
    return [str(warning.message) for warning in told if "gravac" in str(warning.message)]


def two_models(rank: int, world: int, folder: Path) -> list[str]:
    """The folders that two models' states are in; the second accelerator has let go of its model."""
    as_torchrun_says(rank, world)
    accelerator = Accelerator(cpu=True)
    for _ in range(2):
        module = model()
        ddp, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.05))
        attach(accelerator, ddp, optimizer, **SETTINGS)
        accelerator.backward(ddp(batch(rank, 0)[0]).mean())
    accelerator.save_state(str(folder / "both"))
    accelerator.free_memory()
    accelerator.save_state(str(folder / "none"))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("gravac*") if path.suffix == "")
