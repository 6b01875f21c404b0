# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A source without DistributedDataParallel: hooks on parameters hand gradients to the engine while backward runs.

A *step* is a backward whose gradients are exchanged. Its exchanges have the same order on all ranks, even if gradients
become ready in another order or a rank fails:

1. The engine's step begins, with the first gradient.
2. Rank 0 sends its buffers that training changes.
3. Gradients are sent in groups of fixed order: a group as soon as it and all earlier groups are ready.
4. Backward ends. The remaining groups are sent, then marks: which parameters have a gradient on this rank, which
   buffers changed, and whether backward failed.
5. The engine's step ends. ``wait`` then puts the means into ``.grad``.
"""

import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gravac.collectives import AllReduce, Broadcast
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.exchange.comparing import described
from gravac.exchange.executor import Job
from gravac.guarded import Guarded
from gravac.sources.buffers import SentBuffers
from gravac.sources.ddp import canonical
from gravac.sources.ddp_private import UncopiedHook
from gravac.sources.flags import pack, unpack
from gravac.sources.hooked import AtEnd, HookedSource, refuse_other_hooks
from gravac.sources.weights import check_memory

FIRST_GROUP = 1 << 20
"""Bytes of the first group: as small as DDP's first bucket, so that the exchange begins early."""

GROUP = 25 << 20
"""Bytes of each other group, as in DDP's buckets. A larger parameter is a group by itself."""


@dataclass(eq=False, slots=True)
class _Backward:
    """A backward under way.

    Attributes:
        task: autograd's number of the outermost backward; activation checkpointing runs further backwards within it.
        synced: whether the backward's gradients are exchanged.
        callback: weak reference to the end's callback, dead once the backward has ended or failed.
    """

    task: int
    synced: bool
    callback: "weakref.ref[AtEnd]"


@dataclass(eq=False, slots=True)
class _Step:
    """A step under way.

    Attributes:
        late: whether groups are sent only when backward has ended.
        waiting_for: number of gradients that each group still waits for.
        arrived: names of parameters whose gradients were accumulated.
        repeats: whether a gradient was accumulated several times, or within a nested backward.
        groups: number of groups that have been sent.
        handles: handles of all exchanges in flight.
        lacking: zeros in place of this rank's missing gradients, which become the mean, by name.
        copies: gradients whose memory layout differs from their parameters', each with the copy that is exchanged.
        buffers: names of the buffers that rank 0 sends, and their bytes, ``[bytes]``; ``None``: none are sent.
        marks: sum over the ranks of the packed marks, float64; see the module's step 4.
        failure: error that makes this rank's gradients wrong; ``None`` if there is none.
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


class ModuleSource(HookedSource):
    """Averages the gradients of a module over the ranks, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over the ranks. As with DDP the mean includes all that
    ``.grad`` held before: gradients accumulated in ``accumulate()``, or the mean of an earlier backward.

    - *Which backward is a step.* Each backward that reaches a parameter outside of ``accumulate()`` is a step, unless
      the source is ``quiet``. Two backwards between two optimizer steps are two steps. The second step exchanges the
      sum of the first step's mean and its own gradients, of all parameters. All ranks make the same steps.
    - *No gradient.* For a parameter that this rank's step does not reach, the present ``.grad`` is exchanged, or zeros.
      Afterwards the parameter has the mean. If no rank had a gradient, its ``.grad`` stays ``None``, so that no
      optimizer changes it. DDP does the same with ``find_unused_parameters=True``. This takes a message of some bytes a
      step. Over NCCL the host of a rank without a gradient waits for that message.
    - *Buffers.* Running statistics must be the same on all ranks when they evaluate. DDP sends rank 0's buffers in each
      forward, which waits for them. Here rank 0's buffers are sent when backward begins, beside the gradients, and are
      in place when ``backward()`` returns. After a step all ranks have the same buffers. Buffers of normalization
      layers are sent in each step. Any other buffer is sent only in the step after it changed on a rank, so constants,
      such as masks, cost nothing.
    - *Activation checkpointing.* In its reentrant form autograd may accumulate a parameter's gradient several times in
      one backward. In the first step, and in each step after one in which that happened, gradients are exchanged only
      when backward has ended. If it happens to a gradient that has been sent already, that step fails on all ranks.
    - *Failures* are raised by ``backward()``. A backward may end with an exception after it reached the module's
      outputs. Then this rank's next forward or backward completes that step with zeros, so that all ranks make the same
      steps. The other ranks' ``backward()`` raises if the host looks at tensors (not over NCCL).
    - *Parameters* are those that the module had in ``bind``. A parameter that is replaced later is not exchanged.

    Args:
        engine: averages the gradients.
        broadcast_buffers: whether buffers are sent; see above.
        waits: whether backward calls ``wait`` at its end. Simulated ranks (``exchange.lockstep``) need ``False``: they
            call ``wait`` after all ranks' backwards.
    """

    def __init__(self, engine: Engine, *, broadcast_buffers: bool = True, waits: bool = True) -> None:
        super().__init__(engine)
        self._waits = waits
        self._broadcasts_buffers = broadcast_buffers
        self._guarded = Guarded()
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._frozen: dict[str, torch.nn.Parameter] = {}
        self._groups: list[list[str]] = []
        self._group_of: dict[str, int] = {}
        self._buffers = SentBuffers()
        self._module: weakref.ref[torch.nn.Module] | None = None
        self._accumulating = 0
        self._late = True
        self._backward: _Backward | None = None
        self._step: _Step | None = None
        self._ended: _Step | None = None
        self._unread: torch.Tensor | None = None  # marks of the last step, if nobody has read them

    @property
    def module(self) -> torch.nn.Module | None:
        """The module being watched; ``None`` if there is none, or if it was deleted."""
        return self._module() if self._module is not None else None

    def bind(self, module: torch.nn.Module) -> None:
        """Store names and shapes of the parameters to train.

        Raises:
            TypeError: the module is a DistributedDataParallel, its parameters are in shards (FSDP, DTensor), or a
                parameter to train is complex.
            ValueError: there is no parameter to train, or parameters are on several devices, or have no memory yet. Or
                the memory layout of a tensor does not allow an exchange.
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
        """True within ``accumulate``: a backward that begins now exchanges nothing."""
        return self._accumulating > 0

    @property
    def same(self) -> dict[str, str]:
        """Texts that describe the buffers, by name; they must be the same on all ranks."""
        return described(self._buffers.present, "buffer")

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Average the gradients of the module that ``bind`` was given, beginning with the next backward.

        Called on every rank. All ranks have the same weights: see ``gravac.sources.weights.broadcast_weights``.

        Args:
            module: the module, compiled or not.
            optimizer: optimizer whose steps and learning rate the engine learns; ``None``: neither is known.

        Raises:
            RuntimeError: another hook uses gradients as soon as they are accumulated, such as an optimizer that steps
                within backward; nothing was changed.
        """
        refuse_other_hooks(self._parameters)
        self._module = weakref.ref(module)
        disable: Any = torch.compiler.disable  # in a module that is compiled in place, hooks would be compiled with it
        starts, ended = UncopiedHook(disable(self._forward_starts)), UncopiedHook(disable(self._forward_ended))
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
        self._refuse_to_detach(backward_runs=self._running is not None)
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
        """Return a context whose backwards exchange nothing; the next backward outside exchanges the sum.

        All ranks must enter the context for the same backwards.

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
        """Wait for the step whose backward ended last; put the means into ``.grad``, and rank 0's buffers into place.

        Raises:
            ExchangeError: a rank did not answer.
            TypeError: a gradient is sparse.
            RuntimeError: backward failed on some ranks, or not all simulated ranks have made their backward.
        """
        step, self._ended = self._ended, None
        if step is None:
            return
        for handle in step.handles:
            handle.wait()
        self._raise_failure_of_begin()
        self._unread = step.marks
        counts = self._read() if self._engine.schedule.host_looks or step.lacking else None
        with torch.no_grad():
            for gradient, copy in step.copies:
                gradient.copy_(copy)
            for name, mean in step.lacking.items():
                if counts is not None and counts.gradients[name]:
                    self._parameters[name].grad = mean
            if step.buffers is not None and self._engine.state.rank:
                names, flat = step.buffers
                self._buffers.put(names, flat)
        if step.failure is not None:
            raise step.failure
        if counts is not None and counts.failed:
            raise RuntimeError(
                f"gravac: backward failed on {counts.failed} of {self._engine.state.world} ranks, so the gradients of "
                "this step are not the mean of all ranks; skip this optimizer step on all ranks, or stop"
            )

    # hooks

    def _forward_starts(self, *_: object) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return  # evaluation, or activation checkpointing, which computes a forward again
        self._complete(self._waits)
        if self.quiet:
            return
        for name, parameter in self._frozen.items():
            if parameter.requires_grad:
                raise ValueError(
                    f"module: parameter {name} requires a gradient, and did not when this compressor was attached, so "
                    "that ranks would not exchange it; detach() and attach() again"
                )
        if self._inputs is None:
            self._inputs = self._engine.mark()

    def _backward_starts(self, gradient: torch.Tensor) -> None:
        self._enter()

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        if self.quiet:
            return
        backward = self._enter()
        if backward.synced:
            self._arrive(name, nested=torch._C._current_graph_task_id() != backward.task)

    # a backward

    @property
    def _running(self) -> _Backward | None:
        """The backward under way; ``None`` if the last backward has ended or failed."""
        backward = self._backward
        return None if backward is None or backward.callback() is None else backward

    def _enter(self) -> _Backward:
        """Return the outermost backward under way; register a callback for its end if it has just begun."""
        if (running := self._running) is not None:
            return running
        task = torch._C._current_graph_task_id()
        if task == -1:
            raise TypeError(
                "compiled autograd runs no backward that gravac could exchange gradients in; compile without it: "
                "torch._dynamo.config.compiled_autograd = False"
            )
        self._complete(self._waits)
        at_end = AtEnd(self._backward_ended)
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
        """Complete the step of a backward that ended with an exception, so that no other rank waits for this rank.

        If that backward had reached no parameter yet, its step begins here.

        Args:
            waits: whether to wait for the step's exchanges.
        """
        backward = self._backward
        if backward is None or self._running is not None:
            return
        self._backward = None
        if not backward.synced:
            return
        step = self._step or self._begin()
        step.failure = RuntimeError(
            "gravac: the last backward ended with an exception, so this rank has no gradients of its step"
        )
        self._end(step)
        if waits:
            self._ended, self._unread = None, step.marks
            for handle in step.handles:
                handle.wait()  # means are not written: gradients may have been zeroed since

    # a step

    def _begin(self) -> _Step:
        engine = self._engine
        engine.open()
        if self._buffers.watched:
            self._read()
        self._begin_engines_step()
        self._step = step = _Step(self._late, [len(names) for names in self._groups])
        self._buffers.look()
        if self._buffers.sent:
            flat = self._buffers.flat(engine.device)
            step.buffers = tuple(self._buffers.sent), flat
            step.handles.append(self._exchange(_broadcast(flat)))
        return step

    def _arrive(self, name: str, nested: bool) -> None:
        """Record that a gradient was accumulated, and send groups that are complete.

        Args:
            name: the parameter's name.
            nested: whether the gradient was accumulated in a backward inside of another backward.
        """
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
        """Hand the next group over to the engine.

        Args:
            step: the step under way.
            empty: whether zeros are sent instead of gradients.
        """
        names = self._groups[step.groups]
        step.groups += 1
        tensors = [(name, self._tensor(step, name, empty)) for name in names]
        step.handles.append(self._engine.ready(tensors))

    def _tensor(self, step: _Step, name: str, empty: bool) -> torch.Tensor:
        """Return the tensor to exchange: a gradient in its parameter's memory format, a copy of it, or zeros."""
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
        """Hand over the remaining groups and the marks, and end the engine's step."""
        fill = self._take_moments()
        self._step = None
        self._late = step.repeats

        send_zeros = step.failure is not None and not isinstance(step.failure, TypeError)
        while step.groups < len(self._groups):
            self._hand_over(step, empty=send_zeros)
        self._engine.flush()
        flags = [step.failure is not None, *(name not in step.lacking for name in self._parameters)]
        packed = pack([*flags, *self._buffers.changed], self._engine.state.world)
        step.marks = torch.tensor(packed, dtype=torch.float64).to(self._engine.device)
        step.handles.append(self._exchange(_sum(step.marks)))
        self._engine.end(fill)
        self._ended = step

    def _exchange(self, job: Job) -> Handle:
        """Run a job that averages no gradients; return its handle."""
        handle = Handle(self._engine, self._guarded)

        def job_and_end() -> Job:
            yield from job
            handle.ends()

        self._engine.executor.exchange(job_and_end(), handle.ends, self._engine.device, lambda: True)
        return handle

    def _read(self) -> "_Counts | None":
        """Return the counts of the last step's marks; ``None`` if they have been read already."""
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
    """Counts of ranks in a step.

    Attributes:
        failed: number of ranks whose backward failed.
        gradients: number of ranks that have a gradient, by parameter name.
    """

    failed: int
    gradients: Mapping[str, int]


def _sum(tensor: torch.Tensor) -> Job:
    """Replace a tensor by its sum over the ranks, in place."""
    (total,) = yield [AllReduce(tensor)]
    if total is not tensor:
        tensor.copy_(total)


def _broadcast(tensor: torch.Tensor) -> Job:
    """Replace a tensor by rank 0's, in place."""
    (sent,) = yield [Broadcast(tensor, 0)]
    if sent is not tensor:
        tensor.copy_(sent)


def _grouped(parameters: Mapping[str, torch.nn.Parameter]) -> list[list[str]]:
    """Divide names into exchange groups, last parameters first, since backward computes their gradients first."""
    groups: list[list[str]] = []
    remaining_bytes = 0
    for name, parameter in reversed([*parameters.items()]):
        size = parameter.numel() * parameter.element_size()
        if not groups or size > remaining_bytes:
            remaining_bytes = GROUP if groups else FIRST_GROUP
            groups.append([])
        groups[-1].append(name)
        remaining_bytes -= size
    return groups


def _refuse_sharded(module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse parameters of which each rank has only a shard."""
    for path, child in module.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(child).__mro__):
            raise TypeError(
                f"module: {path or 'the whole module'} is in shards (FullyShardedDataParallel), whose gradients "
                "FSDP exchanges; use the plain module, or fully_shard (FSDP2) on a mesh with replicas"
            )
    for name, parameter in parameters.items():
        if any(kind.__name__ == "DTensor" for kind in type(parameter).__mro__):
            raise TypeError(
                f"module: parameter {name} is in shards (DTensor: fully_shard, or tensor parallelism), whose gradients "
                "are exchanged already; use the plain module"
            )


def _refuse_unplaced(named: Mapping[str, torch.nn.Parameter], parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Refuse a module without parameters to train, or whose parameters lack memory or are on several devices."""
    if not parameters:
        raise ValueError("module: it has no parameter that requires a gradient; give a module to train")
    for name, parameter in named.items():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise ValueError(
                f"module: parameter {name} has no memory yet; run a forward, or move the module to a device, before"
            )
    devices = {parameter.device: name for name, parameter in parameters.items()}
    if len(devices) > 1:
        listed = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ValueError(f"module: parameters lie on several devices ({listed}); move them to one device")


def _lies_alike(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if a gradient has the same memory order as its parameter."""
    strides = zip(gradient.shape, gradient.stride(), parameter.stride(), strict=True)
    return all(of_gradient == of_parameter for size, of_gradient, of_parameter in strides if size > 1)
