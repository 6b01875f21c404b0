# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods of exchanging gradients, attached to a model, and the numbers that the lab reads of them.

``Exchange`` is the interface; ``TorchExchange`` is DDP with or without a hook of torch, ``GravacExchange`` is gravac. A
training step need not call an exchange: hooks of DDP, modules and optimizers send the gradients.
``torchft_baselines.py`` has torchft's methods, ``sharded.py`` torch's own exchange of a model in shards.
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
from gravac.lab.training.methods import TORCH_FORMATS, Method
from gravac.modes.outer.round_state import RoundState
from gravac.telemetry.records import DecisionRecord, ModeRecord, Record, StepRecord

POWERSGD_DENSE_STEPS = 2
"""Number of uncompressed steps before torch's PowerSGD begins to compress: the minimum that torch allows."""

WARM_UP_STEPS = 3
"""Number of steps at the start of a training that means and medians leave out."""

_TORCH_HOOKS: dict[str, Callable[..., Any]] = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}


class Exchange:
    """Base class of attached methods of exchanging gradients, with all that a training loop calls and reads.

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
        """True if an exchange may be in flight during the next step; the same on every rank."""
        return False

    def wait_for_exchanges(self) -> None:
        """Wait until no exchange is in flight."""

    def exchange_remainder(self) -> None:
        """Exchange what the ranks have not exchanged yet; call after the last step."""

    def shared_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that all ranks share, such as for evaluation."""
        return nullcontext()

    def shared_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model state that all ranks share, as tensors of any shapes by name; never waits."""
        module = getattr(self.module, "module", self.module)
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    @property
    def mode(self) -> Mode:
        """Mode (``native``, ``hook`` or ``outer``) of the latest recorded step."""
        return "native"

    @property
    def cf(self) -> float | None:
        """Compression factor of the latest recorded step; ``None`` if the method has none."""
        return None

    @property
    def gain(self) -> float | None:
        """Gain of the latest recorded step; ``None`` before the first record, and for methods without gains."""
        return None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` for methods that exchange in every step."""
        return None

    def exchange_count(self) -> int | None:
        """Return the number of exchanges so far; ``None`` for methods that exchange in every step."""
        return None

    @property
    def knows_exposed_time(self) -> bool:
        """True if ``exposed_seconds`` can separate the wait for the exchange from the computation."""
        return True

    def exposed_seconds(self, backward: float) -> float:
        """Return the seconds that the last step waited for the exchange.

        Args:
            backward: seconds from the computation of the last gradient to the end of backward, in that step.
        """
        return backward

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank sent so far: as gravac counted, or by formula for other methods.

        Args:
            steps: number of steps so far.
            world: number of ranks.
        """
        raise NotImplementedError

    def decisions(self) -> list[DecisionRecord]:
        """Return a record of the first candidate, then of every decision, also of those that changed nothing."""
        return []

    def mode_changes(self) -> list[ModeRecord]:
        """Return the records of the changes of mode so far, each with the seconds that it took on this rank."""
        return []

    def phase_seconds(self) -> tuple[float | None, float | None]:
        """Return a typical step's seconds of compression and seconds of collectives; ``None`` if not known."""
        return None, None

    def mean_gain(self) -> float | None:
        """Return the mean gain over the steps so far; ``None`` if no gain is known."""
        return None

    def close(self) -> None:
        """End the threads of the method, and close its logs."""


_NEVER_FREED: list[dist.ProcessGroup] = []
"""Process groups of torch's PowerSGD hook, referenced here so that they are never freed.

The hook's callbacks run on gloo's threads and refer to the group. If a callback had the last reference, its thread
would free the group, wait for itself, and abort the process.
"""


class TorchExchange(Exchange):
    """DDP without a communication hook, or with a hook of torch.

    Args:
        method: method of torch.
        module: DDP around the model.
        seed: seed of torch's PowerSGD.
    """

    def __init__(self, method: Method, module: DistributedDataParallel, seed: int) -> None:
        super().__init__(method, module)
        self._shapes = trained_shapes(module)
        if method.powersgd_rank is not None:
            if dist.group.WORLD is not None:
                _NEVER_FREED.append(dist.group.WORLD)
            state = torch_powersgd.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=method.powersgd_rank,
                start_powerSGD_iter=POWERSGD_DENSE_STEPS,
                min_compression_rate=2,
                random_seed=seed,
            )
            module.register_comm_hook(state, torch_powersgd.powerSGD_hook)
        elif hook := _TORCH_HOOKS.get(method.torch_format or ""):
            module.register_comm_hook(None, hook)

    @property
    def cf(self) -> float | None:
        """Compression factor of torch's hook, 1 without a hook; ``None`` for PowerSGD."""
        return TORCH_FORMATS[self.method.torch_format][0] if self.method.torch_format else None

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank sent in its first ``steps`` steps, among ``world`` ranks, by formula."""
        elements = sum(math.prod(shape) for shape in self._shapes)
        if self.method.torch_format:
            return steps * AllReduce.wire_bytes(round(4 * elements / TORCH_FORMATS[self.method.torch_format][0]), world)
        assert self.method.powersgd_rank is not None
        sent_elements = sum(_powersgd_elements(shape, self.method.powersgd_rank) for shape in self._shapes)
        dense_steps = min(steps, POWERSGD_DENSE_STEPS)
        return AllReduce.wire_bytes(4 * (dense_steps * elements + (steps - dense_steps) * sent_elements), world)

    def decisions(self) -> list[DecisionRecord]:
        """Return one record, of the method's fixed candidate; an empty list for PowerSGD."""
        return [start_record(Candidate("native", DENSE, self.cf))] if self.cf is not None else []


class GravacExchange(Exchange):
    """A method that gravac runs, attached to DDP, or to a model in shards.

    Args:
        method: method of gravac, or a dense method of torch that gravac runs in its place.
        module: DDP around the model, without a communication hook yet; or the model, in shards by FSDP2.
        optimizer: optimizer of the model.
        run_settings: settings of ``AdaptiveCompressor`` that belong to the run: ``samples_per_step``, ``log_dir``,
            ``seed``, ``pace``, ``controller``.
    """

    def __init__(
        self, method: Method, module: torch.nn.Module, optimizer: torch.optim.Optimizer, **run_settings: Any
    ) -> None:
        super().__init__(method, module)
        self._step_records: list[StepRecord] = []
        self._elements = sum(math.prod(shape) for shape in trained_shapes(module))
        self._compressor = method.make(**run_settings, sinks=[self._collect])
        if method.base is not None and method.base.owns_momentum:
            disable_momentum(optimizer)
        self._stopwatch = HookStopwatch()
        self._stopwatch.start_before_hooks(module, optimizer)
        self._compressor.attach(module, optimizer)
        self._stopwatch.stop_after_hooks(module, optimizer)
        self._tally = ExchangeTally(self._compressor)
        optimizer.register_step_post_hook(self._tally.step_ended)

    def _collect(self, record: Record) -> None:
        """Keep a record that gravac logs, if the record is of a step."""
        if isinstance(record, StepRecord):
            self._step_records.append(record)

    @property
    def in_flight(self) -> bool:
        """True if an exchange may be in flight during the next step; the same on every rank.

        False with a fixed delay, with which a rank may apply a mean earlier than other ranks do.
        """
        outer = self._compressor.outer
        return outer is not None and outer.under_way and self.method.modes.outer.delay == "auto"

    def wait_for_exchanges(self) -> None:
        """Wait until no exchange is in flight."""
        with self._stopwatch.timed_block(), self._compressor.synced():
            pass

    def exchange_remainder(self) -> None:
        """Exchange what the ranks have not exchanged yet; call after the last step."""
        with self._stopwatch.timed_block():
            self._compressor.synchronize()

    def shared_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that all ranks share, such as for evaluation."""
        return self._compressor.synced()

    @property
    def mode(self) -> Mode:
        """Mode (``native``, ``hook`` or ``outer``) of the latest recorded step."""
        return self._step_records[-1].mode if self._step_records else self._compressor.mode

    @property
    def cf(self) -> float | None:
        """Compression factor of the latest recorded step; ``None`` if the method has none."""
        return self._step_records[-1].cf if self._step_records else None

    @property
    def gain(self) -> float | None:
        """Gain of the latest recorded step; ``None`` before the first record, and for methods without gains."""
        return self._step_records[-1].gain if self._step_records else None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` for methods that exchange in every step."""
        if not self.method.has_local_steps:
            return None
        return self._step_records[-1].every if self._step_records else self._compressor.every

    def exchange_count(self) -> int | None:
        """Return the number of exchanges so far; ``None`` for methods that exchange in every step."""
        return self._tally.exchange_count if self.method.has_local_steps else None

    def exposed_seconds(self, backward: float) -> float:
        """Return the seconds that the last step waited for the exchange.

        The sum of the seconds after the last gradient in backward, and the seconds in gravac's hooks of forward and of
        the optimizer's step.
        """
        return backward + self._stopwatch.read_and_reset()

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank sent so far.

        gravac counts its own bytes; a formula gives the bytes of DDP in native steps. A model in shards has no native
        steps.

        Args:
            steps: not used, since gravac counts its steps.
            world: number of ranks.
        """
        native_bytes = (
            count * AllReduce.wire_bytes(round(4 * self._elements / cf), world)
            for cf, count in self._tally.native_steps.items()
        )
        return self._compressor.ledger.wire_bytes + sum(native_bytes)

    def decisions(self) -> list[DecisionRecord]:
        """Return a record of the first candidate, then of every decision, also of those that changed nothing.

        The record of the first candidate is missing until a step was recorded or counted.
        """
        return [*self._first_records(), *self._compressor.history]

    def mode_changes(self) -> list[ModeRecord]:
        """Return the records of the changes of mode so far, each with the seconds that it took on this rank."""
        return self._compressor.changes

    def _first_records(self) -> list[DecisionRecord]:
        """Return a list of one record, of the first candidate; an empty list if the candidate is not known yet."""
        if self._step_records:
            first_record = self._step_records[0]
            return [
                start_record(
                    Candidate(
                        first_record.mode,
                        first_record.compressor,
                        first_record.cf,
                        first_record.every,
                        first_record.delay,
                    )
                )
            ]
        return [start_record(Candidate("native", DENSE, cf)) for cf in self._tally.native_steps][:1]

    def phase_seconds(self) -> tuple[float | None, float | None]:
        """Return a typical step's seconds of compression and seconds of collectives; ``None`` if not known.

        A typical step is the median over steps; for methods with local steps, the mean.
        """
        steps = [record for record in self._step_records if record.step >= WARM_UP_STEPS] or self._step_records
        average = weighted_mean if self.method.has_local_steps else weighted_median
        return (
            average([(record.compress_seconds, record.steps) for record in steps]),
            average([(record.exchange_seconds, record.steps) for record in steps]),
        )

    def mean_gain(self) -> float | None:
        """Return the mean gain over the steps so far; ``None`` if no gain is known."""
        return weighted_mean([(record.gain, record.steps) for record in self._step_records if record.gain is not None])

    def close(self) -> None:
        """End the threads of the method, and close its logs."""
        self._compressor.close()


class HookStopwatch:
    """A stopwatch for the seconds that gravac spends in hooks of the model's forward and of the optimizer's step.

    Hooks run in the order in which they were registered, so the stopwatch registers a hook before gravac's and a hook
    after gravac's.
    """

    def __init__(self) -> None:
        self._start_time = self._seconds = 0.0

    def start_before_hooks(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Register hooks that start the stopwatch; call before gravac registers its hooks."""
        module.register_forward_pre_hook(self._start)
        optimizer.register_step_post_hook(self._start)

    def stop_after_hooks(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Register hooks that stop the stopwatch; call after gravac has registered its hooks."""
        module.register_forward_pre_hook(self._stop)
        optimizer.register_step_post_hook(self._stop)

    @contextmanager
    def timed_block(self) -> Iterator[None]:
        """Add the seconds of a block to the counted seconds."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    def read_and_reset(self) -> float:
        """Return the seconds counted since the last call of this function."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _start(self, *_: object) -> None:
        self._start_time = time.perf_counter()

    def _stop(self, *_: object) -> None:
        self._seconds += time.perf_counter() - self._start_time


class ExchangeTally:
    """Counts the exchanges of a run, and its native steps, in which DDP itself averages the gradients.

    Args:
        compressor: compressor that runs the steps.

    Attributes:
        native_steps: number of native steps, by CF.
    """

    def __init__(self, compressor: AdaptiveCompressor) -> None:
        self.native_steps: Counter[float] = Counter()
        self._compressor = compressor
        self._averaged_steps = self._rounds_of_ended_phases = 0
        self._outer: RoundState | None = None
        self._counted_changes = -1
        self._cf = 1.0

    @property
    def exchange_count(self) -> int:
        """Number of exchanges so far: of gradients, one per step, and of pseudo-gradients, one per round."""
        return self._averaged_steps + self._rounds_of_ended_phases + (0 if self._outer is None else self._outer.ended)

    def step_ended(self, *_: object) -> None:
        """Count a step; to be registered as a hook after the optimizer's step."""
        outer = self._compressor.outer
        if outer is not self._outer:
            self._rounds_of_ended_phases += 0 if self._outer is None else self._outer.ended
            self._outer = outer
        if outer is None:
            self._averaged_steps += 1
        if self._compressor.mode == "native":
            changes = len(self._compressor.changes)
            if changes != self._counted_changes:  # the CF of native steps changes only with the mode
                self._counted_changes, self._cf = changes, self._compressor.cf
            self.native_steps[self._cf] += 1


def attach_to_ddp(
    method: Method, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run_settings: Any
) -> Exchange:
    """Attach a method of gravac or torch to DDP; return the attached method.

    Args:
        method: method of exchanging gradients.
        ddp: DDP around the model, without a communication hook yet.
        optimizer: optimizer of the model.
        run_settings: settings of the run, see ``GravacExchange``.

    Raises:
        ValueError: the method cannot be paced.
    """
    torch_can_run = method.torch_format != "bf16" or dist.get_backend(ddp.process_group) == "nccl"
    if not method.uses_gravac and torch_can_run and run_settings["pace"] is None:
        return TorchExchange(method, ddp, run_settings["seed"])
    return GravacExchange(method, ddp, optimizer, **run_settings)


WeightedNumbers = Sequence[tuple[float, int]]
"""Pairs ``(number, steps)``: a number that was measured over several steps, and the number of these steps."""


def weighted_mean(numbers: WeightedNumbers) -> float | None:
    """Return the mean of the finite numbers, each weighted by its steps; ``None`` if no number is finite.

    Example:
        >>> weighted_mean([(1.0, 3), (5.0, 1), (float("nan"), 7)])
        2.0
    """
    finite_numbers = [(number, steps) for number, steps in numbers if math.isfinite(number)]
    steps = sum(steps for _, steps in finite_numbers)
    return sum(number * steps for number, steps in finite_numbers) / steps if steps else None


def weighted_median(numbers: WeightedNumbers) -> float | None:
    """Return the median of numbers, each weighted by its steps; ``None`` if the median is not finite.

    Nan counts as higher than any number.

    Example:
        >>> weighted_median([(1.0, 1), (5.0, 3)]), weighted_median([(1.0, 1), (float("nan"), 3)])
        (5.0, None)
    """
    half_of_steps, counted_steps = sum(steps for _, steps in numbers) / 2, 0
    for number, steps in sorted(numbers, key=lambda weighted: (math.isnan(weighted[0]), weighted[0])):
        counted_steps += steps
        if counted_steps >= half_of_steps:
            return number if math.isfinite(number) else None
    return None


def start_record(candidate: Candidate) -> DecisionRecord:
    """Return a record of the first candidate of a run, in the form of a decision at step 0."""
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
    """Return the shapes of the parameters that require gradients."""
    return [tuple(parameter.shape) for parameter in module.parameters() if parameter.requires_grad]


def disable_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Set the optimizer's momentum to 0, for compressors that apply momentum themselves."""
    for group in optimizer.param_groups:
        if "momentum" in group:
            group.update(momentum=0.0, nesterov=False)
        if "betas" in group:
            group["betas"] = (0.0, group["betas"][1])


def _powersgd_elements(shape: tuple[int, ...], rank: int) -> int:
    """Return the number of elements that torch's PowerSGD sends for a tensor of a shape.

    The hook sends both low-rank factors if they have fewer than half of the tensor's elements, otherwise the tensor.
    """
    elements = math.prod(shape)
    if len(shape) < 2:
        return elements
    rows, columns = shape[0], elements // shape[0]
    factor_elements = (rows + columns) * min(rank, rows, columns)
    return factor_elements if elements > 2 * factor_elements else elements
