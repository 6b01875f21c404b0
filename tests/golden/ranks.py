# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run: by DDP's hook, by the door without DDP, or with outer steps; over gloo, or in memory."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from gravac.telemetry.records import DecisionRecord, Record, StepRecord
from tests.engine.adapter import Averaged
from tests.outer.by_hand import OuterByHand

Plain = dict[str, Any]
"""Tensors and plain values by name."""

Settings = Mapping[str, Any]


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


class Rank(ABC):
    """One rank, from its objects' making to their end.

    Args:
        rank: number of the rank.
        settings: the class's settings of what compresses.
        optimizer: makes the optimizer of the model's parameters.
        executor: of ranks in memory; ``None`` over a network.
        checkpoint: what ``state_dict`` of an earlier rank returned; ``None`` starts anew.
    """

    compressor: AdaptiveCompressor | OuterByHand

    def __init__(self, rank: int, settings: Settings, optimizer: Any, executor: Any, checkpoint: Plain | None) -> None:
        self.rank = rank
        self.ran: list[Plain] = []
        self.net = Net()
        self.optimizer: torch.optim.Optimizer = optimizer(self.net.parameters())
        self.model: torch.nn.Module = self.net
        self.start({**settings, "sinks": [self.write_down]}, executor, checkpoint)

    @abstractmethod
    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        """Make what compresses, and resume from a checkpoint."""

    @abstractmethod
    def leave(self, step: int) -> torch.Tensor:
        """Do a step until its exchange is handed over; return its loss, 0-d."""

    @abstractmethod
    def arrive(self) -> None:
        """Do the rest of the step. Ranks in memory call this after all have called ``leave``."""

    def backward(self, step: int) -> torch.Tensor:
        """Return the loss of a step, 0-d; the gradients are in place, or on their way."""
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        x = torch.randint(0, 200, (4, 17), generator=generator)
        self.optimizer.zero_grad()
        predicted = self.model(x[:, :-1]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(predicted, (3 * x[:, 1:].flatten() + 1) % 200)
        torch.autograd.backward(loss)
        return loss.detach()

    def state_dict(self) -> Plain:
        """Return all that another rank resumes from."""
        states = {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**states, "gravac": self.compressor.state_dict()}

    def final(self) -> Plain:
        """Return what training came to: copies of the model's and the optimizer's state."""
        return {"model": copied(self.net.state_dict()), "optimizer": copied(self.optimizer.state_dict())}

    def end(self) -> Plain:
        """Close what compresses; return what was decided, and what ran, as rank 0 was told."""
        self.compressor.close()
        return {"decided": [decision(record) for record in self.compressor.history], "ran": self.ran}

    def write_down(self, record: Record) -> None:
        """Take a record of gravac's."""
        if isinstance(record, StepRecord):
            self.ran.append(candidate(record))


class DDPRank(Rank):
    """A rank over gloo, by DDP's hook in each step, with several buckets."""

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.model = ddp = DistributedDataParallel(self.net, bucket_cap_mb=0.1)
        self.compressor = AdaptiveCompressor(**settings, native=False)
        if checkpoint is not None:
            self.net.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.compressor.load_state_dict(checkpoint["gravac"])
        self.compressor.attach(ddp, self.optimizer)

    def leave(self, step: int) -> torch.Tensor:
        return self.backward(step)

    def arrive(self) -> None:
        self.optimizer.step()


class DoorRank(Rank):
    """A rank without DDP, which hands its gradients over one by one."""

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.compressor = compressor = AdaptiveCompressor(**settings)
        if checkpoint is not None:
            self.net.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            compressor.load_state_dict(checkpoint["gravac"])
        self.averaged = Averaged(self.net, partial(compressor.door, executor=executor))

    def leave(self, step: int) -> torch.Tensor:
        loss = self.backward(step)
        self.averaged.hand_over()
        return loss

    def arrive(self) -> None:
        self.averaged.wait()
        self.optimizer.step()


class OuterRank(Rank):
    """A rank with outer steps; an exchange with a fixed delay is always there in time, however slow the machine."""

    compressor: OuterByHand

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.compressor = OuterByHand(self.net, self.optimizer, executor=executor, **settings)
        self.in_time = bool(settings["delay"]) and settings["delay"] != "auto" and executor is None
        if checkpoint is not None:
            self.compressor.load_state_dict(checkpoint["gravac"])

    def leave(self, step: int) -> torch.Tensor:
        loss = self.backward(step)
        self.optimizer.step()
        self.compressor.leave()
        return loss

    def arrive(self) -> None:
        if self.in_time:
            _ = self.compressor.ledger  # waits for what is in flight
        self.compressor.arrive()

    def state_dict(self) -> Plain:
        return {"gravac": self.compressor.state_dict()}

    def final(self) -> Plain:
        own = super().final()
        with self.compressor.synced():
            shared = copied(self.net.state_dict())
        return {**own, "shared": shared, "outer": copied(self.compressor.outer.state_dict())}


def candidate(record: StepRecord | DecisionRecord) -> Plain:
    """Return what ran in a step, or what was decided for it."""
    return {
        "step": record.step,
        "method": record.compressor,
        "cf": record.cf,
        "every": record.every,
        "delay": record.delay,
    }


def decision(record: DecisionRecord) -> Plain:
    """Return a decision without the numbers and words that led to it."""
    return {**candidate(record), "changed": record.changed}


def copied(state: Any) -> Any:
    """Return a state dict's containers and tensors, copied."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copied(part) for key, part in state.items()}
    return [copied(part) for part in state] if isinstance(state, (list, tuple)) else state
