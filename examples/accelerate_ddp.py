# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains with Hugging Face Accelerate in two processes; one call after ``prepare`` attaches gravac.

    pip install ".[accelerate]"
    torchrun --nproc-per-node 2 examples/accelerate_ddp.py

To see the chosen compression factors: tensorboard --logdir runs
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from gravac import topk
from gravac.integrations.accelerate import attach, metrics


def samples(number: int) -> TensorDataset:
    """Return vectors, each along one of eight fixed random directions plus noise, and the index of its direction."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(8, 256, generator=generator)
    labels = torch.randint(8, (number,), generator=generator)
    return TensorDataset(directions[labels] + 4 * torch.randn(number, 256, generator=generator), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=1, help="steps from one exchange to the next")
    parsed = parser.parse_args()
    steps = parsed.steps
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="runs")
    accelerator.init_trackers("accelerate")
    set_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = DataLoader(samples(64 * 2 * steps), batch_size=64)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    settings = {"base": topk, "cf_range": (10, 1000), "log_dir": "runs/accelerate"}
    compressor = attach(accelerator, model, optimizer, every=parsed.every, **settings)

    for step, (inputs, labels) in enumerate(batches, 1):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            logged = {"loss": loss.item(), **metrics(compressor)}
            accelerator.log(logged, step)
            if step % 50 == 0 or step == steps:
                accelerator.print(f"step {step}: " + ", ".join(f"{name} {x:.3g}" for name, x in logged.items()))

    compressor.synchronize()  # with --every above 1: exchange what ranks learned since the last exchange
    accelerator.save_state("runs/accelerate/last")  # with every rank's residuals
    compressor.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
