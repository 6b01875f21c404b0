# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A source of gradients without DDP: hooks on parameters hand gradients to the engine while backward runs.

The engine averages the gradients over the ranks. A *step* is a backward whose gradients are exchanged. A step's
exchanges have the same order on all ranks, even if gradients become ready in another order or a rank fails:

1. The engine's step begins, with the first gradient.
2. Rank 0 sends those of its buffers that training changes.
3. Gradients are sent in groups of fixed order: each group as soon as its gradients and all earlier groups are ready.
4. Backward ends. The remaining groups are sent, and then flags: which parameters have a gradient on this rank, which
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
from gravac.exchange.comparing import texts_of_tensors
from gravac.exchange.executor import Job
from gravac.guarded import GuardedCaller
from gravac.sources.buffers import SentBuffers
from gravac.sources.ddp import canonical_name
from gravac.sources.ddp_private import UncopiedHook
from gravac.sources.flags import pack_flags, unpack_counts
from gravac.sources.hooked import EndCallback, HookedSource, refuse_other_hooks
from gravac.sources.weights import check_memory

FIRST_GROUP_BYTES = 1 << 20
"""Largest size of the first group of gradients, in bytes: as small as in DDP, to begin the exchange early."""

GROUP_BYTES = 25 << 20
"""Largest size of each later group of gradients, in bytes: as DDP's buckets. A larger gradient is a group by itself."""


@dataclass(eq=False, slots=True)
class _Backward:
    """State of a backward under way.

    Attributes:
        backward_id: autograd's number of the outermost backward, within which activation checkpointing runs further
            backwards.
        exchanges: whether the backward's gradients are exchanged.
        callback: weak reference to the callback of the backward's end; autograd frees the callback once the backward
            has ended or failed.
    """

    backward_id: int
    exchanges: bool
    callback: "weakref.ref[EndCallback]"


@dataclass(eq=False, slots=True)
class _Step:
    """State of a step under way: a backward whose gradients are exchanged, in groups of fixed order.

    Attributes:
        sends_at_end: whether groups are sent only when backward has ended.
        missing_counts: for each group, the number of gradients that have not arrived.
        arrived_names: names of parameters whose gradients were accumulated.
        has_repeats: whether a gradient was accumulated twice, or within a nested backward.
        groups_sent: number of groups that have been sent.
        handles: handles of all exchanges in flight.
        stand_ins: tensors of zeros that are exchanged in place of this rank's missing gradients, by parameter name. The
            exchange replaces the zeros by the mean.
        gradient_copies: gradients whose memory layout differs from their parameters', each with the copy that is
            exchanged.
        sent_buffers: names of the buffers that rank 0 sends, and their bytes, ``[bytes]``; ``None``: no buffer is sent.
        flag_sums: packed flags (see 4 at the top of this file), float64, summed over the ranks in place; ``None``
            before backward ends.
        failure: error that makes this rank's gradients wrong; ``None`` if there is none.
    """

    sends_at_end: bool
    missing_counts: list[int]
    arrived_names: set[str] = field(default_factory=set)
    has_repeats: bool = False
    groups_sent: int = 0
    handles: list[Handle] = field(default_factory=list)
    stand_ins: dict[str, torch.Tensor] = field(default_factory=dict)
    gradient_copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    sent_buffers: tuple[Sequence[str], torch.Tensor] | None = None
    flag_sums: torch.Tensor | None = None
    failure: Exception | None = None


class ModuleSource(HookedSource):
    """Averages the gradients of a module over the ranks, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over the ranks. As with DDP the mean includes all that
    ``.grad`` held before: gradients accumulated in ``accumulate()``, or the mean of an earlier backward.

    - *Which backward is a step.* Each backward that reaches a parameter outside of ``accumulate()`` is a step, unless
      the source ``is_stopped``. Two backwards between two optimizer steps are two steps. The second step exchanges the
      sum of the first step's mean and its own gradients, of all parameters. All ranks make the same steps.
    - *No gradient.* For a parameter that this rank's backward does not reach, the present ``.grad`` is exchanged, or
      zeros. Afterwards the parameter's ``.grad`` is the mean. If no rank had a gradient, ``.grad`` stays ``None``, so
      that no optimizer changes the parameter. DDP does the same with ``find_unused_parameters=True``. Ranks exchange
      flags, of a few bytes, for this in each step. Over NCCL the host of a rank without a gradient waits for the flags.
    - *Buffers.* Running statistics must be the same on all ranks when they evaluate. DDP sends rank 0's buffers at each
      forward, which waits for the buffers. Here rank 0's buffers are sent when backward begins, beside the gradients,
      and are in place when ``backward()`` returns. After a step all ranks have the same buffers. Buffers of
      normalization layers are sent in each step. Any other buffer is sent only in the step after it changed on a rank,
      so constants, such as masks, cost nothing.
    - *Activation checkpointing.* With ``use_reentrant=True``, autograd may accumulate a parameter's gradient several
      times in one backward. In the first step, and in each step after a step in which that happened, gradients are
      exchanged only when backward has ended. If a gradient that has been sent already is accumulated again, the step
      fails on all ranks.
    - *Failures* are raised by ``backward()``. A backward may end with an exception after it reached the module's
      outputs. Then this rank's next forward or backward completes the failed backward's step with zeros, so that all
      ranks make the same steps. The other ranks' ``backward()`` raises an error, too; over NCCL only on ranks that
      lack a gradient themselves, since other hosts do not read the flags.
    - *Parameters* are those that the module had in ``bind``. A parameter that is replaced later is not exchanged.

    Args:
        engine: object that averages the gradients.
        broadcast_buffers: whether rank 0's buffers are sent to all ranks.
        waits: whether backward calls ``wait`` at its end. Simulated ranks (``exchange.lockstep``) need ``False``: they
            call ``wait`` after all ranks' backwards.
    """

    def __init__(self, engine: Engine, *, broadcast_buffers: bool = True, waits: bool = True) -> None:
        super().__init__(engine)
        self._waits_at_end = waits
        self._broadcasts_buffers = broadcast_buffers
        self._call_guarded = GuardedCaller()
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._frozen_parameters: dict[str, torch.nn.Parameter] = {}
        self._names_by_group: list[list[str]] = []
        self._group_number_of: dict[str, int] = {}
        self._buffers = SentBuffers()
        self._module_ref: weakref.ref[torch.nn.Module] | None = None
        self._accumulate_depth = 0
        self._next_step_sends_at_end = True
        self._backward: _Backward | None = None
        self._step: _Step | None = None
        self._ended_step: _Step | None = None
        self._unread_flag_sums: torch.Tensor | None = None  # of the last step; ``None``: already read

    @property
    def module(self) -> torch.nn.Module | None:
        """The module whose gradients are averaged; ``None`` if there is none, or if it was deleted."""
        return self._module_ref() if self._module_ref is not None else None

    def bind(self, module: torch.nn.Module) -> None:
        """Store names and shapes of the parameters to train: those that require a gradient.

        Raises:
            TypeError: the module is a DistributedDataParallel; or its parameters are in shards (FSDP, DTensor); or a
                parameter to train is complex.
            ValueError: there is no parameter to train; or parameters are on several devices, or have no memory yet; or
                the memory layout of a tensor does not allow an exchange.
        """
        if isinstance(module, DistributedDataParallel):
            raise TypeError(
                "module: it is a DistributedDataParallel, which averages gradients by itself; give ddp.module"
            )
        all_parameters = {canonical_name(name): parameter for name, parameter in module.named_parameters()}
        parameters = {name: parameter for name, parameter in all_parameters.items() if parameter.requires_grad}
        _refuse_sharded(module, all_parameters)
        _refuse_unplaced(all_parameters, parameters)
        check_memory(module)
        self._engine.know(parameters)
        self._parameters = parameters
        self._frozen_parameters = {
            name: parameter for name, parameter in all_parameters.items() if not parameter.requires_grad
        }
        self._names_by_group = _exchange_groups(parameters)
        self._group_number_of = {name: number for number, names in enumerate(self._names_by_group) for name in names}
        self._buffers = SentBuffers(module if self._broadcasts_buffers else None)

    @property
    def is_accumulating(self) -> bool:
        """True within ``accumulate``: a backward that begins now exchanges nothing."""
        return self._accumulate_depth > 0

    @property
    def texts_to_compare(self) -> dict[str, str]:
        """Texts that describe each buffer's name, shape and dtype; the texts must be the same on all ranks."""
        return texts_of_tensors(self._buffers.tensors, "buffer")

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Register hooks, which average gradients from the next backward on.

        Called on every rank after ``bind``. All ranks must already have the same weights, see
        ``gravac.sources.weights.broadcast_weights``.

        Args:
            module: the module that ``bind`` was given, compiled or not.
            optimizer: optimizer whose step times and learning rate the engine gets; ``None``: it gets neither.

        Raises:
            RuntimeError: another hook uses gradients as soon as they are accumulated, such as that of an optimizer that
                steps within backward; nothing was changed.
        """
        refuse_other_hooks(self._parameters)
        self._module_ref = weakref.ref(module)
        uncompiled: Any = (
            torch.compiler.disable
        )  # in a module that is compiled in place, hooks would be compiled with it
        start_hook, end_hook = (
            UncopiedHook(uncompiled(self._forward_starts)),
            UncopiedHook(uncompiled(self._forward_ended)),
        )
        self._hook_handles = [module.register_forward_pre_hook(start_hook), module.register_forward_hook(end_hook)]
        trained_parameters: dict[str, Any] = {**self._parameters}
        for name, parameter in trained_parameters.items():
            hook = functools.partial(self._accumulated, name)
            self._hook_handles.append(parameter.register_post_accumulate_grad_hook(hook))
        self.optimizer = optimizer
        if optimizer is not None:
            self._hook_handles.append(optimizer.register_step_post_hook(self._step_ended))

    def detach(self) -> None:
        """Remove the hooks, so that gradients stay local. Called on every rank between the same two steps.

        Raises:
            RuntimeError: ``watch`` was not called, or a backward is running; nothing was changed.
        """
        self._refuse_to_detach(backward_runs=self._running_backward is not None)
        self._complete_failed_backward(waits=False)
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()
        self._module_ref = self.optimizer = self.loss_scale = None
        self._backward = self._step = self._ended_step = self._unread_flag_sums = None
        self._forward_began_mark = self._optimizer_ended_mark = None
        self._next_step_sends_at_end = True

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Return a context whose backwards only accumulate gradients; the next backward outside exchanges the sum.

        All ranks must enter the context for the same backwards.

        Example:
            >>> with source.accumulate():  # doctest: +SKIP
            ...     loss(module(first)).backward()
            >>> loss(module(second)).backward()  # doctest: +SKIP
        """
        self._accumulate_depth += 1
        try:
            yield
        finally:
            self._accumulate_depth -= 1

    def wait(self) -> None:
        """Wait for the exchanges of the last backward; write means to ``.grad``, and rank 0's buffers to the module's.

        Raises:
            ExchangeError: a rank did not answer.
            TypeError: a gradient is sparse.
            RuntimeError: backward failed on some ranks, or not all simulated ranks have made their backward.
        """
        step, self._ended_step = self._ended_step, None
        if step is None:
            return
        for handle in step.handles:
            handle.wait()
        self._raise_failure_of_begin()
        self._unread_flag_sums = step.flag_sums
        rank_counts = self._read_flag_sums() if self._engine.schedule.host_looks or step.stand_ins else None
        with torch.no_grad():
            for gradient, gradient_copy in step.gradient_copies:
                gradient.copy_(gradient_copy)
            for name, mean in step.stand_ins.items():
                if rank_counts is not None and rank_counts.gradient_ranks[name]:
                    self._parameters[name].grad = mean
            if step.sent_buffers is not None and self._engine.state.rank:
                names, packed_buffers = step.sent_buffers
                self._buffers.overwrite(names, packed_buffers)
        if step.failure is not None:
            raise step.failure
        if rank_counts is not None and rank_counts.failed_ranks:
            raise RuntimeError(
                f"gravac: backward failed on {rank_counts.failed_ranks} of {self._engine.state.world} ranks, so the "
                "gradients of this step are not the mean of all ranks; skip this optimizer step on all ranks, or stop"
            )

    # hooks

    def _forward_starts(self, *_: object) -> None:
        """Complete the step of a failed backward, check frozen parameters, and record that a forward begins now.

        Raises:
            ValueError: a parameter requires a gradient, but did not when ``bind`` was called.
        """
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1:
            return  # evaluation, or activation checkpointing, which computes a forward again
        self._complete_failed_backward(self._waits_at_end)
        if self.is_stopped:
            return
        for name, parameter in self._frozen_parameters.items():
            if parameter.requires_grad:
                raise ValueError(
                    f"module: parameter {name} requires a gradient, but did not when attach was called, so ranks "
                    "would not exchange the parameter; call detach(), and attach() again"
                )
        if self._forward_began_mark is None:
            self._forward_began_mark = self._engine.mark()

    def _backward_starts(self, gradient: torch.Tensor) -> None:
        self._watch_backward()

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        """Record that autograd has accumulated a parameter's gradient. Called by a hook on the parameter."""
        if self.is_stopped:
            return
        backward = self._watch_backward()
        if backward.exchanges:
            self._gradient_arrives(name, is_nested=torch._C._current_graph_task_id() != backward.backward_id)

    # a backward

    @property
    def _running_backward(self) -> _Backward | None:
        """The backward under way; ``None`` if the last backward has ended or failed."""
        backward = self._backward
        return None if backward is None or backward.callback() is None else backward

    def _watch_backward(self) -> _Backward:
        """Return the outermost backward under way; if it has just begun, register a callback for its end."""
        if (running_backward := self._running_backward) is not None:
            return running_backward
        backward_id = torch._C._current_graph_task_id()
        if backward_id == -1:
            raise TypeError(
                "compiled autograd runs no backward in which gravac could exchange gradients; compile without compiled "
                "autograd: torch._dynamo.config.compiled_autograd = False"
            )
        self._complete_failed_backward(self._waits_at_end)
        end_callback = EndCallback(self._backward_ended)
        exchanges = not (self.is_stopped or self._accumulate_depth)
        self._backward = _Backward(backward_id, exchanges, weakref.ref(end_callback))
        Variable._execution_engine.queue_callback(end_callback)
        return self._backward

    def _backward_ended(self) -> None:
        """End the step of a backward that has just ended, and wait for the means if ``waits``. Called by autograd."""
        self._backward = None
        if self._step is not None:
            self._end_step(self._step)
            if self._waits_at_end:
                self.wait()

    def _complete_failed_backward(self, waits: bool) -> None:
        """Complete the step of a backward that ended with an exception, so that no other rank waits for this rank.

        Do nothing if no backward failed. If the failed backward had not reached a parameter, begin its step first.

        Args:
            waits: whether to wait for the step's exchanges.
        """
        backward = self._backward
        if backward is None or self._running_backward is not None:
            return
        self._backward = None
        if not backward.exchanges:
            return
        step = self._step or self._begin_step()
        step.failure = RuntimeError(
            "gravac: the last backward ended with an exception, so this rank sent zeros in place of gradients; skip "
            "this optimizer step on all ranks, or stop"
        )
        self._end_step(step)
        if waits:
            self._ended_step, self._unread_flag_sums = None, step.flag_sums
            for handle in step.handles:
                handle.wait()  # means are not written, since gradients may have been zeroed meanwhile

    # a step

    def _begin_step(self) -> _Step:
        """Begin a step of the engine, which averages gradients; send rank 0's buffers; return the step's state."""
        engine = self._engine
        engine.open()
        if self._buffers.watched_names:
            self._read_flag_sums()
        self._begin_engines_step()
        self._step = step = _Step(self._next_step_sends_at_end, [len(names) for names in self._names_by_group])
        self._buffers.detect_changes()
        if self._buffers.sent_names:
            packed_buffers = self._buffers.pack(engine.device)
            step.sent_buffers = tuple(self._buffers.sent_names), packed_buffers
            step.handles.append(self._exchange(_broadcast_in_place(packed_buffers)))
        return step

    def _gradient_arrives(self, name: str, is_nested: bool) -> None:
        """Record that a gradient was accumulated, and send the next groups whose gradients have all arrived.

        Args:
            name: the parameter's name.
            is_nested: whether the gradient was accumulated in a backward within another backward.
        """
        step = self._step or self._begin_step()
        if is_nested or name in step.arrived_names:
            step.sends_at_end = step.has_repeats = True
        if name in step.arrived_names:
            if self._group_number_of[name] < step.groups_sent and step.failure is None:
                step.failure = RuntimeError(
                    f"module: the gradient of {name} was accumulated again after it had been sent to the other ranks, "
                    "as activation checkpointing with use_reentrant=True does; use use_reentrant=False"
                )
            return
        step.arrived_names.add(name)
        step.missing_counts[self._group_number_of[name]] -= 1
        while (
            not step.sends_at_end
            and step.groups_sent < len(self._names_by_group)
            and not step.missing_counts[step.groups_sent]
        ):
            self._send_group(step)

    def _send_group(self, step: _Step, as_zeros: bool = False) -> None:
        """Hand the next group of gradients to the engine.

        Args:
            step: state of the step under way.
            as_zeros: whether zeros are sent in place of the gradients.
        """
        names = self._names_by_group[step.groups_sent]
        step.groups_sent += 1
        named_tensors = [(name, self._tensor_to_send(step, name, as_zeros)) for name in names]
        step.handles.append(self._engine.ready(named_tensors))

    def _tensor_to_send(self, step: _Step, name: str, as_zeros: bool) -> torch.Tensor:
        """Return the tensor to exchange, of a parameter's shape and memory layout: its gradient, a copy, or zeros."""
        parameter = self._parameters[name]
        gradient = None if as_zeros else parameter.grad
        if gradient is not None and gradient.layout != torch.strided:
            step.failure = step.failure or TypeError(
                f"module: {name}: a sparse gradient (embedding with sparse=True) cannot be compressed; use sparse=False"
            )
            gradient = None
        if gradient is None:
            step.stand_ins[name] = stand_in = torch.zeros_like(parameter.detach())
            return stand_in
        gradient = gradient.detach()
        if _has_layout_of(gradient, parameter):
            return gradient
        gradient_copy = torch.empty_like(parameter.detach(), dtype=gradient.dtype).copy_(gradient)
        step.gradient_copies.append((gradient, gradient_copy))
        return gradient_copy

    def _end_step(self, step: _Step) -> None:
        """Send the remaining groups of gradients, then the flags (see 4 at the file's top); end the engine's step."""
        add_times = self._times_writer()
        self._step = None
        self._next_step_sends_at_end = step.has_repeats

        send_zeros = step.failure is not None and not isinstance(step.failure, TypeError)
        while step.groups_sent < len(self._names_by_group):
            self._send_group(step, as_zeros=send_zeros)
        self._engine.flush()
        flags = [step.failure is not None, *(name not in step.stand_ins for name in self._parameters)]
        packed_flags = pack_flags([*flags, *self._buffers.changed_flags], self._engine.state.world)
        step.flag_sums = torch.tensor(packed_flags, dtype=torch.float64).to(self._engine.device)
        step.handles.append(self._exchange(_sum_in_place(step.flag_sums)))
        self._engine.end(add_times)
        self._ended_step = step

    def _exchange(self, job: Job) -> Handle:
        """Let the executor run a generator of collectives that yields once, such as a broadcast; return its handle."""
        handle = Handle(self._engine, self._call_guarded)

        def job_and_end() -> Job:
            yield from job
            handle.set_ended()

        self._engine.executor.exchange(job_and_end(), handle.set_ended, self._engine.device, lambda: True)
        return handle

    def _read_flag_sums(self) -> "_RankCounts | None":
        """Read the last step's flags, summed over the ranks; set which buffers the next step sends.

        Returns:
            Number of ranks whose backward failed, and for each parameter the number of ranks that had a gradient;
            ``None`` if the sums were read before.
        """
        flag_sums, self._unread_flag_sums = self._unread_flag_sums, None
        if flag_sums is None:
            return None
        flag_count = 1 + len(self._parameters) + len(self._buffers.watched_names)
        failed_ranks, *rank_counts = unpack_counts(flag_sums.tolist(), flag_count, self._engine.state.world)
        gradient_ranks = dict(zip(self._parameters, rank_counts, strict=False))
        self._buffers.set_sent(rank_counts[len(self._parameters) :])
        return _RankCounts(failed_ranks, gradient_ranks)


@dataclass(frozen=True, slots=True)
class _RankCounts:
    """Numbers of ranks that set the flags of a step: of failed ranks, and of ranks with a gradient.

    Attributes:
        failed_ranks: number of ranks whose backward failed.
        gradient_ranks: for each parameter, by name, the number of ranks that have a gradient.
    """

    failed_ranks: int
    gradient_ranks: Mapping[str, int]


def _sum_in_place(tensor: torch.Tensor) -> Job:
    """Sum a tensor, of any shape, over the ranks, in place; a generator of collectives, which an executor runs."""
    (tensor_sum,) = yield [AllReduce(tensor)]
    if tensor_sum is not tensor:
        tensor.copy_(tensor_sum)


def _broadcast_in_place(tensor: torch.Tensor) -> Job:
    """Overwrite a tensor, of any shape, with rank 0's; a generator of collectives, which an executor runs."""
    (received,) = yield [Broadcast(tensor, 0)]
    if received is not tensor:
        tensor.copy_(received)


def _exchange_groups(parameters: Mapping[str, torch.nn.Parameter]) -> list[list[str]]:
    """Divide parameters into exchange groups: lists of names, last ones first, since backward reaches these first."""
    groups: list[list[str]] = []
    remaining_bytes = 0
    for name, parameter in reversed([*parameters.items()]):
        parameter_bytes = parameter.numel() * parameter.element_size()
        if not groups or parameter_bytes > remaining_bytes:
            remaining_bytes = GROUP_BYTES if groups else FIRST_GROUP_BYTES
            groups.append([])
        groups[-1].append(name)
        remaining_bytes -= parameter_bytes
    return groups


def _refuse_sharded(module: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raise a ``TypeError`` if each rank has only a shard of a module or of a parameter."""
    for path, child in module.named_modules():
        if any(ancestor.__name__ == "FullyShardedDataParallel" for ancestor in type(child).__mro__):
            raise TypeError(
                f"module: {path or 'the whole module'} is in shards (FullyShardedDataParallel), whose gradients "
                "FSDP exchanges; use the plain module, or fully_shard (FSDP2) on a mesh with replicas"
            )
    for name, parameter in parameters.items():
        if any(ancestor.__name__ == "DTensor" for ancestor in type(parameter).__mro__):
            raise TypeError(
                f"module: parameter {name} is in shards (DTensor: fully_shard, or tensor parallelism), whose gradients "
                "are exchanged already; use the plain module"
            )


def _refuse_unplaced(
    all_parameters: Mapping[str, torch.nn.Parameter], parameters: Mapping[str, torch.nn.Parameter]
) -> None:
    """Raise a ``ValueError`` if there is no parameter to train, or parameters lack memory or are on several devices.

    Args:
        all_parameters: all parameters of the module, by name.
        parameters: parameters to train, by name.
    """
    if not parameters:
        raise ValueError("module: it has no parameter that requires a gradient; give a module to train")
    for name, parameter in all_parameters.items():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise ValueError(
                f"module: parameter {name} has no memory yet; run a forward, or move the module to a device, before "
                "attach"
            )
    name_by_device = {parameter.device: name for name, parameter in parameters.items()}
    if len(name_by_device) > 1:
        devices_text = ", ".join(f"{name} on {device}" for device, name in name_by_device.items())
        raise ValueError(f"module: parameters lie on several devices ({devices_text}); move them to one device")


def _has_layout_of(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if a gradient has the strides of its parameter, in all dimensions of more than one element."""
    strides = zip(gradient.shape, gradient.stride(), parameter.stride(), strict=True)
    return all(gradient_stride == parameter_stride for size, gradient_stride, parameter_stride in strides if size > 1)
