# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A training script as someone has it who trains with DistributedDataParallel: torchrun --nproc-per-node 2 train.py."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    x = torch.randn(16384, 128)
    data = TensorDataset(x, (x @ torch.randn(128, 10)).argmax(1))
    sampler: DistributedSampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    net = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    net = DistributedDataParallel(net)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
