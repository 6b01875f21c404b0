# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run: by DDP's hook, in all modes in turn, by a loop of its own without DDP, or with outer steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from gravac.telemetry.records import DecisionRecord, Record, StepRecord
from tests.engine.adapter import Averaged
from tests.outer.by_hand import OuterByHand
from tests.policies import adaptive

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


class BufferedNet(Net):
    """The same net and a norm over the batch, whose buffers outer steps average."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_norm = torch.nn.BatchNorm1d(200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.batch_norm(super().forward(x).transpose(1, 2))
        return normed.transpose(1, 2)


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
        self.net = self.new_net()
        self.optimizer: torch.optim.Optimizer = optimizer(self.net.parameters())
        self.model: torch.nn.Module = self.net
        self.start({**settings, "sinks": [self.write_down]}, executor, checkpoint)

    def new_net(self) -> Net:
        """Return the model before its first step, the same on every rank."""
        return Net()

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
        loss = self.loss(step)
        torch.autograd.backward(loss)
        return loss.detach()

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, 0-d, after its forward."""
        generator = torch.Generator().manual_seed(1000 * step + self.rank)
        x = torch.randint(0, 200, (4, 17), generator=generator)
        self.optimizer.zero_grad()
        predicted = self.model(x[:, :-1]).flatten(0, 1)
        return torch.nn.functional.cross_entropy(predicted, (3 * x[:, 1:].flatten() + 1) % 200)

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
        later = [record for record in self.compressor.history if record.step]  # older commits have no record of step 0
        return {"decided": [decision(record) for record in later], "ran": self.ran}

    def write_down(self, record: Record) -> None:
        """Take a record of gravac's."""
        if isinstance(record, StepRecord):
            self.ran.append(candidate(record))


class DDPRank(Rank):
    """A rank over gloo, by DDP's hook in each step, with several buckets."""

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.model = ddp = DistributedDataParallel(self.net, bucket_cap_mb=0.1)
        self.compressor = adaptive(**settings, native=False)
        if checkpoint is not None:
            self.net.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.compressor.load_state_dict(checkpoint["gravac"])
        self.compressor.attach(ddp, self.optimizer)

    def leave(self, step: int) -> torch.Tensor:
        return self.backward(step)

    def arrive(self) -> None:
        self.optimizer.step()


class ModesRank(DDPRank):
    """A rank over gloo that runs its steps natively, by DDP's hook, or apart, as a script says."""

    scaler: torch.amp.GradScaler | None = None

    def new_net(self) -> Net:
        return BufferedNet()

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.compressor = adaptive(**settings)
        self.model = self.attached(self.compressor)
        if checkpoint is not None:
            self.net.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            if self.scaler is not None:
                self.scaler.load_state_dict(checkpoint["scaler"])
            self.compressor.load_state_dict(checkpoint["gravac"])

    def attached(self, compressor: AdaptiveCompressor) -> torch.nn.Module:
        """Return the model whose gradients ranks average, with a compressor attached."""
        ddp = DistributedDataParallel(self.net, bucket_cap_mb=0.1)
        compressor.attach(ddp, self.optimizer, self.scaler)
        return ddp

    def state_dict(self) -> Plain:
        gravac = {"gravac": self.compressor.state_dict()}  # first, since it ends exchanges in flight
        scaler = {} if self.scaler is None else {"scaler": self.scaler.state_dict()}
        return {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), **scaler, **gravac}

    def end(self) -> Plain:
        ended = super().end()
        changes = [
            {"step": change.step, "before": change.before, "after": change.after} for change in self.compressor.changes
        ]
        return {**ended, "changes": changes}


class ScaledRank(ModesRank):
    """A rank whose loss is scaled for float16; in step 14 the loss of rank 1 is infinite, so that all ranks skip."""

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=10)
        super().start(settings, executor, checkpoint)

    def backward(self, step: int) -> torch.Tensor:
        assert self.scaler is not None
        loss = self.loss(step) * (float("inf") if (step, self.rank) == (14, 1) else 1.0)
        torch.autograd.backward(self.scaler.scale(loss))
        return loss.detach()

    def arrive(self) -> None:
        assert self.scaler is not None
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def final(self) -> Plain:
        assert self.scaler is not None
        return {**super().final(), "scaler": self.scaler.state_dict()}


class ShardsRank(ModesRank):
    """A rank of two replicas of two shards each (HSDP)."""

    def new_net(self) -> Net:
        net, mesh = Net(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for unit in (net.wide, net.narrow, net):
            fully_shard(unit, mesh=mesh)
        return net

    def attached(self, compressor: AdaptiveCompressor) -> torch.nn.Module:
        compressor.attach(self.net, self.optimizer)
        return self.net


class LoopRank(Rank):
    """A rank without DDP, which hands its gradients over one by one."""

    def start(self, settings: Settings, executor: Any, checkpoint: Plain | None) -> None:
        self.compressor = compressor = adaptive(**settings)
        if checkpoint is not None:
            self.net.load_state_dict(checkpoint["model"])
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            compressor.load_state_dict(checkpoint["gravac"])
        self.averaged = Averaged(self.net, partial(compressor.attach_parameters, executor=executor))

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
        with self.compressor.shared_weights():
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
    """Return a state dict's containers and tensors, copied; of a tensor in shards, this rank's shard."""
    if isinstance(state, DTensor):
        return state.to_local().detach().clone()
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copied(part) for key, part in state.items()}
    return [copied(part) for part in state] if isinstance(state, (list, tuple)) else state
