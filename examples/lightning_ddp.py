# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning's Trainer in two processes, with gravac as a callback.

    pip install ".[lightning]"
    python examples/lightning_ddp.py

To see the chosen compression factors: tensorboard --logdir runs
"""

import argparse

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from gravac import topk
from gravac.integrations.lightning import GravacCallback


class Directions(pl.LightningModule):
    """Learns which of eight fixed random directions a noisy vector points along."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))

    def training_step(self, batch: list[torch.Tensor], position: int) -> torch.Tensor:
        """Return the loss of a batch, a scalar."""
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


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
    pl.seed_everything(0)
    gravac = GravacCallback(base=topk, cf_range=(10, 1000), every=parsed.every, log_dir="runs/lightning")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=steps,
        log_every_n_steps=10,
        callbacks=[gravac],
        logger=pl.loggers.TensorBoardLogger("runs", name="lightning"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Directions(), DataLoader(samples(64 * 2 * 50), batch_size=64, shuffle=True))

    if trainer.is_global_zero:
        logged = trainer.logged_metrics
        print(f"step {trainer.global_step}: loss {logged['loss']:.3f}, CF {gravac.compressor.cf:g}")
        for record in gravac.compressor.history:
            if record.changed:
                print(record)


if __name__ == "__main__":
    main()
