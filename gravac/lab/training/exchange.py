# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods of exchanging gradients, attached to a model, and the numbers that the lab reads from them.

``Exchange`` is the interface. ``TorchExchange`` is DDP with or without a hook of torch, and ``GravacExchange`` is
gravac. The training loop does not have to start an exchange: hooks of DDP, modules and optimizers do that.
``sharded.py`` has torch's own exchange of a model in shards.
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
from gravac.candidate import DENSE, Candidate, Forecast, named
from gravac.collectives import AllReduce
from gravac.lab.training.methods import TORCH_DENSE_METHODS, Method
from gravac.modes.outer.round_state import RoundState
from gravac.telemetry.records import (
    DecisionRecord,
    ForecastsRecord,
    Record,
    RunRecord,
    StepRecord,
)

POWERSGD_DENSE_STEPS = 2
"""Number of dense steps before torch's PowerSGD begins to compress; torch allows no fewer."""

WARM_UP_STEPS = 3
"""Averages of step times leave out this many steps at the start of a training run."""

_TORCH_HOOKS: dict[str, Callable[..., Any]] = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}
"""Communication hooks of torch, by the method's text.

DDP calls a hook with the process group and a bucket of gradients; the hook returns a future of the bucket's mean, flat.
"""


class Exchange:
    """A method of exchanging gradients, attached to a model: base class with all that a training loop calls or reads.

    Args:
        method: method of exchanging gradients.
        module: module to train: the model, or DDP around the model.

    Attributes:
        method: method of exchanging gradients.
        module: module whose forward the training loop calls: the model, or DDP around the model.
    """

    def __init__(self, method: Method, module: torch.nn.Module) -> None:
        self.method, self.module = method, module

    @property
    def in_flight(self) -> bool:
        """True if an exchange may still be in flight during the next step; all ranks have the same answer."""
        return False

    def wait_for_exchanges(self) -> None:
        """Wait until no exchange is in flight; the rank's own weights stay as they are."""

    def exchange_remainder(self) -> None:
        """Exchange what the ranks learned since the last exchange; called on all ranks after the last step.

        Does nothing for methods that exchange in every step.
        """

    def shared_weights(self) -> AbstractContextManager[None]:
        """Return a context, such as for evaluation, in which the model has the weights that all ranks share.

        With local steps these are the weights after the last exchange; on exit the rank's own weights are restored.
        """
        return nullcontext()

    def shared_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's ``state_dict``, tensors of any shape by name, with weights that all ranks share.

        The function does not wait for an exchange in flight, so the weights are from the last finished exchange.
        """
        module = getattr(self.module, "module", self.module)
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}

    @property
    def gain(self) -> float | None:
        """Gain (share of the gradients' energy that was sent) of the latest recorded step.

        ``None`` before the first record, and for methods that measure no gain.
        """
        return None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` for methods that exchange in every step."""
        return None

    @property
    def running(self) -> str:
        """Name of the candidate (way to run steps) of the latest recorded step; empty if not known."""
        return ""

    def exchange_count(self) -> int | None:
        """Return the number of exchanges so far; ``None`` for methods that exchange in every step."""
        return None

    @property
    def knows_exposed_time(self) -> bool:
        """True if ``exposed_seconds`` can tell the time of waiting for the exchange from the time of computation."""
        return True

    def exposed_seconds(self, after_last_gradient_s: float) -> float:
        """Return the seconds for which the last step waited for the exchange; called once after each step.

        Args:
            after_last_gradient_s: seconds from the computation of the last gradient to the end of backward, in the last
                step.
        """
        return after_last_gradient_s

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank has sent so far.

        gravac counts the bytes of its own collectives; for methods of torch, a formula gives the bytes.

        Args:
            steps: number of steps so far.
            world: number of ranks.
        """
        raise NotImplementedError

    def decisions(self) -> list[DecisionRecord]:
        """Return a record of each decision, in order; the first is of the candidate (way to run steps) that began.

        Decisions that changed nothing have records, too.
        """
        return []

    def phase_seconds(self) -> tuple[float | None, float | None]:
        """Return ``(seconds of compression, seconds of collectives)`` of a typical step; ``None`` if not known."""
        return None, None

    def mean_gain(self) -> float | None:
        """Return the mean gain (share of the gradients' energy that was sent) over the steps so far.

        ``None`` if no step has a known gain.
        """
        return None

    def close(self) -> None:
        """End the threads of the method, and close its logs."""


_NEVER_FREED_GROUPS: list[dist.ProcessGroup] = []
"""Process groups of torch's PowerSGD hook, which this list keeps alive until the process ends.

The hook's callbacks run on gloo's threads and hold references to the group. If a callback held the last reference, its
thread would free the group. To do that, the thread would have to wait for itself, and the process would abort.
"""


class TorchExchange(Exchange):
    """DDP without a communication hook, or with a hook of torch; see ``Exchange`` for the interface.

    Args:
        method: method of torch: ``fp32``, ``fp16``, ``bf16`` or ``torch-powersgd``.
        module: DDP around the model, without a communication hook yet.
        seed: seed of the random numbers of torch's PowerSGD.
    """

    def __init__(self, method: Method, module: DistributedDataParallel, seed: int) -> None:
        super().__init__(method, module)
        self._shapes = trained_shapes(module)
        if method.powersgd_rank is not None:
            if dist.group.WORLD is not None:
                _NEVER_FREED_GROUPS.append(dist.group.WORLD)
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

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank sent in its first ``steps`` steps, by the formula of ring all-reduce.

        Args:
            steps: number of steps so far.
            world: number of ranks.
        """
        elements = sum(math.prod(shape) for shape in self._shapes)
        if self.method.torch_format:
            return steps * AllReduce.wire_bytes(
                round(4 * elements / TORCH_DENSE_METHODS[self.method.torch_format][0]), world
            )
        assert self.method.powersgd_rank is not None
        sent_elements = sum(_powersgd_elements(shape, self.method.powersgd_rank) for shape in self._shapes)
        dense_steps = min(steps, POWERSGD_DENSE_STEPS)
        return AllReduce.wire_bytes(4 * (dense_steps * elements + (steps - dense_steps) * sent_elements), world)

    @property
    def running(self) -> str:
        """Name of what DDP exchanges in all steps, such as ``native bfloat16``; empty for PowerSGD."""
        return f"native {TORCH_DENSE_METHODS[self.method.torch_format][1]}" if self.method.torch_format else ""

    def decisions(self) -> list[DecisionRecord]:
        """Return a list with one record, of the candidate (way to run steps) that runs; empty for PowerSGD."""
        if not self.method.torch_format:
            return []
        return [start_record(Candidate("native", DENSE, TORCH_DENSE_METHODS[self.method.torch_format][0]))]


class GravacExchange(Exchange):
    """A method that gravac runs, attached to DDP or to a model in shards; see ``Exchange`` for the interface.

    Args:
        method: method of gravac, or a dense method of torch that gravac runs instead of torch.
        module: DDP around the model, without a communication hook yet; or the model, in shards by FSDP2.
        optimizer: optimizer of the model. Its momentum is set to 0 if the compressor applies momentum itself.
        run_settings: further keyword arguments of ``AdaptiveCompressor``: ``samples_per_step``, ``log_dir``, ``seed``
            and ``controller``; and ``paced``, as in ``Method.make``.
    """

    def __init__(
        self, method: Method, module: torch.nn.Module, optimizer: torch.optim.Optimizer, **run_settings: Any
    ) -> None:
        super().__init__(method, module)
        self._step_records: list[StepRecord] = []
        self._decision_records: list[DecisionRecord] = []  # empty on other ranks than rank 0
        self._forecasts: tuple[Forecast, ...] = ()
        self._elements = sum(math.prod(shape) for shape in trained_shapes(module))
        self._compressor = method.make(**run_settings, sinks=[self._store_record])
        if method.base is not None and method.base.owns_momentum:
            disable_momentum(optimizer)
        self._stopwatch = HookStopwatch()
        self._stopwatch.start_before_hooks(module, optimizer)
        self._compressor.attach(module, optimizer)
        self._stopwatch.stop_after_hooks(module, optimizer)
        self._tally = ExchangeTally(self._compressor)
        optimizer.register_step_post_hook(self._tally.count_step)

    def _store_record(self, record: Record) -> None:
        """Store a record of a step or a decision, and the forecasts; gravac calls this method with each new record."""
        if isinstance(record, StepRecord):
            self._step_records.append(record)
        elif isinstance(record, DecisionRecord):
            self._decision_records.append(record)
        elif isinstance(record, (RunRecord, ForecastsRecord)):
            self._forecasts = record.forecasts

    @property
    def in_flight(self) -> bool:
        """True if an exchange may still be in flight during the next step; all ranks have the same answer.

        Always False for outer steps with a fixed delay. At the end of a step, some ranks may have applied the mean of
        an exchange and others not yet, so the ranks would have different answers.
        """
        round_state = self._compressor.outer
        return round_state is not None and round_state.under_way and self.method.modes.outer.delay == "auto"

    def wait_for_exchanges(self) -> None:
        """Wait until no exchange is in flight; the rank's own weights stay as they are."""
        with self._stopwatch.timed_block(), self._compressor.shared_weights():
            pass

    def exchange_remainder(self) -> None:
        """Exchange what the ranks learned since the last exchange of outer steps; called after the last step."""
        with self._stopwatch.timed_block():
            self._compressor.synchronize()

    def shared_weights(self) -> AbstractContextManager[None]:
        """Return a context, such as for evaluation, in which the model has the weights that all ranks share."""
        return self._compressor.shared_weights()

    @property
    def gain(self) -> float | None:
        """Gain (share of the gradients' energy that was sent) of the latest recorded step.

        ``None`` before the first record, and if no gain was measured in the step.
        """
        return self._step_records[-1].gain if self._step_records else None

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next; ``None`` for methods that exchange in every step."""
        if not self.method.has_local_steps:
            return None
        return self._step_records[-1].every if self._step_records else self._compressor.every

    @property
    def running(self) -> str:
        """Name of the candidate (way to run steps) of the latest recorded step; empty before the first record."""
        return str(named(self._step_records[-1].candidate, self._forecasts)) if self._step_records else ""

    def exchange_count(self) -> int | None:
        """Return the number of exchanges so far; ``None`` for methods that exchange in every step."""
        return self._tally.exchange_count if self.method.has_local_steps else None

    def exposed_seconds(self, after_last_gradient_s: float) -> float:
        """Return the seconds for which the last step waited for the exchange; called once after each step.

        The result is ``after_last_gradient_s`` plus the seconds that gravac's hooks on forward and on the optimizer's
        step took.

        Args:
            after_last_gradient_s: seconds from the computation of the last gradient to the end of backward, in the last
                step.
        """
        return after_last_gradient_s + self._stopwatch.read_and_reset()

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank has sent so far.

        gravac counts the bytes of its own collectives. In native steps DDP exchanges without gravac, so the formula of
        ring all-reduce gives their bytes. A model in shards has no native steps.

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
        """Return a record of each decision, in order; the first is of the candidate (way to run steps) that began.

        Decisions that changed nothing have records, too. While gravac is idle, the candidate is DDP's own exchange.
        Other ranks than rank 0 know the newest decisions only.
        """
        newest_decisions = self._compressor.history  # waits for the decisions
        return (
            self._decision_records
            or newest_decisions
            or [start_record(Candidate("native", DENSE, cf)) for cf in self._tally.native_steps][:1]
        )

    def phase_seconds(self) -> tuple[float | None, float | None]:
        """Return ``(seconds of compression, seconds of collectives)`` of a typical step; ``None`` if not known.

        Both are medians over steps on this rank; for methods with local steps, means.
        """
        averaged_records = [
            record for record in self._step_records if record.step >= WARM_UP_STEPS
        ] or self._step_records
        average = weighted_mean if self.method.has_local_steps else weighted_median
        return (
            average([(record.compress_seconds, record.steps) for record in averaged_records]),
            average([(record.exchange_seconds, record.steps) for record in averaged_records]),
        )

    def mean_gain(self) -> float | None:
        """Return the mean gain (share of the gradients' energy that was sent) over the steps so far.

        ``None`` if no step has a known gain.
        """
        return weighted_mean([(record.gain, record.steps) for record in self._step_records if record.gain is not None])

    def close(self) -> None:
        """End the threads of the method, and close its logs."""
        self._compressor.close()


class HookStopwatch:
    """A stopwatch for the seconds that gravac's hooks on the model's forward and on the optimizer's step take.

    torch runs hooks in the order in which they were registered. So the stopwatch registers one hook before gravac's
    hooks, to start, and one hook after them, to stop.
    """

    def __init__(self) -> None:
        self._start_time = self._seconds = 0.0

    def start_before_hooks(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Register hooks that start the stopwatch; called before gravac registers its own hooks."""
        module.register_forward_pre_hook(self._start)
        optimizer.register_step_post_hook(self._start)

    def stop_after_hooks(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Register hooks that stop the stopwatch; called after gravac has registered its own hooks."""
        module.register_forward_pre_hook(self._stop)
        optimizer.register_step_post_hook(self._stop)

    @contextmanager
    def timed_block(self) -> Iterator[None]:
        """Return a context whose duration is added to the stopwatch's seconds."""
        self._start()
        try:
            yield
        finally:
            self._stop()

    def read_and_reset(self) -> float:
        """Return the seconds measured since the last call of this function, and set the stopwatch to 0."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _start(self, *_: object) -> None:
        self._start_time = time.perf_counter()

    def _stop(self, *_: object) -> None:
        self._seconds += time.perf_counter() - self._start_time


class ExchangeTally:
    """Counts the exchanges of a training run, and the native steps, in which DDP averages without gravac.

    Args:
        compressor: ``AdaptiveCompressor`` that is attached to the model.

    Attributes:
        native_steps: number of native steps so far, by compression factor (1: float32, 2: 16 bit).
    """

    def __init__(self, compressor: AdaptiveCompressor) -> None:
        self.native_steps: Counter[float] = Counter()
        self._compressor = compressor
        self._averaged_step_count = self._rounds_of_earlier_states = 0
        self._round_state: RoundState | None = None
        self._mode_change_count = -1
        self._native_cf = 1.0

    @property
    def exchange_count(self) -> int:
        """Number of exchanges so far: one for each step that averaged gradients, and one for each round of outer steps.

        A round is the steps from one exchange of pseudo-gradients to the next.
        """
        return (
            self._averaged_step_count
            + self._rounds_of_earlier_states
            + (0 if self._round_state is None else self._round_state.ended)
        )

    def count_step(self, *_: object) -> None:
        """Count a step; registered as a hook that runs after the optimizer's step."""
        round_state = self._compressor.outer
        if round_state is not self._round_state:
            self._rounds_of_earlier_states += 0 if self._round_state is None else self._round_state.ended
            self._round_state = round_state
        if round_state is None:
            self._averaged_step_count += 1
        if self._compressor.mode == "native":
            mode_change_count = len(self._compressor.changes)
            if mode_change_count != self._mode_change_count:  # native steps change their CF only with the mode
                self._mode_change_count, self._native_cf = mode_change_count, self._compressor.cf
            self.native_steps[self._native_cf] += 1


def attach_to_ddp(
    method: Method, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, **run_settings: Any
) -> Exchange:
    """Attach a method of gravac or torch to DDP; return the attached method.

    gravac also runs dense methods of torch if they are ``paced``, and ``bf16`` on gloo.

    Args:
        method: method of exchanging gradients, of gravac or torch.
        ddp: DDP around the model, without a communication hook yet.
        optimizer: optimizer of the model.
        run_settings: further arguments of ``GravacExchange``; ``paced`` and ``seed`` are required.

    Raises:
        ValueError: the run is ``paced``, and the method is torch's PowerSGD, which gravac cannot run.
    """
    torch_can_run = method.torch_format != "bf16" or dist.get_backend(ddp.process_group) == "nccl"
    if not method.uses_gravac and torch_can_run and not run_settings["paced"]:
        return TorchExchange(method, ddp, run_settings["seed"])
    return GravacExchange(method, ddp, optimizer, **run_settings)


WeightedNumbers = Sequence[tuple[float, int]]
"""Pairs ``(number, steps)``: a measured number, such as seconds or a gain, and the count of steps it stands for."""


def weighted_mean(numbers: WeightedNumbers) -> float | None:
    """Return the mean of the finite numbers, each weighted by its count of steps; ``None`` if no number is finite.

    Args:
        numbers: pairs ``(number, steps)``.

    Example:
        >>> weighted_mean([(1.0, 3), (5.0, 1), (float("nan"), 7)])
        2.0
    """
    finite_numbers = [(number, steps) for number, steps in numbers if math.isfinite(number)]
    total_steps = sum(steps for _, steps in finite_numbers)
    return sum(number * steps for number, steps in finite_numbers) / total_steps if total_steps else None


def weighted_median(numbers: WeightedNumbers) -> float | None:
    """Return the median of numbers, each weighted by its count of steps; ``None`` if the median is not finite.

    A nan counts as higher than any number. ``None`` also if ``numbers`` is empty.

    Args:
        numbers: pairs ``(number, steps)``.

    Example:
        >>> weighted_median([(1.0, 1), (5.0, 3)]), weighted_median([(1.0, 1), (float("nan"), 3)])
        (5.0, None)
    """
    half_of_steps, counted_steps = sum(steps for _, steps in numbers) / 2, 0
    for number, steps in sorted(
        numbers, key=lambda weighted_number: (math.isnan(weighted_number[0]), weighted_number[0])
    ):
        counted_steps += steps
        if counted_steps >= half_of_steps:
            return number if math.isfinite(number) else None
    return None


def start_record(candidate: Candidate) -> DecisionRecord:
    """Return a ``DecisionRecord`` at step 0 that says with which candidate (way to run steps) a run starts."""
    return DecisionRecord(
        step=0,
        compressor=candidate.compressor,
        cf=candidate.cf,
        changed=False,
        gain=None,
        gain_low=None,
        gain_high=None,
        t_system=None,
        t_compression=None,
        phase="start",
        reason=f"start at {candidate}",
        every=candidate.every,
        delay=candidate.delay,
        mode=candidate.mode,
        sends=candidate.sends,
    )


def trained_shapes(module: torch.nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes of a module's parameters that require gradients, in the order of ``parameters()``."""
    return [tuple(parameter.shape) for parameter in module.parameters() if parameter.requires_grad]


def disable_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Set an optimizer's momentum (SGD) or first beta (Adam) to 0; for compressors that apply momentum themselves."""
    for group in optimizer.param_groups:
        if "momentum" in group:
            group.update(momentum=0.0, nesterov=False)
        if "betas" in group:
            group["betas"] = (0.0, group["betas"][1])


def _powersgd_elements(shape: tuple[int, ...], rank: int) -> int:
    """Return the number of elements that torch's PowerSGD sends for one tensor.

    The hook sends the two low-rank factors if they have fewer than half of the tensor's elements. Otherwise it sends
    the tensor.

    Args:
        shape: shape of the tensor.
        rank: rank of the factors.
    """
    elements = math.prod(shape)
    if len(shape) < 2:
        return elements
    rows, columns = shape[0], elements // shape[0]
    factor_elements = (rows + columns) * min(rank, rows, columns)
    return factor_elements if elements > 2 * factor_elements else elements
