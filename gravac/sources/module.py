# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A module without DistributedDataParallel: hooks on its parameters hand gradients to the engine while backward runs.

A *step* is a backward whose gradients are exchanged. Its order is the same on all ranks, whatever order the gradients
are ready in, and whatever fails on one of them:

1. The engine's step begins, with the first gradient.
2. Rank 0's buffers leave, those that training changes.
3. The gradients leave, in groups of fixed order: a group as soon as it and all groups before it are ready.
4. Backward ends: the groups that are left leave, then marks: which parameters have a gradient on this rank, which
   buffers changed, and whether backward failed.
5. The engine's step ends. ``wait`` then has the means in ``.grad``.
"""

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gravac.candidate import Candidate
from gravac.collectives import AllReduce, Broadcast
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.engine.inputs import StepInputs
from gravac.exchange.alike import described
from gravac.exchange.executor import Job, Mark, Number
from gravac.guarded import Guarded
from gravac.measurement import LocalMeasurement
from gravac.sources.buffers import SentBuffers
from gravac.sources.ddp import canonical, learning_rate
from gravac.sources.ddp_private import LeftBehind
from gravac.sources.flags import pack, unpack
from gravac.sources.weights import check_memory

FIRST_GROUP = 1 << 20
"""Bytes of the first group, small as DDP's first bucket is, so that the link is busy soon."""

GROUP = 25 << 20
"""Bytes of each other group, as many as DDP's buckets have. A larger parameter is a group by itself."""


@dataclass(eq=False, slots=True)
class _Backward:
    """A backward under way.

    Attributes:
        task: autograd's number of the outermost backward; activation checkpointing runs others inside of it.
        synced: whether its gradients are exchanged.
        callback: dies with the backward, whether that ended or failed.
    """

    task: int
    synced: bool
    callback: "weakref.ref[_AtEnd]"


class _AtEnd:
    """What autograd calls when a backward has ended; nothing else refers to it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __call__(self) -> None:
        self._function()


@dataclass(eq=False, slots=True)
class _Step:
    """A step that was begun.

    Attributes:
        late: whether groups leave when backward has ended, not before.
        waiting_for: numbers of gradients that each group still waits for.
        arrived: names of parameters whose gradients were accumulated.
        groups: number of groups that left.
        handles: all that is in flight.
        lacking: stand-ins of this rank's missing gradients, zeros that become the mean, by name.
        copies: gradients that do not lie in memory as their parameters do, each with what is exchanged instead.
        buffers: rank 0's buffers as bytes, ``[bytes]``, with their names; ``None``: none are sent.
        marks: the ranks' sum of what step 4 tells, float64.
        failure: why this rank's gradients are not what they ought to be.
    """

    late: bool
    waiting_for: list[int]
    arrived: set[str] = field(default_factory=set)
    repeats: bool = False
    groups: int = 0
    handles: list[Handle] = field(default_factory=list)
    lacking: dict[str, torch.Tensor] = field(default_factory=dict)
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    buffers: tuple[Sequence[str], torch.Tensor] | None = None
    marks: torch.Tensor | None = None
    failure: Exception | None = None


class ModuleSource:
    """Averages the gradients of a module over the ranks, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over the ranks. As with DDP it is the mean of ``.grad``
    with all that was accumulated before: in ``accumulate()``, or by an earlier backward, whose mean is then in it.

    - *Which backward is a step.* Each that reaches a parameter outside of ``accumulate()``, unless the source is
      ``quiet``. Two backwards between two optimizer steps are two steps. The second exchanges the first's mean and its
      gradients together, of all parameters. All ranks make the same steps.
    - *No gradient.* A parameter that this rank's step does not reach takes part with the ``.grad`` it has, or with
      zeros. Afterwards it has the mean. If no rank had a gradient, its ``.grad`` stays ``None``, so that no optimizer
      changes it. This is what ``find_unused_parameters=True`` does in DDP. It takes a message of some bytes a step.
      Over NCCL the host of a rank without a gradient waits for that message.
    - *Buffers.* Running statistics must be the same on all ranks when they evaluate. DDP sends rank 0's in each
      forward, which waits for them. Here rank 0's leave when backward begins, beside the gradients, and are in place
      when ``backward()`` returns: after a step all ranks have the same. Buffers of normalization layers are sent
      in each step. Another one that changes on any rank is sent with the step after. So constants, such as masks, cost
      nothing.
    - *Activation checkpointing.* In its reentrant form autograd may accumulate a parameter's gradient several times in
      one backward. The first step, and each after one in which that happened, exchanges nothing before backward has
      ended. If it happens to a gradient that has left already, that step fails on all ranks.
    - *Failures* surface from ``backward()``. A backward may end with an exception after it reached the module's
      outputs. Then this rank's next forward or backward completes that step with zeros, so that ranks keep count of
      each other. The other ranks' ``backward()`` raises, where the host looks at data (not over NCCL).
    - *Parameters* are found by ``bind``. A parameter that is replaced later is not exchanged.

    Args:
        engine: averages the gradients.
        broadcast_buffers: whether buffers are sent; see above.
        waits: whether backward ends by ``wait``. Ranks in memory (``exchange.lockstep``) need ``False``: they call
            ``wait`` after the backwards of all ranks.

    Attributes:
        quiet: whether gradients stay local and nothing is exchanged, as in outer steps. Changed on all ranks between
            two steps.
        loss_scale: returns the factor that gradients were multiplied with; ``None``: without a scaler.
        optimizer: applies the gradients.
        runs: future of the candidate that was decided when the last step began; ``None`` before the first.
        send_whole: whether the next step sends all residuals, dense, whatever was decided.
    """

    def __init__(self, engine: Engine, *, broadcast_buffers: bool = True, waits: bool = True) -> None:
        self.quiet = self.send_whole = False
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.runs: Future[Candidate] | None = None
        self._engine, self._waits = engine, waits
        self._broadcasts_buffers = broadcast_buffers
        self._guarded = Guarded()
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._frozen: dict[str, torch.nn.Parameter] = {}
        self._groups: list[list[str]] = []
        self._group_of: dict[str, int] = {}
        self._buffers = SentBuffers()
        self._module: weakref.ref[torch.nn.Module] | None = None
        self._watched: list[torch.utils.hooks.RemovableHandle] = []
        self._accumulating = 0
        self._late = True
        self._backward: _Backward | None = None
        self._step: _Step | None = None
        self._ended: _Step | None = None
        self._unread: torch.Tensor | None = None  # marks of the last step, which nobody has read
        self._inputs: Mark | None = None
        self._optimized: Mark | None = None

    @property
    def module(self) -> torch.nn.Module | None:
        """The module being watched, as long as it lives."""
        return self._module() if self._module is not None else None

    def bind(self, module: torch.nn.Module) -> None:
        """Learn names and shapes of the parameters to train.

        Raises:
            TypeError: the module is a DistributedDataParallel, its parameters are in shards (FSDP, DTensor), or a
                parameter to train is complex.
            ValueError: there is nothing to train, it lies on several devices, has no memory yet, or cannot be exchanged
                as it lies in memory.
        """
        if isinstance(module, DistributedDataParallel):
            raise TypeError("module: it is a DistributedDataParallel, which averages gradients; give ddp.module")
        named = {canonical(name): parameter for name, parameter in module.named_parameters()}
        parameters = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        _refuse_sharded(module, named)
        _refuse_unplaced(named, parameters)
        check_memory(module)
        self._engine.know(parameters)
        self._parameters = parameters
        self._frozen = {name: parameter for name, parameter in named.items() if not parameter.requires_grad}
        self._groups = _grouped(parameters)
        self._group_of = {name: number for number, names in enumerate(self._groups) for name in names}
        self._buffers = SentBuffers(module if self._broadcasts_buffers else None)

    @property
    def accumulating(self) -> bool:
        """Whether a backward that begins now exchanges nothing, within ``accumulate``."""
        return self._accumulating > 0

    @property
    def same(self) -> dict[str, str]:
        """What must be the same on all ranks besides the engine's ``described``: the buffers, in words."""
        return described(self._buffers.present, "buffer")

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Average the gradients of a module from the next backward on; ``bind`` was called with it.

        Called on every rank, which all have the same weights: see ``gravac.sources.weights.share``.

        Args:
            module: the module, compiled or not.
            optimizer: tells when it has made its step, and its learning rate.

        Raises:
            RuntimeError: something else takes a parameter's gradient as soon as it is accumulated, such as an optimizer
                that makes its steps within backward; nothing was changed.
        """
        for name, parameter in self._parameters.items():
            if getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise RuntimeError(
                    f"module: parameter {name} has a hook after accumulation already, which would see this rank's "
                    "gradient and not the mean: that of an optimizer that makes its steps within backward, or of "
                    "another compressor; remove it first"
                )
        self._module = weakref.ref(module)
        disable: Any = torch.compiler.disable  # in a module that is compiled in place, hooks would be compiled with it
        starts, ended = LeftBehind(disable(self._forward_starts)), LeftBehind(disable(self._forward_ended))
        self._watched = [module.register_forward_pre_hook(starts), module.register_forward_hook(ended)]
        trained: dict[str, Any] = {**self._parameters}
        for name, parameter in trained.items():
            hook = functools.partial(self._accumulated, name)
            self._watched.append(parameter.register_post_accumulate_grad_hook(hook))
        self.optimizer = optimizer
        if optimizer is not None:
            self._watched.append(optimizer.register_step_post_hook(self._step_ended))

    def detach(self) -> None:
        """Undo ``watch``; gradients stay local from now on. Called on every rank between the same two steps.

        Raises:
            RuntimeError: no module is being watched, or a backward is running; nothing was changed.
        """
        if not self._watched:
            raise RuntimeError("detach: this compressor is not attached to a module")
        if self._running is not None or torch._C._current_graph_task_id() != -1:
            raise RuntimeError("detach: a backward is running; detach after it, between two steps")
        self._complete(waits=False)
        for handle in self._watched:
            handle.remove()
        self._watched.clear()
        self._module = self.optimizer = self.loss_scale = None
        self._backward = self._step = self._ended = self._unread = None
        self._inputs = self._optimized = None
        self._late = True

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Exchange nothing in the backwards within; the next outside exchanges the sum. Entered alike on all ranks.

        Example:
            >>> with source.accumulate():  # doctest: +SKIP
            ...     loss(module(first)).backward()
            >>> loss(module(second)).backward()  # doctest: +SKIP
        """
        self._accumulating += 1
        try:
            yield
        finally:
            self._accumulating -= 1

    def wait(self) -> None:
        """Wait for the step whose backward ended last: afterwards gradients and buffers hold what all ranks agree on.

        Raises:
            ExchangeError: a rank did not answer.
            TypeError: a gradient is sparse.
            RuntimeError: backward failed on some ranks; of ranks in memory, not all have made their backward.
        """
        step, self._ended = self._ended, None
        if step is None:
            return
        for handle in step.handles:
            handle.wait()
        if self.runs is not None and self.runs.done() and (failure := self.runs.exception()) is not None:
            raise failure
        self._unread = step.marks
        counts = self._read() if self._engine.schedule.looks or step.lacking else None
        with torch.no_grad():
            for gradient, copy in step.copies:
                gradient.copy_(copy)
            for name, mean in step.lacking.items():
                if counts is not None and counts.gradients[name]:
                    self._parameters[name].grad = mean
            if step.buffers is not None and self._engine.state.rank:
                self._buffers.put(*step.buffers)
        if step.failure is not None:
            raise step.failure
        if counts is not None and counts.failed:
            raise RuntimeError(
                f"gravac: backward failed on {counts.failed} of {self._engine.state.world} ranks, so that gradients of "
                "this step are no mean of all; leave out this optimizer step, as those ranks do, or stop"
            )

    # hooks

    def _forward_starts(self, *_: object) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return  # evaluation, or a checkpoint that is computed again
        self._complete(self._waits)
        if self.quiet:
            return
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise ValueError(
                    f"module: parameter {name} requires a gradient, and did not when this compressor was attached, so "
                    "that ranks would train it apart; detach() and attach() again"
                )
        if self._inputs is None:
            self._inputs = self._engine.mark()

    def _forward_ended(self, module: object, given: object, outputs: object) -> None:
        if torch.is_grad_enabled() and not self.quiet:
            found: Iterator[Any] = _tensors(outputs)
            for tensor in found:
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_starts)

    def _backward_starts(self, gradient: torch.Tensor) -> None:
        self._enter()

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        if self.quiet:
            return
        backward = self._enter()
        if backward.synced:
            self._arrive(name, nested=torch._C._current_graph_task_id() != backward.task)

    def _step_ended(self, *_: object) -> None:
        self._optimized = self._engine.mark()

    # a backward

    @property
    def _running(self) -> _Backward | None:
        """The backward under way; ``None`` after its end, or if it failed."""
        backward = self._backward
        return None if backward is None or backward.callback() is None else backward

    def _enter(self) -> _Backward:
        """Return the backward under way, the outermost; its end is noticed if this is the first that is seen of it."""
        if (running := self._running) is not None:
            return running
        task = torch._C._current_graph_task_id()
        if task == -1:
            raise TypeError(
                "compiled autograd runs no backward that gravac could exchange gradients in; compile without it: "
                "torch._dynamo.config.compiled_autograd = False"
            )
        self._complete(self._waits)
        at_end = _AtEnd(self._backward_ended)
        synced = not (self.quiet or self._accumulating)
        self._backward = _Backward(task, synced, weakref.ref(at_end))
        Variable._execution_engine.queue_callback(at_end)
        return self._backward

    def _backward_ended(self) -> None:
        self._backward = None
        if self._step is not None:
            self._end(self._step)
            if self._waits:
                self.wait()

    def _complete(self, waits: bool) -> None:
        """Complete the step of a backward that ended with an exception, so that no other rank waits for this one.

        If that backward had reached no parameter yet, the step begins here.
        """
        backward = self._backward
        if backward is None or self._running is not None:
            return
        self._backward = None
        if not backward.synced:
            return
        step = self._step or self._begin()
        step.failure = RuntimeError("gravac: the last backward ended with an exception")
        self._end(step)
        if waits:
            self._ended, self._unread = None, step.marks
            for handle in step.handles:
                handle.wait()  # gradients may have been zeroed since: the means change none

    # a step

    def _begin(self) -> _Step:
        engine = self._engine
        engine.open()
        if self._buffers.watched:
            self._read()
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            dense=self.send_whole,
        )
        self.send_whole = False
        self.runs = engine.begin(inputs)
        self._step = step = _Step(self._late, [len(names) for names in self._groups])
        self._buffers.look()
        if self._buffers.sent:
            flat = self._buffers.flat(engine.device)
            step.buffers = tuple(self._buffers.sent), flat
            step.handles.append(self._exchange(_broadcast(flat)))
        return step

    def _arrive(self, name: str, nested: bool) -> None:
        """A gradient was accumulated, perhaps not for the last time."""
        step = self._step or self._begin()
        if nested or name in step.arrived:
            step.late = step.repeats = True
        if name in step.arrived:
            if self._group_of[name] < step.groups and step.failure is None:
                step.failure = RuntimeError(
                    f"module: the gradient of {name} was accumulated again after it had left for the other ranks, as "
                    "activation checkpointing with use_reentrant=True does; use use_reentrant=False"
                )
            return
        step.arrived.add(name)
        step.waiting_for[self._group_of[name]] -= 1
        while not step.late and step.groups < len(self._groups) and not step.waiting_for[step.groups]:
            self._hand_over(step)

    def _hand_over(self, step: _Step, empty: bool = False) -> None:
        """The next group leaves.

        Args:
            step: the step under way.
            empty: whether zeros leave instead of gradients.
        """
        names = self._groups[step.groups]
        step.groups += 1
        tensors = [(name, self._tensor(step, name, empty)) for name in names]
        step.handles.append(self._engine.ready(tensors))

    def _tensor(self, step: _Step, name: str, empty: bool) -> torch.Tensor:
        """Return what takes part in the exchange: a gradient, in its parameter's memory format."""
        parameter = self._parameters[name]
        gradient = None if empty else parameter.grad
        if gradient is not None and gradient.layout != torch.strided:
            step.failure = step.failure or TypeError(
                f"{name}: a sparse gradient (embedding with sparse=True) cannot be compressed; use sparse=False"
            )
            gradient = None
        if gradient is None:
            step.lacking[name] = stand_in = torch.zeros_like(parameter.detach())
            return stand_in
        gradient = gradient.detach()
        if _lies_alike(gradient, parameter):
            return gradient
        copy = torch.empty_like(parameter.detach(), dtype=gradient.dtype).copy_(gradient)
        step.copies.append((gradient, copy))
        return copy

    def _end(self, step: _Step) -> None:
        """All gradients leave that have not, and the engine's step ends."""
        inputs, optimized, backward = self._inputs, self._optimized, self._engine.mark()
        self._inputs = self._step = None
        self._late = step.repeats

        def fill(measurement: LocalMeasurement) -> None:
            measurement.inputs, measurement.optimized, measurement.backward = inputs, optimized, backward

        given_up = step.failure is not None and not isinstance(step.failure, TypeError)
        while step.groups < len(self._groups):
            self._hand_over(step, empty=given_up)
        self._engine.flush()
        flags = [step.failure is not None, *(name not in step.lacking for name in self._parameters)]
        packed = pack([*flags, *self._buffers.changed], self._engine.state.world)
        step.marks = torch.tensor(packed, dtype=torch.float64).to(self._engine.device)
        step.handles.append(self._exchange(_sum(step.marks)))
        self._engine.end(fill)
        self._ended = step

    def _exchange(self, job: Job) -> Handle:
        """Run a job that is no averaging."""
        handle = Handle(self._engine, self._guarded)

        def whole() -> Job:
            yield from job
            handle.ends()

        self._engine.executor.exchange(whole(), handle.ends, self._engine.device, lambda: True)
        return handle

    def _read(self) -> "_Counts | None":
        """Read what the ranks told of the last step, if nobody has."""
        marks, self._unread = self._unread, None
        if marks is None:
            return None
        number = 1 + len(self._parameters) + len(self._buffers.watched)
        failed, *counts = unpack(marks.tolist(), number, self._engine.state.world)
        gradients = dict(zip(self._parameters, counts, strict=False))
        self._buffers.learn(counts[len(self._parameters) :])
        return _Counts(failed, gradients)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers of ranks.

    Attributes:
        failed: whose backward failed.
        gradients: that have a gradient, by the parameter's name.
    """

    failed: int
    gradients: Mapping[str, int]


def _sum(tensor: torch.Tensor) -> Job:
    """Make a tensor its sum over the ranks."""
    (total,) = yield [AllReduce(tensor)]
    if total is not tensor:
        tensor.copy_(total)


def _broadcast(tensor: torch.Tensor) -> Job:
    """Make a tensor that of rank 0."""
    (sent,) = yield [Broadcast(tensor, 0)]
    if sent is not tensor:
        tensor.copy_(sent)


def _grouped(parameters: Mapping[str, torch.nn.Parameter]) -> list[list[str]]:
    """Names in groups that are exchanged together: last parameters first, since backward has their gradients first."""
    groups: list[list[str]] = []
    room = 0
    for name, parameter in reversed([*parameters.items()]):
        size = parameter.numel() * parameter.element_size()
        if not groups or size > room:
            room = GROUP if groups else FIRST_GROUP
            groups.append([])
        groups[-1].append(name)
        room -= size
    return groups


def _refuse_sharded(module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse parameters of which a rank has a part only."""
    for path, part in module.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(part).__mro__):
            raise TypeError(
                f"module: {path or 'it'} is in shards (FullyShardedDataParallel), whose gradients FSDP exchanges; "
                "use the plain module"
            )
    for name, parameter in parameters.items():
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            raise TypeError(
                f"module: parameter {name} is in shards (DTensor: fully_shard, or tensor parallelism), whose gradients "
                "are exchanged already; use the plain module"
            )


def _refuse_unplaced(named: Mapping[str, torch.nn.Parameter], parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse if there is nothing to train, or not in the memory of one device."""
    if not parameters:
        raise ValueError("module: it has no parameter that requires a gradient")
    for name, parameter in named.items():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise ValueError(f"module: parameter {name} has no memory yet; make a forward, or move the module, before")
    devices = {parameter.device: name for name, parameter in parameters.items()}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ValueError(f"module: parameters lie on several devices ({places}); gravac exchanges those of one")


def _tensors(outputs: object) -> Iterator[torch.Tensor]:
    """Return the tensors in what a forward returned: alone, in lists, tuples, dicts or dataclasses."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from (tensor for value in outputs.values() for tensor in _tensors(value))
    elif isinstance(outputs, list | tuple):
        yield from (tensor for value in outputs for tensor in _tensors(value))
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        yield from (tensor for each in fields(outputs) for tensor in _tensors(getattr(outputs, each.name)))


def _lies_alike(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a gradient lies in memory as its parameter does."""
    strides = zip(gradient.shape, gradient.stride(), parameter.stride(), strict=True)
    return all(of_gradient == of_parameter for size, of_gradient, of_parameter in strides if size > 1)
