# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A training script as someone has it who trains with Accelerate: torchrun --nproc-per-node 2 train.py."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gravac.integrations.accelerate import attach


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    x = torch.randn(16384, 128)
    data = TensorDataset(x, (x @ torch.randn(128, 10)).argmax(1))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net, opt, loader = accelerator.prepare(net, opt, loader)
    compressor = attach(accelerator, net, opt, log_dir="runs/mine")

    for epoch in range(4):
        for inputs, labels in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            accelerator.backward(loss)
            opt.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")

    compressor.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
