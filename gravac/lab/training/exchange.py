# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A method attached to a model in DDP, with what the lab may ask it: torch's hooks, and ours.

The training loop calls nothing for it: all of them work by hooks. For torchft's see ``torchft_baselines.py``.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from gravac.candidate import DENSE, Candidate, Mode
from gravac.collectives import AllReduce
from gravac.lab.training.methods import NATIVE, Method
from gravac.modes.outer.round_state import RoundState
from gravac.telemetry.records import DecisionRecord, ModeRecord, Record, StepRecord

POWERSGD_START = 2
"""Number of steps before torch's PowerSGD compresses: the least it allows."""

WARM_UP = 3
"""Number of first training steps that no median counts."""

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

    @property
    def travels(self) -> bool:
        """Tell whether something may travel behind the steps to come; the same on every rank."""
        return False

    def settle(self) -> None:
        """Wait for what travels behind steps."""

    def finish(self) -> None:
        """Exchange what is left: no step comes after this."""

    def shared(self) -> AbstractContextManager[None]:
        """Have the model hold what all ranks share, to evaluate it."""
        return nullcontext()

    def shared_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's state that all ranks share, without waiting for what travels."""
        module = getattr(self.module, "module", self.module)
        return {name: value.clone() for name, value in module.state_dict().items()}

    @property
    def mode(self) -> Mode:
        """Who exchanged in the last step that is known."""
        return "native"

    @property
    def cf(self) -> float | None:
        """Compression factor of the last step that is known; ``None`` where there is none."""
        return None

    @property
    def gain(self) -> float | None:
        """Gain of the last step; ``None`` for methods that have none, and before it is known."""
        return None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` if each step has its exchange by all means."""
        return None

    def exchanges(self) -> int | None:
        """Return the number of exchanges so far; ``None`` if each step has its exchange by all means."""
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

    def changes(self) -> list[ModeRecord]:
        """Return the changes of mode so far, each with the seconds that it took on this rank."""
        return []

    def split(self) -> tuple[float | None, float | None]:
        """Return the typical seconds a step compressed and waited for collectives; ``None`` where not known."""
        return None, None

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
        return [start_of(Candidate("native", DENSE, self.cf))] if self.cf is not None else []


class OurExchange(Exchange):
    """One of ours, attached.

    Args:
        method: the method.
        module: what is trained; it has no communication hook yet.
        optimizer: trains it.
        run: what belongs to the run: ``samples_per_step``, ``log_dir``, ``seed``, ``pace``, ``controller``.
    """

    def __init__(
        self, method: Method, module: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run: Any
    ) -> None:
        super().__init__(method, module)
        self._steps: list[StepRecord] = []
        self._elements = sum(math.prod(shape) for shape in shapes(module))
        self._made = method.make(**run, sinks=[self._see])
        if method.base is not None and method.base.owns_momentum:
            without_momentum(optimizer)
        self._spent = Stopwatch()
        self._spent.starts_at(module, optimizer)
        self._made.attach(module, optimizer)
        self._spent.stops_at(module, optimizer)
        self._tally = Tally(self._made)
        optimizer.register_step_post_hook(self._tally.step_ended)

    def _see(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._steps.append(record)

    @property
    def travels(self) -> bool:
        """See ``Exchange``. With a delay that is given a rank may take up what has come when others do not."""
        outer = self._made.outer
        return outer is not None and outer.under_way and self.method.modes.outer.delay == "auto"

    def settle(self) -> None:
        """See ``Exchange``."""
        with self._spent.running(), self._made.synced():
            pass

    def finish(self) -> None:
        """See ``Exchange``."""
        with self._spent.running():
            self._made.synchronize()

    def shared(self) -> AbstractContextManager[None]:
        """See ``Exchange``."""
        return self._made.synced()

    @property
    def mode(self) -> Mode:
        """See ``Exchange``."""
        return self._steps[-1].mode if self._steps else self._made.mode

    @property
    def cf(self) -> float | None:
        """See ``Exchange``."""
        return self._steps[-1].cf if self._steps else None

    @property
    def gain(self) -> float | None:
        """See ``Exchange``."""
        return self._steps[-1].gain if self._steps else None

    @property
    def every(self) -> int | None:
        """See ``Exchange``."""
        if not self.method.apart:
            return None
        return self._steps[-1].every if self._steps else self._made.every

    def exchanges(self) -> int | None:
        """See ``Exchange``."""
        return self._tally.exchanges if self.method.apart else None

    def exposed(self, backward: float) -> float:
        """See ``Exchange``. What is waited for outside of backward is waited for in gravac's hooks."""
        return backward + self._spent.taken()

    def wire_bytes(self, steps: int, world: int) -> int:
        """See ``Exchange``. What DDP itself sent is on no ledger."""
        native = (
            count * AllReduce.wire_bytes(round(4 * self._elements / cf), world)
            for cf, count in self._tally.native_steps.items()
        )
        return self._made.ledger.wire_bytes + sum(native)

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``. What ran first is known when ranks have agreed on it."""
        return [*self._first(), *self._made.history]

    def changes(self) -> list[ModeRecord]:
        """See ``Exchange``."""
        return self._made.changes

    def _first(self) -> list[DecisionRecord]:
        if self._steps:
            ran = self._steps[0]
            return [start_of(Candidate(ran.mode, ran.compressor, ran.cf, ran.every, ran.delay))]
        return [start_of(Candidate("native", DENSE, cf)) for cf in self._tally.native_steps][:1]

    def split(self) -> tuple[float | None, float | None]:
        """See ``Exchange``: the median over steps; where ranks may train apart, a step's share of all exchanges."""
        steps = [record for record in self._steps if record.step >= WARM_UP] or self._steps
        typical = mean if self.method.apart else median
        return (
            typical([(record.compress_seconds, record.steps) for record in steps]),
            typical([(record.exchange_seconds, record.steps) for record in steps]),
        )

    def mean_gain(self) -> float | None:
        """See ``Exchange``."""
        return mean([(record.gain, record.steps) for record in self._steps if record.gain is not None])

    def close(self) -> None:
        """See ``Exchange``."""
        self._made.close()


class Stopwatch:
    """Seconds that gravac takes of a step in hooks of the model's forward and of the optimizer's step."""

    def __init__(self) -> None:
        self._since = self._seconds = 0.0

    def starts_at(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Start before hooks that are registered after this call."""
        module.register_forward_pre_hook(self._start)
        optimizer.register_step_post_hook(self._start)

    def stops_at(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Stop after hooks that were registered before this call."""
        module.register_forward_pre_hook(self._stop)
        optimizer.register_step_post_hook(self._stop)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the seconds within."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    def taken(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _start(self, *_: object) -> None:
        self._since = time.perf_counter()

    def _stop(self, *_: object) -> None:
        self._seconds += time.perf_counter() - self._since


class Tally:
    """Number of exchanges of a run, and of steps in which DDP exchanged by itself.

    Args:
        compressor: runs the steps.

    Attributes:
        native_steps: number of steps in which DDP exchanged by itself, by CF.
    """

    def __init__(self, compressor: AdaptiveCompressor) -> None:
        self.native_steps: Counter[float] = Counter()
        self._compressor = compressor
        self._together = self._rounds = 0
        self._outer: RoundState | None = None
        self._changes = -1
        self._cf = 1.0

    @property
    def exchanges(self) -> int:
        """Number of exchanges: of gradients, and of what ranks learned apart."""
        return self._together + self._rounds + (0 if self._outer is None else self._outer.ended)

    def step_ended(self, *_: object) -> None:
        """The optimizer has made a step."""
        outer = self._compressor.outer
        if outer is not self._outer:
            self._rounds += 0 if self._outer is None else self._outer.ended
            self._outer = outer
        if outer is None:
            self._together += 1
        if self._compressor.mode == "native":
            changes = len(self._compressor.changes)
            if changes != self._changes:  # what a native step sends changes with the mode alone
                self._changes, self._cf = changes, self._compressor.cf
            self.native_steps[self._cf] += 1


def in_ddp(method: Method, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run: Any) -> Exchange:
    """Attach a method to a DDP model that has no communication hook yet; ``run`` is what belongs to the run.

    Raises:
        ValueError: the method cannot be paced.
    """
    native = method.native != "bf16" or dist.get_backend(ddp.process_group) == "nccl"
    if not method.ours and native and run["pace"] is None:
        return TorchExchange(method, ddp, run["seed"])
    return OurExchange(method, ddp, optimizer, **run)


Weighted = Sequence[tuple[float, int]]
"""Numbers, each with the number of steps that it is of."""


def mean(numbers: Weighted) -> float | None:
    """Return the mean over steps of the numbers that are known; ``None`` if none is.

    Example:
        >>> mean([(1.0, 3), (5.0, 1), (float("nan"), 7)])
        2.0
    """
    known = [(number, steps) for number, steps in numbers if math.isfinite(number)]
    steps = sum(steps for _, steps in known)
    return sum(number * steps for number, steps in known) / steps if steps else None


def median(numbers: Weighted) -> float | None:
    """Return the median over steps; ``None`` if that is of steps of which the number is not known.

    Example:
        >>> median([(1.0, 1), (5.0, 3)]), median([(1.0, 1), (float("nan"), 3)])
        (5.0, None)
    """
    half, passed = sum(steps for _, steps in numbers) / 2, 0
    for number, steps in sorted(numbers, key=lambda pair: (math.isnan(pair[0]), pair[0])):
        passed += steps
        if passed >= half:
            return number if math.isfinite(number) else None
    return None


def start_of(candidate: Candidate) -> DecisionRecord:
    """Return the record of what ran first."""
    return DecisionRecord(
        step=0,
        compressor=candidate.compressor,
        cf=candidate.cf,
        changed=False,
        gain=math.nan,
        gain_low=math.nan,
        gain_high=math.nan,
        t_system=None,
        t_compression=None,
        phase="start",
        reason="start",
        every=candidate.every,
        delay=candidate.delay,
        mode=candidate.mode,
    )


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
