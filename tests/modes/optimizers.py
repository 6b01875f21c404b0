# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of all kinds, a scaler, and a small model with parameters of all kinds: what ranks make equal."""

from collections.abc import Callable
from typing import Any

import torch

MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW, tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
}


class Net(torch.nn.Module):
    """Layers, a scalar, channels last, and a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.out = torch.nn.Linear(16, 5)
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.conv(x.view(-1, 3, 4, 4)).flatten(1))
        out: torch.Tensor = self.out(x) * self.scale
        return out


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(8, 48, generator=torch.Generator().manual_seed(1000 * step + rank))
        module(x).square().mean().backward()
        optimizer.step()


def tensors_of(optimizer: torch.optim.Optimizer) -> dict[tuple[int, Any], torch.Tensor]:
    """All states that are tensors, by parameter's position and key."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        (position, key): state
        for position, parameter in enumerate(parameters)
        for key, state in optimizer.state.get(parameter, {}).items()
        if isinstance(state, torch.Tensor)
    }


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def scaler_of(scale: float, steps: int, enabled: bool = True) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
    if enabled:
        scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": steps})
    return scaler
