# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A model that trains on the GPU, with DistributedDataParallel over one rank: what several parts share."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Compressor, Static
from tests.measure.gpu.timing import GPU
from tests.measure.one_side import eight_layers


@contextlib.contextmanager
def one_rank(backend: str = "nccl") -> Iterator[None]:
    """A default process group of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        if backend == "nccl":
            torch.cuda.set_device(GPU)
        dist.init_process_group(backend, init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


class Training:
    """Eight linear layers, the same from run to run.

    Args:
        compressor: compresses; ``None``: native DistributedDataParallel.
        device: where it trains.
        width: features of every layer.
        rows: rows of a batch.
        scaler: scales the loss, and has float16 computed.
    """

    def __init__(
        self,
        compressor: AdaptiveCompressor | None,
        device: torch.device = GPU,
        width: int = 512,
        rows: int = 64,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.scaler, self.device = scaler, device
        self.ddp = DistributedDataParallel(
            eight_layers(width).to(device), bucket_cap_mb=4 * width * width * 2 >> 20 or 1
        )
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-3, momentum=0.9)
        self.compressor = compressor
        if compressor is not None:
            compressor.attach(self.ddp, self.optimizer, scaler)
        generator = torch.Generator().manual_seed(1)
        self.batches = [torch.randn(rows, width, generator=generator).to(device) for _ in range(4)]
        self.steps = 0

    def step(self, factor: float = 1.0) -> None:
        """Train a step; ``factor`` multiplies the loss."""
        x = self.batches[self.steps % len(self.batches)]
        self.steps += 1
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.float16, enabled=self.scaler is not None):
            loss = self.ddp(x).float().square().mean() * factor
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @property
    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.ddp.parameters()])

    def close(self) -> None:
        """End the compressor."""
        if self.compressor is not None:
            self.compressor.close()


def static(base: Compressor, cf: float) -> AdaptiveCompressor:
    """One that stays with a CF, also over a single rank."""
    return AdaptiveCompressor(base, (1, 1000), controller=Static(cf=cf), native=False)
