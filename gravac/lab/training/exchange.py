# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods attached to a model in DDP, and the interface by which the lab reads them: torch's hooks, and gravac.

The training loop calls no method: all of them work by hooks. For torchft's methods see ``torchft_baselines.py``.
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
"""Number of dense steps before torch's PowerSGD compresses: the minimum that torch allows."""

WARM_UP = 3
"""Number of first training steps that medians leave out."""

_HOOKS: dict[str, Callable[..., Any]] = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}


class Exchange:
    """Base class of attached methods: the numbers and calls that the training loop needs of any method.

    Args:
        method: method of exchanging gradients.
        module: module to train: the model, or DDP around the model.

    Attributes:
        method: method of exchanging gradients.
        module: module to train.
    """

    def __init__(self, method: Method, module: torch.nn.Module) -> None:
        self.method, self.module = method, module

    @property
    def in_flight(self) -> bool:
        """True if an exchange may be in flight during the next steps; the same on every rank."""
        return False

    def settle(self) -> None:
        """Wait for exchanges in flight."""

    def finish(self) -> None:
        """Exchange what the ranks have not exchanged yet, after the last step."""

    def shared(self) -> AbstractContextManager[None]:
        """Let the model have the weights that all ranks share, within a block, to evaluate the model."""
        return nullcontext()

    def shared_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model state that all ranks share, of any shapes, without waiting for exchanges."""
        module = getattr(self.module, "module", self.module)
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    @property
    def mode(self) -> Mode:
        """Mode of the latest step that has a record."""
        return "native"

    @property
    def cf(self) -> float | None:
        """Compression factor of the latest step that has a record; ``None`` if the method has none."""
        return None

    @property
    def gain(self) -> float | None:
        """Gain of the latest step that has a record; ``None`` for methods without gains, and before the first."""
        return None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` for methods that exchange in every step."""
        return None

    def exchanges(self) -> int | None:
        """Return the number of exchanges so far; ``None`` for methods that exchange in every step."""
        return None

    def exposed(self, backward: float) -> float:
        """Return the seconds that the last step waited for the exchange.

        Args:
            backward: seconds from the computation of the last gradient to the end of backward.
        """
        return backward

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the bytes that this rank sent: by gravac's ledger, for other methods by formula.

        Args:
            steps: number of steps.
            world: number of ranks.
        """
        raise NotImplementedError

    def decisions(self) -> list[DecisionRecord]:
        """Return the record of the first candidate, then every decision, also those that changed nothing."""
        return []

    def changes(self) -> list[ModeRecord]:
        """Return the changes of mode so far, each with its seconds on this rank."""
        return []

    def split(self) -> tuple[float | None, float | None]:
        """Return the typical seconds of a step in compression, and in collectives; ``None`` if not known."""
        return None, None

    def mean_gain(self) -> float | None:
        """Return the mean gain over the steps so far; ``None`` if no gain is known."""
        return None

    def close(self) -> None:
        """End the method's threads, and close its logs."""


_NEVER_FREED: list[dist.ProcessGroup] = []
"""Process groups of torch's PowerSGD hook, whose callbacks run on gloo's threads and refer to the group. If a callback
had the last reference, its thread would free the group, wait for itself, and abort the process."""


class TorchExchange(Exchange):
    """DDP without a hook, or with a hook of torch.

    Args:
        method: see ``Exchange``.
        module: see ``Exchange``.
        seed: seed of torch's PowerSGD.
    """

    def __init__(self, method: Method, module: DistributedDataParallel, seed: int) -> None:
        super().__init__(method, module)
        self._shapes = trained_shapes(module)
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
        dense_steps = min(steps, POWERSGD_START)
        return AllReduce.wire_bytes(4 * (dense_steps * elements + (steps - dense_steps) * sent), world)

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``."""
        return [start_record(Candidate("native", DENSE, self.cf))] if self.cf is not None else []


class OurExchange(Exchange):
    """A method of gravac, attached.

    Args:
        method: see ``Exchange``.
        module: see ``Exchange``; it must have no communication hook yet.
        optimizer: optimizer of the model.
        run_settings: settings of the run: ``samples_per_step``, ``log_dir``, ``seed``, ``pace``, ``controller``.
    """

    def __init__(
        self, method: Method, module: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run_settings: Any
    ) -> None:
        super().__init__(method, module)
        self._steps: list[StepRecord] = []
        self._elements = sum(math.prod(shape) for shape in trained_shapes(module))
        self._compressor = method.make(**run_settings, sinks=[self._collect])
        if method.base is not None and method.base.owns_momentum:
            disable_momentum(optimizer)
        self._stopwatch = Stopwatch()
        self._stopwatch.start_before_hooks(module, optimizer)
        self._compressor.attach(module, optimizer)
        self._stopwatch.stop_after_hooks(module, optimizer)
        self._tally = Tally(self._compressor)
        optimizer.register_step_post_hook(self._tally.step_ended)

    def _collect(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._steps.append(record)

    @property
    def in_flight(self) -> bool:
        """See ``Exchange``. False with a fixed delay, with which a rank may apply a mean earlier than other ranks."""
        outer = self._compressor.outer
        return outer is not None and outer.under_way and self.method.modes.outer.delay == "auto"

    def settle(self) -> None:
        """See ``Exchange``."""
        with self._stopwatch.running(), self._compressor.synced():
            pass

    def finish(self) -> None:
        """See ``Exchange``."""
        with self._stopwatch.running():
            self._compressor.synchronize()

    def shared(self) -> AbstractContextManager[None]:
        """See ``Exchange``."""
        return self._compressor.synced()

    @property
    def mode(self) -> Mode:
        """See ``Exchange``."""
        return self._steps[-1].mode if self._steps else self._compressor.mode

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
        if not self.method.local_steps:
            return None
        return self._steps[-1].every if self._steps else self._compressor.every

    def exchanges(self) -> int | None:
        """See ``Exchange``."""
        return self._tally.exchanges if self.method.local_steps else None

    def exposed(self, backward: float) -> float:
        """See ``Exchange``. Any wait outside of backward is in gravac's hooks."""
        return backward + self._stopwatch.read_and_reset()

    def wire_bytes(self, steps: int, world: int) -> int:
        """See ``Exchange``. The ledger lacks the bytes that DDP itself sent, which a formula gives."""
        native = (
            count * AllReduce.wire_bytes(round(4 * self._elements / cf), world)
            for cf, count in self._tally.native_steps.items()
        )
        return self._compressor.ledger.wire_bytes + sum(native)

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``. The first candidate is known as soon as the ranks have agreed on a step."""
        return [*self._first_records(), *self._compressor.history]

    def changes(self) -> list[ModeRecord]:
        """See ``Exchange``."""
        return self._compressor.changes

    def _first_records(self) -> list[DecisionRecord]:
        """Return the record of the first candidate, in a list; an empty list if it is not known yet."""
        if self._steps:
            first = self._steps[0]
            return [start_record(Candidate(first.mode, first.compressor, first.cf, first.every, first.delay))]
        return [start_record(Candidate("native", DENSE, cf)) for cf in self._tally.native_steps][:1]

    def split(self) -> tuple[float | None, float | None]:
        """See ``Exchange``: the median over steps; with local steps, the mean over steps."""
        steps = [record for record in self._steps if record.step >= WARM_UP] or self._steps
        typical = mean if self.method.local_steps else median
        return (
            typical([(record.compress_seconds, record.steps) for record in steps]),
            typical([(record.exchange_seconds, record.steps) for record in steps]),
        )

    def mean_gain(self) -> float | None:
        """See ``Exchange``."""
        return mean([(record.gain, record.steps) for record in self._steps if record.gain is not None])

    def close(self) -> None:
        """See ``Exchange``."""
        self._compressor.close()


class Stopwatch:
    """Seconds of a step that gravac spends in hooks of the model's forward and of the optimizer's step."""

    def __init__(self) -> None:
        self._since = self._seconds = 0.0

    def start_before_hooks(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Start before the hooks that are registered after this call."""
        module.register_forward_pre_hook(self._start)
        optimizer.register_step_post_hook(self._start)

    def stop_after_hooks(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Stop after the hooks that were registered before this call."""
        module.register_forward_pre_hook(self._stop)
        optimizer.register_step_post_hook(self._stop)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the seconds of a block."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    def read_and_reset(self) -> float:
        """Return the seconds counted since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _start(self, *_: object) -> None:
        self._since = time.perf_counter()

    def _stop(self, *_: object) -> None:
        self._seconds += time.perf_counter() - self._since


class Tally:
    """Number of exchanges of a run, and of native steps.

    Args:
        compressor: compressor that runs the steps.

    Attributes:
        native_steps: number of steps in which DDP itself exchanged, by CF.
    """

    def __init__(self, compressor: AdaptiveCompressor) -> None:
        self.native_steps: Counter[float] = Counter()
        self._compressor = compressor
        self._averaged_steps = self._earlier_rounds = 0
        self._outer: RoundState | None = None
        self._changes = -1
        self._cf = 1.0

    @property
    def exchanges(self) -> int:
        """Number of exchanges: of gradients in a step, and of pseudo-gradients at the end of a round."""
        return self._averaged_steps + self._earlier_rounds + (0 if self._outer is None else self._outer.ended)

    def step_ended(self, *_: object) -> None:
        """Count a step, after the optimizer made it."""
        outer = self._compressor.outer
        if outer is not self._outer:
            self._earlier_rounds += 0 if self._outer is None else self._outer.ended
            self._outer = outer
        if outer is None:
            self._averaged_steps += 1
        if self._compressor.mode == "native":
            changes = len(self._compressor.changes)
            if changes != self._changes:  # the CF of native steps changes only with the mode
                self._changes, self._cf = changes, self._compressor.cf
            self.native_steps[self._cf] += 1


def attach_to_ddp(
    method: Method, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run_settings: Any
) -> Exchange:
    """Attach a method to a DDP model that has no communication hook yet.

    Args:
        method: method of exchanging gradients.
        ddp: DDP around the model.
        optimizer: optimizer of the model.
        run_settings: settings of the run, see ``OurExchange``.

    Raises:
        ValueError: the method cannot be paced.
    """
    torch_runs = method.native != "bf16" or dist.get_backend(ddp.process_group) == "nccl"
    if not method.ours and torch_runs and run_settings["pace"] is None:
        return TorchExchange(method, ddp, run_settings["seed"])
    return OurExchange(method, ddp, optimizer, **run_settings)


Weighted = Sequence[tuple[float, int]]
"""``(number, steps)`` pairs: a number, and the number of steps that it stands for."""


def mean(numbers: Weighted) -> float | None:
    """Return the mean over steps of the finite numbers; ``None`` if no number is finite.

    Example:
        >>> mean([(1.0, 3), (5.0, 1), (float("nan"), 7)])
        2.0
    """
    finite = [(number, steps) for number, steps in numbers if math.isfinite(number)]
    steps = sum(steps for _, steps in finite)
    return sum(number * steps for number, steps in finite) / steps if steps else None


def median(numbers: Weighted) -> float | None:
    """Return the median over steps; ``None`` if it is not finite. Nan counts as the highest number.

    Example:
        >>> median([(1.0, 1), (5.0, 3)]), median([(1.0, 1), (float("nan"), 3)])
        (5.0, None)
    """
    half, counted = sum(steps for _, steps in numbers) / 2, 0
    for number, steps in sorted(numbers, key=lambda pair: (math.isnan(pair[0]), pair[0])):
        counted += steps
        if counted >= half:
            return number if math.isfinite(number) else None
    return None


def start_record(candidate: Candidate) -> DecisionRecord:
    """Return a decision record for the first candidate of a run."""
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


def trained_shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters to train."""
    return [tuple(parameter.shape) for parameter in module.parameters() if parameter.requires_grad]


def disable_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Switch the optimizer's momentum off, for compressors that apply momentum themselves."""
    for group in optimizer.param_groups:
        if "momentum" in group:
            group.update(momentum=0.0, nesterov=False)
        if "betas" in group:
            group["betas"] = (0.0, group["betas"][1])


def _powersgd_elements(shape: tuple[int, ...], rank: int) -> int:
    """Return how many elements torch's PowerSGD sends of a tensor.

    Both factors if they have fewer than half of the tensor's elements, otherwise the tensor.
    """
    elements = math.prod(shape)
    if len(shape) < 2:
        return elements
    rows, columns = shape[0], elements // shape[0]
    factors = (rows + columns) * min(rank, rows, columns)
    return factors if elements > 2 * factors else elements
