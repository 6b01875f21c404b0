# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A training script as someone has it who trains with Lightning: python train.py."""

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(LightningModule):
    """A classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch, a scalar."""
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    torch.manual_seed(1)
    x = torch.randn(16384, 128)
    data = TensorDataset(x, (x @ torch.randn(128, 10)).argmax(1))
    loader = DataLoader(data, batch_size=32, shuffle=True)

    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
    )
    trainer.fit(Net(), loader)


if __name__ == "__main__":
    main()
