# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The five runs: three real DDP ranks over gloo, several buckets, a checkpoint on the way, everything kept."""

from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Goodput, GraVAC, Static, ladder, powersgd, quantize, topk, topkc
from tests.golden.script import scripted
from tests.ranks import processes

RANKS = 3
STEPS = 40
MORE = 20
"""Steps after the checkpoint."""

CASES: dict[str, dict[str, Any]] = {
    "topk-gravac": {"base": topk, "cf_range": (10, 1000), "controller": GraVAC(window=4)},
    "ladder-goodput": {"base": ladder, "cf_range": (2, 1000), "controller": Goodput(window=5)},
    "powersgd-static": {"base": powersgd, "cf_range": (2, 100), "controller": Static(cf=8)},
    "one-bit-static": {"base": quantize(1), "cf_range": (32, 32), "controller": Static(cf=32)},
    "topkc-by-gain": {
        "base": topkc,
        "cf_range": (2, 100),
        "controller": Static(cf=16),
        "allocation": "by_gain",
        "survey_every": 6,
    },
}


class Net(torch.nn.Module):
    """Convolutions, tables, wide and narrow matrices: some 150,000 elements, with tensors that are sent dense."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(200, 64)
        self.conv = torch.nn.Conv1d(64, 96, 3, padding=1)
        self.norm = torch.nn.LayerNorm(96)
        self.wide = torch.nn.Linear(96, 512)
        self.narrow = torch.nn.Linear(512, 96)
        self.out = torch.nn.Linear(96, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(self.conv(self.table(x).transpose(1, 2)).transpose(1, 2))
        predicted: torch.Tensor = self.out(seen + self.narrow(self.wide(seen).relu()))
        return predicted


def loss_of(ddp: DistributedDataParallel, rank: int, step: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randint(0, 200, (4, 17), generator=g)
    return torch.nn.functional.cross_entropy(ddp(x[:, :-1]).flatten(0, 1), (3 * x[:, 1:].flatten() + 1) % 200)


def trained(
    rank: int, case: str, checkpoint: dict[str, Any] | None, steps: range
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train from the start or from a checkpoint: what came of it, and a checkpoint of its end."""
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    losses = []
    with scripted(rank), AdaptiveCompressor(**CASES[case]) as compressor:
        if checkpoint is not None:
            ddp.module.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            compressor.load_state_dict(checkpoint["gravac"])
        compressor.attach(ddp, optimizer)
        for step in steps:
            optimizer.zero_grad()
            loss = loss_of(ddp, rank, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        at_end = {
            "model": {name: tensor.clone() for name, tensor in ddp.module.state_dict().items()},
            "optimizer": _copied(optimizer.state_dict()),
            "gravac": _copied(compressor.state_dict()),
        }
    return {"losses": torch.stack(losses)}, at_end


def recorded(rank: int, world: int, case: str, folder: str) -> dict[str, Any]:
    """One rank of a run; with ``folder``, what follows the checkpoint starts from the one that lies there."""
    begun, checkpoint = trained(rank, case, None, range(STEPS))
    given = torch.load(Path(folder) / f"{case}.pt", weights_only=True)[rank]["checkpoint"] if folder else checkpoint
    more, end = trained(rank, case, _copied(given), range(STEPS, STEPS + MORE))
    return {"losses": begun["losses"], "checkpoint": checkpoint, "more": more["losses"], "end": end}


def record(out: Path, checkpoints: Path | None) -> None:
    """Make all runs; one file each, a list with an entry per rank."""
    out.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        torch.save(processes(recorded, RANKS, case, str(checkpoints or "")), out / f"{case}.pt")
        print(case, flush=True)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value
