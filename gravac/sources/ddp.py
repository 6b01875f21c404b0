# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The source of gradients for DistributedDataParallel: a communication hook, which hands buckets to gravac's engine.

The engine averages the gradients. DDP's reducer holds a lock while it calls the hook, so the hook only cuts the bucket
into exchange groups (parameters that are exchanged together) and enqueues the groups. The hook never raises and never
returns ``None``, since either would break the reducer for good. If the exchange of a bucket fails, DDP gets the bucket
as it was, and ``backward()`` raises the error at its very end: an error in the future that the hook returns would lose
its class in the reducer.
"""

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gravac.averaging.plan import Form, Piece
from gravac.averaging.recording import StepRecording
from gravac.averaging.tensors import memory_shape, refuse_complex
from gravac.candidate import Candidate
from gravac.compressors.base import Compressor
from gravac.engine.engine import Engine
from gravac.engine.handle import Averaged
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import Mark
from gravac.exchange.reading import Number
from gravac.settings import SettingsError
from gravac.sources.ddp_private import (
    ReducerParameters,
    UncompiledHook,
    UncopiedHook,
    averaged_parameters,
    check_has_shards,
    divides_by_ranks_with_inputs,
    has_hook,
    rebuild_reducer,
    reducer_parameters,
    refuse_delayed_all_reduce,
    refuse_optimizer_in_backward,
)
from gravac.sources.exchange_layout import ExchangeLayout, Names
from gravac.sources.gradient_hooks import restore_hooks, watch_hooks

NO_BACKWARD = -1
"""Result of ``torch._C._current_graph_task_id()`` if no backward is running.

Under DDP's ``join()``, a rank that has no more inputs takes part in the other ranks' exchanges without a backward."""

PIPELINING = "torch.distributed.pipelining"
"""Name of torch's module with pipeline schedules."""

BucketMean = torch.futures.Future[torch.Tensor | None]
"""Future whose result is a bucket's flat buffer with the mean over the ranks, or ``None`` if the exchange failed."""


class _Bucket:
    """A DDP bucket in flight; its future is completed when the mean over the ranks has replaced all of its gradients.

    Args:
        buffer: the bucket's flat buffer.
        names: names of the bucket's parameters.
        wait_on_stream: function without arguments that makes the current CUDA stream wait for all exchanges that have
            ended.

    Attributes:
        failure: exception of the exchange; ``None`` if there was none so far.
        fails_future: whether the future fails with ``failure``, since no backward raises it.
    """

    def __init__(self, buffer: torch.Tensor, names: Names, wait_on_stream: Callable[[], None]) -> None:
        self.buffer = buffer
        self.wait_on_stream = wait_on_stream
        self.averaged_group_count = 0
        self.unaveraged_names = set(names)
        self.failure: BaseException | None = None
        self.fails_future = torch._C._current_graph_task_id() == NO_BACKWARD
        devices = [buffer.device] if buffer.device.type != "cpu" else None
        self.future: BucketMean = torch.futures.Future(devices=devices)  # type: ignore[arg-type]

    def mark_averaged(self, names: Names) -> None:
        """Record that the mean has replaced some gradients; complete the future if it has replaced the whole bucket.

        Args:
            names: names of the gradients' parameters; some may be in other buckets.
        """
        self.unaveraged_names.difference_update(names)
        self.averaged_group_count += 1
        if not self.unaveraged_names and not self.future.done():
            if self.averaged_group_count > 1:
                self.wait_on_stream()
            # the result must be the tensor itself: a future tracks CUDA streams only for the tensors in its result
            self.future.set_result(self.buffer)

    def fail(self, failure: BaseException) -> None:
        """Complete the future, and store the exception of the exchange, which ``backward()`` will raise."""
        if not self.future.done():
            self.failure = failure
            self.future.set_result(None)

    def raise_failure(self) -> None:
        """Raise the exception of the exchange, if there is one. Called when DDP has waited for the future."""
        self.fails_future = True  # if DDP waits later after all, no error gets lost
        if self.failure is not None:
            raise self.failure

    def fail_if_step_fails(self, candidate: "Future[Candidate]") -> None:
        """Complete the bucket's future with an exception if the step could not begin.

        Args:
            candidate: future that ``Engine.begin`` returned, already completed.
        """
        if (failure := candidate.exception()) is not None:
            self.fail(failure)

    def averaged_buffer(self, _: BucketMean) -> torch.Tensor:
        """Return the bucket's buffer for DDP: averaged in place, or as it was if the exchange failed."""
        if self.failure is not None and self.fails_future:
            raise self.failure
        return self.buffer


class DDPAdapter:
    """Hands a DDP module's gradients to the engine, bucket by bucket.

    Args:
        engine: object that averages the gradients.

    Attributes:
        decided_candidate: future of the candidate that the controller had chosen when the last step began; ``None``
            before the first step.
        send_residuals: whether the next step sends all residuals (unsent parts of earlier gradients), without
            compression, whatever the controller decided.
        layout: divides buckets into exchange groups: lists of the names of parameters that are exchanged together.
        names: parameters' names, by the parameters' ``id``.
        loss_scale: function that returns the present loss scale, a float or a 0-d tensor; ``None`` without a
            ``GradScaler``.
        optimizer: optimizer whose learning rate the controller gets; ``None``: the controller gets no learning rate.
        exchanging_forward_began: whether a forward outside of ``no_sync()`` has begun since DDP exchanged last. False
            with the schedules of ``torch.distributed.pipelining``, which run each forward in ``no_sync()``, and make
            DDP exchange in the last backward.
        reason_against_pipelines: error message that says why a pipeline schedule cannot run the module, and what to do;
            empty if a schedule can.
    """

    def __init__(self, engine: Engine) -> None:
        self.decided_candidate: Future[Candidate] | None = None
        self.send_residuals = False
        self.layout = ExchangeLayout()
        self.names: dict[int, str] = {}
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.exchanging_forward_began = False
        self.reason_against_pipelines = ""
        self._engine = engine
        self._forward_in_no_sync = False  # whether the newest forward with gradients began in no_sync()
        self._averaged: ReducerParameters | None = None  # of the attached module
        self._parameter_count = 0  # number of parameters that the attached module's reducer averages
        self._backward_id: int | None = None  # autograd's number of the backward under way; NO_BACKWARD in a join
        self._pieces_by_bucket: dict[int, tuple[torch.Tensor, list[Piece]]] = {}  # by bucket index
        self._arrived_pieces: dict[str, tuple[Piece, _Bucket]] = {}
        self._buckets_of_step: list[_Bucket] = []
        self._forward_began_mark: Mark | None = None
        self._optimizer_ended_mark: Mark | None = None
        self._ddp_ref: weakref.ref[DistributedDataParallel] | None = None
        self._hook_handles: list[torch.utils.hooks.RemovableHandle] = []

    def bind(self, module: torch.nn.Module) -> None:
        """Store names and shapes of a module's parameters, except for those that DDP ignores.

        Args:
            module: the DDP module, or a model that is not in DDP yet.

        Raises:
            TypeError: a parameter that requires a gradient is complex.
        """
        parameter_by_name = averaged_parameters(module)
        if isinstance(module, DistributedDataParallel):
            trained_names = reducer_parameters(module).names
        else:
            trained_names = frozenset(name for name, parameter in parameter_by_name.items() if parameter.requires_grad)
        self._engine.know(
            {canonical_name(name): parameter for name, parameter in parameter_by_name.items() if name in trained_names}
        )
        self.names = {id(parameter): canonical_name(name) for name, parameter in parameter_by_name.items()}

    def set_module(self, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer | None) -> None:
        """Set the module whose gradients are averaged, and the optimizer whose learning rate is read."""
        self._ddp_ref, self.optimizer = weakref.ref(ddp), optimizer
        self._averaged = reducer_parameters(ddp)
        self._parameter_count = len(ddp.reducer.get_backward_stats())
        self._forward_in_no_sync = self.exchanging_forward_began = False
        self._hook_handles = [ddp.register_forward_pre_hook(UncopiedHook(self._record_forward))]

    def refuse_steps_in_backward(self) -> None:
        """Raise, from the next forward on, if an optimizer steps within backward, since outer steps are allowed."""
        assert self.ddp is not None
        parameters = averaged_parameters(self.ddp)

        def look(*_: object) -> None:
            if torch.is_grad_enabled():
                for name, parameter in parameters.items():
                    refuse_optimizer_in_backward(name, parameter)
                    watch_hooks(name, parameter, refuses_steps=True)

        self._hook_handles.append(self.ddp.register_forward_pre_hook(UncopiedHook(look)))

    def watch(self) -> None:
        """Register hooks that record when a forward begins and when the optimizer's step ends."""
        assert self.ddp is not None
        self._hook_handles.append(self.ddp.register_forward_pre_hook(UncopiedHook(self._record_forward_began)))
        if self.optimizer is not None:
            self._hook_handles.append(self.optimizer.register_step_post_hook(UncompiledHook(self.step_ended)))

    def detach(self) -> None:
        """Detach from the DDP module: give it a new reducer without a communication hook, and remove all other hooks.

        This object keeps names and exchange groups, since residuals depend on them.

        Raises:
            RuntimeError: no module is attached, or ``rebuild_reducer`` raised; nothing was changed.
        """
        ddp = self.ddp
        if self._averaged is None:
            raise RuntimeError(
                "detach: this compressor was not attached by attach(); a hook that was registered by hand stays until "
                "you make a new DistributedDataParallel around the model"
            )
        if ddp is not None:  # otherwise the module was deleted
            rebuild_reducer(ddp, forward_pending=self._forward_began_mark is not None, averaged=self._averaged)
            for parameter in ddp.parameters():
                restore_hooks(parameter)
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()
        self.optimizer = None
        self.loss_scale = None
        self._ddp_ref = None
        self._averaged = None
        self.decided_candidate = None
        self.forget_step()

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The attached DDP module; ``None`` if there is none, or if it was deleted."""
        return self._ddp_ref() if self._ddp_ref is not None else None

    def exchange_ended(self) -> None:
        """Record that DDP has exchanged gradients, by gravac's hook or by itself."""
        self.exchanging_forward_began = False

    def forget_step(self) -> None:
        """Forget the times and buckets of the step under way. Called before steps without gravac's hook."""
        self._forward_began_mark = self._optimizer_ended_mark = None
        self._pieces_by_bucket.clear()

    def _record_forward(self, *_: object) -> None:
        """Record whether DDP is to exchange in the next backward. Called when a forward begins."""
        if self._backward_id is not None and torch._C._current_graph_task_id() == NO_BACKWARD:
            self._backward_id = None  # the last backward failed, or lacked parameters, which DDP reports
        if torch.is_grad_enabled() and self.ddp is not None:
            self._forward_in_no_sync = not self.ddp.require_backward_grad_sync
            self.exchanging_forward_began |= not self._forward_in_no_sync

    def _check_pipeline(self) -> None:
        """Raise if a pipeline schedule runs the module such that gravac cannot average. Called with the first bucket.

        Raises:
            SettingsError: DDP exchanges in a backward within ``no_sync()``; or a schedule runs the module, and
                ``reason_against_pipelines`` is not empty.
        """
        if self.ddp is None or not self._forward_in_no_sync:
            return
        if not self.ddp.require_backward_grad_sync and PIPELINING in sys.modules:
            raise SettingsError(
                "input_args, output_args: a stage of the pipeline has no such arguments, so its schedule ran a "
                "forward outside of no_sync() to learn shapes, and DDP would average only the first micro-batch; "
                "give both arguments to PipelineStage on every rank"
            )
        if self.reason_against_pipelines and not self.exchanging_forward_began:
            raise SettingsError(self.reason_against_pipelines)

    def _record_forward_began(self, *_: object) -> None:
        """Record when a forward begins, if it computes gradients."""
        if torch.is_grad_enabled():
            self.forward_starts()

    def forward_starts(self) -> None:
        """Record the time at which the first forward of a step begins."""
        if self._forward_began_mark is None:
            self._forward_began_mark = self._engine.mark()

    def step_ended(self, *_: object) -> None:
        """Record the time at which the optimizer's step ended."""
        self._optimizer_ended_mark = self._engine.mark()

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Enqueue a bucket for the exchange. DDP calls this method as its communication hook.

        Args:
            bucket: gradients that are ready, one after the other in a flat buffer.

        Returns:
            Future of the bucket's flat buffer, in which the mean over the ranks has replaced the gradients, unless the
            exchange failed.

        Raises:
            TypeError: compiled autograd passed a single gradient in place of a bucket.
        """
        if isinstance(bucket, tuple):
            # torch ignores a future that is returned here: if it failed, ranks' weights would differ without an error
            raise TypeError(
                "compiled autograd hands over gradients one by one (python reducer), which gravac does not support; "
                "set torch._dynamo.config.compiled_autograd = False and torch._dynamo.config.optimize_ddp = "
                "'ddp_optimizer'"
            )
        try:
            return self._enqueue(bucket)
        except BaseException as failure:
            return failed_future(failure, bucket)

    def _enqueue(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Enqueue a bucket; return the future of its averaged buffer. Unlike ``hook``, may raise."""
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            sparse_names = [self.names.get(id(parameter), "a parameter") for parameter in bucket.parameters()]
            raise TypeError(
                f"module: {', '.join(sparse_names)}: a sparse gradient (embedding with sparse=True) cannot be "
                "compressed; use sparse=False, or leave that parameter out of DDP "
                "(_set_params_and_buffers_to_ignore_for_model)"
            )
        pieces = self._pieces_of(bucket, buffer)
        names = tuple(piece.name for piece in pieces)
        backward_id = torch._C._current_graph_task_id()
        continues = self._continues_in_other_backward(backward_id)
        step_begins = self._backward_id != backward_id and not continues
        if step_begins:
            if torch._C._current_graph_task_id() != NO_BACKWARD:
                self._check_pipeline()
            self._engine.device = buffer.device
            self._engine.open()  # before anything is in flight, since opening may fail
        bucket_in_flight = _Bucket(buffer, names, self._engine.executor.join)
        averaged_future = bucket_in_flight.future.then(bucket_in_flight.averaged_buffer)
        # only enqueue from here on: once the exchange thread runs, a torch call waits until that thread frees the GIL
        if step_begins:
            self._begin([(piece.shape, piece.flat.dtype) for piece in pieces], bucket_in_flight)
        elif continues:
            self._watch_backward()
        self._buckets_of_step.append(bucket_in_flight)
        for piece in pieces:
            self._arrived_pieces[piece.name] = piece, bucket_in_flight
        complete_groups = self.layout.add_bucket(names)
        for position, group in enumerate(complete_groups, 1):
            is_last = bucket.is_last() and position == len(complete_groups)
            self._exchange(group, buffer if group == names else None, is_last)
        if self._backward_id == NO_BACKWARD and bucket.is_last():
            self._end()
        return averaged_future

    def _begin(self, forms: list[Form], bucket: "_Bucket") -> None:
        """Begin a step of the engine, which averages gradients. Called with the first bucket of a backward.

        Args:
            forms: shape and dtype of each of the bucket's gradients.
            bucket: the first bucket; its future fails if the step cannot begin.
        """
        self._buckets_of_step = []  # a list of its own for each step; what raises failures refers to it
        self._watch_backward()
        counts_ranks = self.ddp is not None and divides_by_ranks_with_inputs(self.ddp)
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            takes_part=self._backward_id != NO_BACKWARD if counts_ranks else None,
            forms=forms,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided_candidate = self._engine.begin(inputs)
        self.decided_candidate.add_done_callback(bucket.fail_if_step_fails)

    def _continues_in_other_backward(self, backward_id: int) -> bool:
        """True if the step under way continues in another backward than the one in which its last bucket came.

        Reentrant activation checkpointing runs backwards within the backward; and a program may call ``backward()`` for
        one part of the parameters after the other.

        Args:
            backward_id: autograd's number of the present backward.
        """
        if self._backward_id in (None, NO_BACKWARD, backward_id) or backward_id == NO_BACKWARD:
            return False
        return 0 < len(self._arrived_pieces) < self._parameter_count

    def _watch_backward(self) -> None:
        """Let autograd call ``_backward_ended`` at the end of the present backward, if one runs."""
        self._backward_id = torch._C._current_graph_task_id()
        if self._backward_id != NO_BACKWARD:
            Variable._execution_engine.queue_callback(UncompiledHook(self._backward_ended))
            raise_after_reducer(self._buckets_of_step)

    def _backward_ended(self) -> None:
        """End the engine's step, unless another backward brings the rest of the gradients."""
        if self._backward_id is not None and len(self._arrived_pieces) >= self._parameter_count:
            self._end()

    def _end(self) -> None:
        """End the engine's step. Called after backward and all hooks, before DDP waits for the hooks' futures."""
        forward_began_mark, optimizer_ended_mark, backward_ended_mark = (
            self._forward_began_mark,
            self._optimizer_ended_mark,
            self._engine.mark(),
        )

        def add_times(measurement: StepRecording) -> None:
            measurement.forward_began = forward_began_mark
            measurement.optimizer_ended = optimizer_ended_mark
            measurement.backward_ended = backward_ended_mark

        for group in self.layout.end():
            self._exchange(group, None)
        self._arrived_pieces.clear()
        self._buckets_of_step = []
        self._forward_began_mark = None
        self._backward_id = None
        self.exchange_ended()
        self._engine.state.layout = self.layout.fixed_groups
        self._engine.end(add_times)

    def _exchange(self, group: Names, buffer: torch.Tensor | None, is_last: bool = False) -> None:
        """Hand an exchange group (gradients that are exchanged together) to the engine, which averages the group.

        Args:
            group: names of the group's parameters, whose gradients have arrived.
            buffer: flat buffer of a bucket that has exactly the group's gradients; ``None`` if no bucket has.
            is_last: whether the step has no further group.
        """
        pieces = [self._arrived_pieces[name][0] for name in group]
        buckets = dict.fromkeys(self._arrived_pieces[name][1] for name in group)

        def ended(averaged: Averaged) -> None:
            failure = averaged.exception()
            for bucket in buckets:
                if failure is not None:
                    bucket.fail(failure)
                    continue
                try:
                    bucket.mark_averaged(group)
                except BaseException as error:  # otherwise backward() would wait for the bucket for ever
                    bucket.fail(error)

        self._engine.submit(pieces, buffer, is_last, ended)

    def _pieces_of(self, bucket: GradBucket, buffer: torch.Tensor) -> list[Piece]:
        """Return a bucket's gradients, each as a flat view of the bucket's buffer; cached until the buffer changes."""
        cached_buffer, pieces = self._pieces_by_bucket.get(bucket.index(), (None, []))
        if (
            cached_buffer is not None
            and cached_buffer.data_ptr() == buffer.data_ptr()
            and cached_buffer.numel() == buffer.numel()
        ):
            return pieces  # these views keep the buffer alive, so no other tensor can have its memory
        pieces, offset = [], 0
        for parameter in bucket.parameters():
            name = self.names.setdefault(id(parameter), f"parameter{len(self.names)}")
            refuse_complex({name: parameter})  # the buffer has two real numbers for each complex element
            pieces.append(Piece(name, buffer[offset : offset + parameter.numel()], memory_shape(parameter)))
            offset += parameter.numel()
        if cached_buffer is not None:
            self._pieces_by_bucket.clear()
        self._pieces_by_bucket[bucket.index()] = (buffer, pieces)
        return pieces


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the highest learning rate of an optimizer's parameter groups.

    Return nan if no group has a learning rate, or if a learning rate is a tensor on a GPU: reading it would make the
    host wait.
    """
    group_rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    if not group_rates or any(isinstance(rate, torch.Tensor) and rate.device.type != "cpu" for rate in group_rates):
        return math.nan
    return max(float(rate) for rate in group_rates)


def refuse_unfit_ddp(ddp: DistributedDataParallel, base: Compressor, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise if gravac cannot attach to a module, or if compressor and optimizer would both apply momentum.

    Args:
        ddp: module that the user gave.
        base: compressor that the run uses.
        optimizer: the module's optimizer; ``None`` if not known.

    Raises:
        RuntimeError: the module has a communication hook already; or DDP's first forward has taken shards of tensor
            parallelism out of the module.
        ValueError: compressor and optimizer both apply momentum (SGD's momentum, or Adam's first moment); or DDP has
            ``delay_all_reduce_named_params``.
    """
    check_has_shards(ddp)
    refuse_delayed_all_reduce(ddp)
    if has_hook(ddp):
        raise RuntimeError(
            "ddp has a communication hook already, but torch allows only one; call detach() of the compressor that "
            "the hook belongs to, or make a new DistributedDataParallel around the model"
        )
    refuse_momentum(base, optimizer)


def refuse_momentum(base: Compressor, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise if compressor and optimizer would both apply momentum.

    Args:
        base: compressor that the run uses.
        optimizer: the module's optimizer; ``None`` if not known.

    Raises:
        ValueError: compressor and optimizer both apply momentum (SGD's momentum, or Adam's first moment).
    """
    for group in optimizer.param_groups if base.owns_momentum and optimizer is not None else ():
        for setting_name, momentum in (
            ("momentum", group.get("momentum", 0)),
            ("betas[0]", group.get("betas", (0,))[0]),
        ):
            if momentum:
                raise ValueError(
                    f"optimizer: {type(optimizer).__name__} has {setting_name}={momentum:g}, but {base.name} applies "
                    "momentum itself; set the optimizer's momentum to 0, as in torch.optim.SGD(..., momentum=0), or "
                    "use another compressor"
                )


def failed_future(failure: BaseException, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a future for DDP of a bucket (flat) that cannot be exchanged; ``backward()`` will raise the exception.

    A hook returns this future, since raising in a hook would break the reducer.
    """
    failed_bucket = _Bucket(bucket.buffer(), (), lambda: None)
    if not failed_bucket.fails_future:
        raise_after_reducer([failed_bucket])
    future = failed_bucket.future.then(failed_bucket.averaged_buffer)
    failed_bucket.fail(failure)
    return future


def raise_after_reducer(buckets: Sequence[_Bucket]) -> None:
    """Let the present backward raise the exception of a bucket's exchange, if there is one, at its very end.

    Called in a backward, before DDP's reducer has queued the function that waits for the buckets' futures. What this
    function queues therefore runs before it, and what is queued then runs after it.

    Args:
        buckets: buckets of this backward; later buckets may be added.
    """

    def raise_failures() -> None:
        for bucket in buckets:
            bucket.raise_failure()

    queue_callback = Variable._execution_engine.queue_callback
    queue_callback(UncompiledHook(lambda: queue_callback(UncompiledHook(raise_failures))))


WRAPPER_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")
"""Components that torch.compile and activation checkpointing insert into parameters' names."""


def canonical_name(name: str) -> str:
    """Return a parameter's name without the components that torch.compile and activation checkpointing insert.

    Example:
        >>> canonical_name("_orig_mod.block._checkpoint_wrapped_module.weight")
        'block.weight'
    """
    return ".".join(component for component in name.split(".") if component not in WRAPPER_NAMES)
