# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The source of gradients for DistributedDataParallel: a communication hook, which hands buckets to gravac's engine.

The engine averages the gradients. DDP's reducer holds a lock while it calls the hook, so the hook only cuts the bucket
into exchange groups (parameters that are exchanged together) and enqueues the groups. The hook never raises and never
returns ``None``, since either would break the reducer for good: see ``ddp_bucket``.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gravac.averaging.plan import Form, Piece
from gravac.averaging.recording import StepRecording
from gravac.averaging.tensors import memory_shape, refuse_complex
from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.handle import Averaged
from gravac.engine.inputs import StepInputs, learning_rate
from gravac.exchange.executor import Mark
from gravac.exchange.reading import Number
from gravac.settings import SettingsError
from gravac.sources.ddp_bucket import BucketInFlight, call_after_backward, failed_future, raise_after_reducer
from gravac.sources.ddp_private import Reducer, reducer_parameters
from gravac.sources.exchange_layout import ExchangeLayout, Names
from gravac.sources.gradient_hooks import refuse_optimizer_in_backward, register_own_hook, restore_hooks, watch_hooks
from gravac.sources.hooks import NO_BACKWARD, UncopiedHook
from gravac.sources.local_model import LocalModel, innermost, with_inner_optimizers
from gravac.sources.parameters import averaged_parameters, canonical_name
from gravac.sources.pipelines import is_in_schedule


class DDPSource:
    """Hands a DDP module's gradients to the engine, bucket by bucket; a switch may let DDP average instead, or nobody.

    See ``gravac.modes.source.Source`` for the methods that a switch calls. Without a switch, all steps are hook steps.
    ``hook`` may also be registered by hand, without ``attach``.

    Args:
        engine: object that averages the gradients.

    Attributes:
        decided_candidate: future of the candidate that the controller had chosen when the last hook step began;
            ``None`` before the first.
        send_residuals: whether the next hook step sends all residuals (unsent parts of earlier gradients), without
            compression, whatever the controller decided.
        layout: divides buckets into exchange groups: lists of the names of parameters that are exchanged together.
        names: parameters' names, by the parameters' ``id``.
        loss_scale: function that returns the present loss scale, a float or a 0-d tensor; ``None`` without a
            ``GradScaler``.
        optimizer: optimizer whose learning rate the controller gets; ``None``: the controller gets no learning rate.
        refuses_steps_in_backward: whether a forward raises if an optimizer steps within backward, since outer steps are
            allowed.
    """

    def __init__(self, engine: Engine) -> None:
        self.decided_candidate: Future[Candidate] | None = None
        self.send_residuals = self.refuses_steps_in_backward = False
        self.layout = ExchangeLayout()
        self.names: dict[int, str] = {}
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self._engine = engine
        self._reducer: Reducer | None = None  # of the attached module
        self._registered_hook: Callable[..., Any] | None = None
        self._hook_handles: list[Any] = []
        self._watched: dict[int, tuple[torch.nn.Parameter, Any]] = {}  # parameters with a hook on their gradient, by id
        self._backward_id: int | None = None  # autograd's number of the backward under way; NO_BACKWARD in a join
        self._pieces_by_bucket: dict[int, tuple[torch.Tensor, list[Piece]]] = {}  # by bucket index
        self._keeps_pieces = False  # False in a reducer's first backward, after which DDP may make new buckets
        self._arrived_pieces: dict[str, tuple[Piece, BucketInFlight]] = {}
        self._buckets_of_step: list[BucketInFlight] = []
        self._forward_began_mark: Mark | None = None
        self._optimizer_ended_mark: Mark | None = None

    # attaching

    def bind(self, module: torch.nn.Module) -> None:
        """Store names and shapes of a module's parameters, except for those that DDP ignores.

        Args:
            module: the DDP module, or a model that is not in DDP yet.

        Raises:
            TypeError: a parameter that requires a gradient is complex.
        """
        parameters = averaged_parameters(module)
        if isinstance(module, DistributedDataParallel):
            trained = reducer_parameters(module)
        else:
            trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self._engine.know({canonical_name(name): parameter for name, parameter in trained.items()})
        self.names = {id(parameter): canonical_name(name) for name, parameter in parameters.items()}

    def attach(self, reducer: Reducer, optimizer: torch.optim.Optimizer | None, hook: Callable[..., Any]) -> None:
        """Average a module's gradients from now on. Called after ``bind``, before the module's first forward.

        Args:
            reducer: the module's reducer.
            optimizer: optimizer whose learning rate the controller gets; ``None``: it gets none.
            hook: communication hook to register, which calls this object's ``hook``.
        """
        # the module's hooks refer to this object, which therefore refers to the module weakly, by its reducer
        self._reducer, self.optimizer, self._registered_hook = reducer, optimizer, hook
        self._hook_handles = [reducer.ddp.register_forward_pre_hook(UncopiedHook(self._check_forward))]
        reducer.register_hook(hook)

    def detach(self) -> None:
        """Detach from the DDP module: give it a new reducer without a communication hook, and remove all other hooks.

        This object keeps names and exchange groups, since residuals depend on them.

        Raises:
            RuntimeError: no module is attached, or ``Reducer.renew`` raised; nothing was changed.
        """
        if self._reducer is None:
            raise RuntimeError(
                "detach: this compressor was not attached by attach(); a hook that was registered by hand stays until "
                "you make a new DistributedDataParallel around the model"
            )
        ddp = self.ddp
        if ddp is not None:  # otherwise the module was deleted
            self._reducer.renew(forward_pending=self._forward_began_mark is not None)
            for parameter in ddp.parameters():
                restore_hooks(parameter)
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()
        self.watch_gradients(None)
        self.optimizer = self.loss_scale = self.decided_candidate = self._reducer = self._registered_hook = None
        self.stop_exchange()

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The attached DDP module; ``None`` if there is none, or if it was deleted."""
        return None if self._reducer is None else self._reducer.ddp_ref()

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Parameters that DDP does not ignore, by name, also shards that its first forward took out of the module."""
        ddp = self.ddp
        if ddp is None or self._reducer is None:
            return {}
        parameters = {**averaged_parameters(ddp), **self._reducer.shards}
        return {canonical_name(name): parameter for name, parameter in parameters.items()}

    def _check_forward(self, *_: object) -> None:
        """Forget a backward that failed, and refuse what gravac could not average. Called when a forward begins.

        Raises:
            SettingsError: an optimizer steps within backward, but outer steps are allowed; or a pipeline's schedule
                runs a forward whose backward would exchange.
        """
        if self._backward_id is not None and torch._C._current_graph_task_id() == NO_BACKWARD:
            self._backward_id = None  # the last backward failed, or lacked parameters, which DDP reports
        if not torch.is_grad_enabled():
            return
        if self.will_exchange and is_in_schedule():
            raise SettingsError(
                "input_args, output_args: a stage of the pipeline has no such arguments, so its schedule ran a "
                "forward outside of no_sync() to learn shapes, and DDP would average only the first micro-batch; "
                "give both arguments to PipelineStage on every rank"
            )
        for name, parameter in self._attached.parameters.items() if self.refuses_steps_in_backward else ():
            refuse_optimizer_in_backward(name, parameter)
            watch_hooks(name, parameter, refuses_steps=True)

    # what a switch calls, see ``Source``

    @property
    def _attached(self) -> Reducer:
        """The attached module's reducer."""
        assert self._reducer is not None
        return self._reducer

    @property
    def called_module(self) -> DistributedDataParallel:
        """The DDP module."""
        return self._attached.ddp

    @property
    def inner_module(self) -> torch.nn.Module:
        """The module inside DDP, whose weights are trained."""
        return self._attached.inner_module

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the module inside DDP and its optimizers, which this rank trains by itself in outer steps."""
        names = self._attached.parameters.keys()
        return LocalModel(innermost(self.inner_module), with_inner_optimizers(optimizers), names)

    @property
    def forward_exchanges(self) -> bool:
        """True if ranks exchange tensors in forward, since tensor parallelism cuts parameters."""
        return bool(self._attached.shards)

    @property
    def will_exchange(self) -> bool:
        """True if DDP is to average gradients in the next backward; read when a forward begins."""
        return self._attached.will_average

    @property
    def in_join(self) -> bool:
        """True if training runs, or once ran, under ``ddp.join()``: DDP never resets its flag."""
        return bool(getattr(getattr(self.ddp, "_join_config", None), "enable", False))

    @property
    def shares_buffers(self) -> bool:
        """True if DDP copies rank 0's buffers to all ranks in each forward."""
        return bool(self.called_module.broadcast_buffers)

    def use_hook(self) -> None:
        """Let gravac exchange gradients: give DDP a new reducer with gravac's hook."""
        assert self._registered_hook is not None
        self._attached.renew()
        self._attached.register_hook(self._registered_hook)

    def use_native(self, cf: float) -> None:
        """Let DDP exchange gradients: give DDP a new reducer without gravac's hook.

        Args:
            cf: 1 for an exchange in float32, 2 for float16, by torch's own hook.
        """
        self.stop_exchange()
        self._attached.renew()
        if cf == 2:
            self._attached.use_float16()

    def stop_exchange(self) -> None:
        """Forget the hook step under way; the caller then calls ``use_native``, or ``silence_exchange`` per forward."""
        self._forward_began_mark = self._optimizer_ended_mark = None
        self._pieces_by_bucket.clear()
        self._keeps_pieces = False

    def silence_exchange(self) -> None:
        """Turn DDP's averaging off for a forward and its backward. Called when the forward begins."""
        self._attached.silence_exchange()

    def restore_exchange(self) -> None:
        """Set DDP's flags back to what the training loop had set. Called when a forward has ended."""
        self._attached.restore_flags()

    def watch_gradients(self, gradient_accumulated: Callable[[torch.Tensor], None] | None) -> None:
        """Call a function with each parameter (any shape) that gets a gradient in a backward; ``None``: no longer."""
        if gradient_accumulated is None:
            for _, handle in self._watched.values():
                handle.remove()
            self._watched.clear()
            return
        for parameter in self.inner_module.parameters():
            if parameter.requires_grad and id(parameter) not in self._watched:
                self._watched[id(parameter)] = parameter, register_own_hook(parameter, gradient_accumulated)

    def has_averaged(self) -> bool:
        """Return whether DDP itself has averaged gradients since the last call."""
        return self._attached.has_averaged()

    def forward_starts(self) -> None:
        """Record the time at which the first forward of a hook step begins."""
        if self._forward_began_mark is None:
            self._forward_began_mark = self._engine.mark()

    def step_ended(self, *_: object) -> None:
        """Record the time at which an optimizer's step ended. Called in hook mode."""
        self._optimizer_ended_mark = self._engine.mark()

    # the communication hook

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
            self._engine.device = buffer.device
            self._engine.open()  # before anything is in flight, since opening may fail
        bucket_in_flight = BucketInFlight(buffer, names, self._engine.executor.join)
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
        return bucket_in_flight.future

    def _begin(self, forms: list[Form], bucket: BucketInFlight) -> None:
        """Begin a step of the engine, which averages gradients. Called with the first bucket of a backward.

        Args:
            forms: shape and dtype of each of the bucket's gradients.
            bucket: the first bucket; its future fails if the step cannot begin.
        """
        self._buckets_of_step = []  # a list of its own for each step; what raises failures refers to it
        self._watch_backward()
        # under join(divide_by_initial_world_size=False), DDP divides sums by the number of ranks that still have inputs
        counts_ranks = self.in_join and not getattr(self.ddp, "_divide_by_initial_world_size", True)
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            takes_part=self._backward_id != NO_BACKWARD if counts_ranks else None,
            forms=forms,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided_candidate = self._engine.begin(inputs)
        bucket_ref = weakref.ref(bucket)  # a future keeps its callbacks, which must not keep the bucket's memory

        def fail_if_step_fails(candidate: "Future[Candidate]") -> None:
            bucket = bucket_ref()
            if bucket is not None and (failure := candidate.exception()) is not None:
                bucket.fail(failure)

        self.decided_candidate.add_done_callback(fail_if_step_fails)

    @property
    def _parameter_count(self) -> int:
        """Number of parameters that the attached module's reducer averages; 0 if the hook was registered by hand."""
        return 0 if self._reducer is None else len(self._reducer.parameters)

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
            call_after_backward(self._backward_ended)
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
        if not self._keeps_pieces:
            self._pieces_by_bucket.clear()  # otherwise the model's gradients would be in memory twice for a step
            self._keeps_pieces = True
        self._buckets_of_step = []
        self._forward_began_mark = None
        self._backward_id = None
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
