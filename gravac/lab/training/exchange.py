# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A method attached to a model, with what the training loop may ask it: torch's hooks, and ours in DDP's.

Where ranks train apart, see ``apart.py`` and ``torchft_baselines.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gravac.candidate import DENSE
from gravac.collectives import AllReduce, Ledger
from gravac.lab.training.methods import NATIVE, Method
from gravac.telemetry.records import DecisionRecord, Record, StepRecord

POWERSGD_START = 2
"""Number of steps before torch's PowerSGD compresses: the least it allows."""

_HOOKS: dict[str, Callable[..., Any]] = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}


class Exchange:
    """What the training loop asks of any method; by itself, one of which nothing is known.

    Args:
        method: the method.
        module: what is trained: the model, or DDP around it.

    Attributes:
        method: the method.
        module: what is trained.
    """

    def __init__(self, method: Method, module: torch.nn.Module) -> None:
        self.method, self.module = method, module

    def stepped(self) -> None:
        """Do what comes after the optimizer's step. Called after each."""

    @property
    def travels(self) -> bool:
        """Tell whether something may travel behind the steps to come; the same on every rank."""
        return False

    def settle(self) -> None:
        """Wait for what travels behind steps."""

    def finish(self) -> None:
        """Exchange what is left: no step comes after this."""

    def shared(self) -> AbstractContextManager[None]:
        """Have the model hold what all ranks share, without waiting for what travels, to evaluate it."""
        return nullcontext()

    @property
    def cf(self) -> float | None:
        """Compression factor of the next step; ``None`` where there is none."""
        return None

    @property
    def gain(self) -> float | None:
        """Gain of the last step; ``None`` for methods that have none, and before it is known."""
        return None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` where gradients are averaged in each."""
        return None

    def exchanges(self) -> int | None:
        """Return the number of exchanges so far; ``None`` where gradients are averaged in every step."""
        return None

    def exposed(self, backward: float) -> float:
        """Return the seconds that the last step waited for the exchange.

        Args:
            backward: seconds that backward went on when all gradients were computed.
        """
        return backward

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the bytes this rank sent in ``steps`` steps: by our ledger, for others' methods by formula."""
        raise NotImplementedError

    def decisions(self) -> list[DecisionRecord]:
        """Return what was run first, then every decision, also those that changed nothing."""
        return []

    def split(self) -> tuple[float, float] | None:
        """Return the median seconds a step compressed and waited for collectives; ``None`` where not known."""
        return None

    def mean_gain(self) -> float | None:
        """Return the mean gain over the steps so far; ``None`` when no gain is known."""
        return None

    def close(self) -> None:
        """End the method's threads and logs."""


_NEVER_FREED: list[dist.ProcessGroup] = []
"""Process groups that torch's PowerSGD hook ran over. Its callbacks run on gloo's threads and refer to the group. If
one of them holds the last reference, its thread frees the group, waits for itself, and aborts the process."""


class TorchExchange(Exchange):
    """DDP as it is, or with one of torch's hooks; arguments are ``Exchange``'s."""

    def __init__(self, method: Method, module: DistributedDataParallel, seed: int) -> None:
        super().__init__(method, module)
        self._shapes = shapes(module)
        if method.rank is not None:
            if dist.group.WORLD is not None:
                _NEVER_FREED.append(dist.group.WORLD)
            state = torch_powersgd.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=method.rank,
                start_powerSGD_iter=POWERSGD_START,
                min_compression_rate=2,
                random_seed=seed,
            )
            module.register_comm_hook(state, torch_powersgd.powerSGD_hook)
        elif hook := _HOOKS.get(method.native or ""):
            module.register_comm_hook(None, hook)

    @property
    def cf(self) -> float | None:
        """See ``Exchange``."""
        return NATIVE[self.method.native][0] if self.method.native else None

    def wire_bytes(self, steps: int, world: int) -> int:
        """See ``Exchange``."""
        elements = sum(math.prod(shape) for shape in self._shapes)
        if self.method.native:
            return steps * AllReduce.wire_bytes(round(4 * elements / NATIVE[self.method.native][0]), world)
        assert self.method.rank is not None
        sent = sum(_powersgd_elements(shape, self.method.rank) for shape in self._shapes)
        plain = min(steps, POWERSGD_START)
        return AllReduce.wire_bytes(4 * (plain * elements + (steps - plain) * sent), world)

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``."""
        return [start_of(DENSE, self.cf)] if self.cf is not None else []


class Attached(Protocol):
    """What ``AdaptiveCompressor`` and ``OuterOptimizer`` both tell."""

    @property
    def cf(self) -> float:
        """Compression factor in force."""

    @property
    def gain(self) -> float | None:
        """Gain of what was agreed on last."""

    @property
    def history(self) -> list[DecisionRecord]:
        """Decisions so far."""

    @property
    def ledger(self) -> Ledger:
        """What was handed to collectives."""

    def close(self) -> None:
        """Finish what is under way."""


class OurExchange(Exchange):
    """One of ours.

    Args:
        method: the method.
        module: what is trained.
        made: ours, attached.
        seen: records of its steps, which it adds to.
    """

    def __init__(self, method: Method, module: torch.nn.Module, made: Attached, seen: Sequence[StepRecord]) -> None:
        super().__init__(method, module)
        self._made, self._seen = made, seen

    @property
    def cf(self) -> float | None:
        """See ``Exchange``."""
        return self._made.cf

    @property
    def gain(self) -> float | None:
        """See ``Exchange``."""
        return self._made.gain

    def wire_bytes(self, steps: int, world: int) -> int:
        """See ``Exchange``."""
        return self._made.ledger.wire_bytes

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``. What ran first is known when ranks have agreed on it, after two steps."""
        first = [start_of(one.compressor, one.cf, one.every, one.delay) for one in self._seen[:1]]
        return [*first, *self._made.history]

    def split(self) -> tuple[float, float] | None:
        """See ``Exchange``."""
        steps = self._seen[3:] or self._seen
        if not steps:
            return None
        return (
            statistics.median(step.compress_seconds for step in steps),
            statistics.median(step.exchange_seconds for step in steps),
        )

    def mean_gain(self) -> float | None:
        """See ``Exchange``."""
        gains = [step.gain for step in self._seen if step.gain is not None]
        return statistics.fmean(gains) if gains else None

    def close(self) -> None:
        """See ``Exchange``."""
        self._made.close()


def in_ddp(method: Method, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run: Any) -> Exchange:
    """Attach a method to a DDP model that has no communication hook yet; ``run`` is what belongs to the run.

    Raises:
        ValueError: the method cannot be paced.
    """
    native = method.native != "bf16" or dist.get_backend(ddp.process_group) == "nccl"
    if not method.ours and native and run["pace"] is None:
        return TorchExchange(method, ddp, run["seed"])
    seen, see = watching()
    made = method.make(**run, sinks=[see])
    if method.base is not None and method.base.owns_momentum:
        without_momentum(optimizer)
    made.attach(ddp, optimizer)
    return OurExchange(method, ddp, made, seen)


def watching() -> tuple[list[StepRecord], Callable[[Record], None]]:
    """Return a list, and a sink that puts records of steps into it."""
    seen: list[StepRecord] = []

    def see(record: Record) -> None:
        if isinstance(record, StepRecord):
            seen.append(record)

    return seen, see


def start_of(compressor: str, cf: float, every: int = 1, delay: int = 0) -> DecisionRecord:
    """Return the record of what ran first."""
    record = DecisionRecord(0, compressor, cf, False, math.nan, math.nan, math.nan, None, None, "start", "start")
    return replace(record, every=every, delay=delay)


def shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes of what is trained."""
    return [tuple(parameter.shape) for parameter in module.parameters() if parameter.requires_grad]


def without_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Switch the optimizer's momentum off, for compressors that do momentum themselves."""
    for group in optimizer.param_groups:
        if "momentum" in group:
            group.update(momentum=0.0, nesterov=False)
        if "betas" in group:
            group["betas"] = (0.0, group["betas"][1])


def _powersgd_elements(shape: tuple[int, ...], rank: int) -> int:
    """Return how many elements torch's PowerSGD sends of a tensor: both factors where that halves them, else all."""
    elements = math.prod(shape)
    if len(shape) < 2:
        return elements
    rows, columns = shape[0], elements // shape[0]
    factors = (rows + columns) * min(rank, rows, columns)
    return factors if elements > 2 * factors else elements
