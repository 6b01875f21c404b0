# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A program of Ray Train: two workers train a small model, and one of them may be killed on the way."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

from gravac import Static
from gravac.integrations.ray import attach, report
from gravac.policy import Policy

STEPS, SAVED_EVERY = 12, 4

SECONDS_OF_RAY = 5.0
"""Seconds in which Ray's controller, which asks the workers about once a second, learns of a reported checkpoint."""


def train(options: dict[str, Any]) -> None:
    """Train one worker; write its residuals and weights into a folder at the end."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)), move_to_device=False)
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    policy = Policy(base="topk", controller=Static(cf=20), native=False, dense_below=64)
    compressor = attach(model, optimizer, policy=policy)
    for step in range(first, STEPS):
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
        optimizer.zero_grad()
        (model(x) - x[:, :8].sin()).square().mean().backward()
        optimizer.step()
        if (step + 1) % SAVED_EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                    torch.save(state, Path(folder, "state.pt"))
                report({"step": step + 1}, compressor, folder)
        if step + 1 == options["killed_after"] and not first:
            time.sleep(SECONDS_OF_RAY)
            if rank == 1:
                os._exit(1)
    ended = {
        "first": first,
        "weights": {name: weight.clone() for name, weight in inner.state_dict().items()},
        "residuals": compressor._engine.residuals(),
    }
    torch.save(ended, Path(options["folder"], f"rank{rank}.pt"))
    compressor.close()


def fit(folder: Path, killed_after: int = 0, workers: int = 2) -> tuple[Any, list[dict[str, Any]]]:
    """Run the program; return Ray's result, and what each worker ended with."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"killed_after": killed_after, "folder": str(folder)},
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "ray"), failure_config=ray.train.FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    return result, [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(workers)]
