# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains with Ray Train on two CPU workers; after a worker is killed, Ray resumes the run from a checkpoint.

pip install '.[ray]'
python examples/ray_ddp.py
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model

from gravac.integrations.ray import attach, report


def train(options: dict[str, Any]) -> None:
    """Run the training loop of one worker, from the latest checkpoint if one exists."""
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
    model = prepare_model(torch.nn.Sequential(*layers), move_to_device=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
        if rank == 0:
            print(f"resumed after step {first}")

    compressor = attach(model, optimizer, log_dir=f"{options['folder']}/log")

    directions = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    for step in range(first, options["steps"]):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        labels = torch.randint(8, (64,), generator=generator)
        inputs = directions[labels] + 4 * torch.randn(64, 256, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 20 == 0:
            with tempfile.TemporaryDirectory() as folder:
                if rank == 0:
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                    torch.save(state, Path(folder, "state.pt"))
                report({"loss": loss.item(), "step": step + 1}, compressor, folder)
        if step + 1 == options["killed_after"] and first == 0:
            time.sleep(5)  # Ray collects reported checkpoints about once a second
            if rank == 1:
                os._exit(1)
    compressor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--killed-after", type=int, default=50, help="step after which a worker is killed; 0: never")
    options = parser.parse_args()
    folder = str(Path("runs/ray").absolute())
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": options.steps, "killed_after": options.killed_after, "folder": folder},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=1 if options.killed_after else 0)
        ),
    )
    result = trainer.fit()
    print(
        {name: number for name, number in (result.metrics or {}).items() if name.startswith(("loss", "step", "gravac"))}
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
