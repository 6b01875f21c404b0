# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The source for DistributedDataParallel: its communication hook, and the names, buckets and moments that it needs.

DDP's reducer holds a lock while it calls the hook, so the hook only cuts the bucket into groups and enqueues them. It
never raises and never returns None, since both would break the reducer for good. Errors are stored in the future that
the hook returns, and ``backward()`` raises them.
"""

import math
import weakref
from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gravac.averaging.plan import Form, Piece
from gravac.averaging.tensors import memory_shape, refuse_complex
from gravac.candidate import Candidate
from gravac.compressors.base import Compressor
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import Mark, Number
from gravac.measurement import LocalMeasurement
from gravac.sources.ddp_private import (
    UncopiedHook,
    averaged_parameters,
    divides_by_those_with_inputs,
    has_hook,
    rebuild_reducer,
)
from gravac.sources.exchange_layout import ExchangeLayout, Names

NO_BACKWARD = -1
"""Autograd's number for "no backward is running". In ``join()``, a rank without inputs takes part in the others'
exchanges without a backward."""


BucketMean = torch.futures.Future[torch.Tensor | None]
"""Future of a bucket's mean; its result is ``None`` if the exchange failed."""


class _Bucket:
    """A bucket in flight; its future is completed when all its parameters hold the mean.

    Args:
        buffer: the bucket's flat buffer.
        names: names of its parameters.
        join: makes the present stream wait for earlier jobs.
    """

    def __init__(self, buffer: torch.Tensor, names: Names, join: Callable[[], None]) -> None:
        self.buffer = buffer
        self.join = join
        self.groups = 0
        self.names = set(names)
        self.failure: BaseException | None = None
        devices = [buffer.device] if buffer.device.type != "cpu" else None
        self.future: BucketMean = torch.futures.Future(devices=devices)  # type: ignore[arg-type]

    def done(self, names: Names) -> None:
        """Record that some parameters hold the mean; complete the future if all do."""
        self.names.difference_update(names)
        self.groups += 1
        if not self.names and not self.future.done():
            if self.groups > 1:
                self.join()
            # the result must be the tensor itself: only of its result does a future know which stream wrote it
            self.future.set_result(self.buffer)

    def fail(self, failure: BaseException) -> None:
        """Complete the future with a failure of the exchange, which ``backward()`` will raise."""
        if not self.future.done():
            self.failure = failure
            self.future.set_result(None)

    def fails_with(self, decided: "Future[Candidate]") -> None:
        """Let the bucket fail if the beginning of the step fails."""
        if (failure := decided.exception()) is not None:
            self.fail(failure)

    def outcome(self, _: BucketMean) -> torch.Tensor:
        """Return the buffer to DDP, averaged in place; raise if the exchange failed."""
        if self.failure is not None:
            raise self.failure
        return self.buffer


class DDPAdapter:
    """Hands a DDP module's gradients over, bucket by bucket.

    Args:
        engine: averages the gradients.

    Attributes:
        decided: future of the candidate of the last step that began; ``None`` before the first.
        send_residuals: whether the next step sends all residuals, dense, whatever the controller decided.
        layout: exchange groups.
        names: parameters' names, by ``id``.
        loss_scale: returns the present loss scale; ``None`` without a scaler.
        optimizer: optimizer whose learning rate the controller learns; ``None``: it learns none.
    """

    def __init__(self, engine: Engine) -> None:
        self.decided: Future[Candidate] | None = None
        self.send_residuals = False
        self.layout = ExchangeLayout()
        self.names: dict[int, str] = {}
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self._engine = engine
        self._task: int | None = None  # autograd's number of the backward under way; NO_BACKWARD in a join
        self._cuts: dict[int, tuple[torch.Tensor, list[Piece]]] = {}  # by bucket index
        self._arrived: dict[str, tuple[Piece, _Bucket]] = {}
        self._inputs: Mark | None = None
        self._optimized: Mark | None = None
        self._ddp: weakref.ref[DistributedDataParallel] | None = None
        self._watched: list[torch.utils.hooks.RemovableHandle] = []

    def bind(self, module: torch.nn.Module) -> None:
        """Store names (without wrappers' prefixes) and shapes of the parameters, except for those that DDP ignores.

        Raises:
            TypeError: a parameter to train is complex.
        """
        named = averaged_parameters(module)
        self._engine.know({canonical(name): parameter for name, parameter in named.items() if parameter.requires_grad})
        self.names = {id(parameter): canonical(name) for name, parameter in named.items()}

    def follow(self, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer | None) -> None:
        """Set the module whose gradients are averaged, and the optimizer whose learning rate is read."""
        self._ddp, self.optimizer = weakref.ref(ddp), optimizer

    def watch(self) -> None:
        """Register hooks that record when forward starts and when the optimizer's step ends."""
        assert self.ddp is not None
        self._watched = [self.ddp.register_forward_pre_hook(UncopiedHook(self._sees_forward))]
        if self.optimizer is not None:
            self._watched.append(self.optimizer.register_step_post_hook(self.step_ended))

    def detach(self) -> None:
        """Remove the hook: give the module a new reducer. Names and groups stay, since residuals depend on them.

        Raises:
            RuntimeError: no module is being watched, or ``rebuild_reducer`` raised; nothing was changed.
        """
        ddp = self.ddp
        if ddp is None:
            raise RuntimeError(
                "detach: this compressor is not attached by attach(); a hook that was registered by hand stays until a "
                "new DistributedDataParallel is made around the model"
            )
        rebuild_reducer(ddp, forward_pending=self._inputs is not None)
        for handle in self._watched:
            handle.remove()
        self._watched.clear()
        self.optimizer = None
        self.loss_scale = None
        self._ddp = None
        self.decided = None
        self.rest()

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The module being watched; ``None`` if there is none, or if it was deleted."""
        return self._ddp() if self._ddp is not None else None

    def rest(self) -> None:
        """Forget the moments and buckets of the step under way, since the next steps exchange no gradients."""
        self._inputs = self._optimized = None
        self._cuts.clear()

    def _sees_forward(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self.forward_starts()

    def forward_starts(self) -> None:
        """Record the moment when a forward with gradients begins."""
        if self._inputs is None:
            self._inputs = self._engine.mark()

    def step_ended(self, *_: object) -> None:
        """Record the moment when the optimizer's step has ended."""
        self._optimized = self._engine.mark()

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Enqueue a bucket, as the communication hook.

        Args:
            bucket: gradients that are ready, one after the other in a flat buffer.

        Returns:
            Future of that buffer, flat, in which the mean over the ranks replaces the gradients.

        Raises:
            TypeError: compiled autograd handed over a gradient by itself.
        """
        if isinstance(bucket, tuple):
            # torch ignores the returned future here, so a failed one would let ranks differ in silence
            raise TypeError(
                "compiled autograd hands over gradients one by one (python reducer), which gravac does not support; "
                "compile without it: torch._dynamo.config.compiled_autograd = False, optimize_ddp = 'ddp_optimizer'"
            )
        try:
            return self._enqueue(bucket)
        except BaseException as failure:
            return failed(failure)

    def _enqueue(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise TypeError(
                "bucket: a sparse gradient (embedding with sparse=True) cannot be compressed; use sparse=False, or "
                "leave that parameter out of DDP (_set_params_and_buffers_to_ignore_for_model)"
            )
        pieces = self._cut(bucket, buffer)
        names = tuple(piece.name for piece in pieces)
        begins = self._task != torch._C._current_graph_task_id()
        if begins:
            self._engine.device = buffer.device
            self._engine.open()  # first, since this may fail, and nothing is in flight yet
        in_flight = _Bucket(buffer, names, self._engine.executor.join)
        averaged = in_flight.future.then(in_flight.outcome)
        # only enqueue from here on: when the exchange thread has woken, a torch call would wait until it frees the GIL
        if begins:
            self._begin([(piece.shape, piece.flat.dtype) for piece in pieces], in_flight)
        for piece in pieces:
            self._arrived[piece.name] = piece, in_flight
        complete = self.layout.arrive(names)
        for position, group in enumerate(complete, 1):
            is_last = bucket.is_last() and position == len(complete)
            self._exchange(group, buffer if group == names else None, is_last)
        if self._task == NO_BACKWARD and bucket.is_last():
            self._end()
        return averaged

    def _begin(self, forms: list[Form], bucket: "_Bucket") -> None:
        """Begin the engine's step with the first bucket of a backward."""
        self._task = torch._C._current_graph_task_id()
        if self._task != NO_BACKWARD:
            Variable._execution_engine.queue_callback(self._end)
        counted = self.ddp is not None and divides_by_those_with_inputs(self.ddp)
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            takes_part=self._task != NO_BACKWARD if counted else None,
            forms=forms,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided = self._engine.begin(inputs)
        self.decided.add_done_callback(bucket.fails_with)

    def _end(self) -> None:
        """End the engine's step: backward and all hooks have run, and DDP has not yet waited for their futures."""
        inputs, optimized, backward = self._inputs, self._optimized, self._engine.mark()

        def fill(measurement: LocalMeasurement) -> None:
            measurement.inputs, measurement.optimized, measurement.backward = inputs, optimized, backward

        for group in self.layout.end():
            self._exchange(group, None)
        self._arrived.clear()
        self._inputs = None
        self._task = None
        self._engine.state.layout = self.layout.fixed
        self._engine.end(fill)

    def _exchange(self, group: Names, buffer: torch.Tensor | None, is_last: bool = False) -> None:
        pieces = [self._arrived[name][0] for name in group]
        buckets = dict.fromkeys(self._arrived[name][1] for name in group)

        def ended(failure: BaseException | None) -> None:
            for bucket in buckets:
                if failure is not None:
                    bucket.fail(failure)
                    continue
                try:
                    bucket.done(group)
                except BaseException as error:  # otherwise backward() would wait for the bucket for ever
                    bucket.fail(error)

        self._engine.exchange(pieces, buffer, is_last, ended)

    def _cut(self, bucket: GradBucket, buffer: torch.Tensor) -> list[Piece]:
        """Return the bucket's parameters as flat views of its buffer, cached until DDP rebuilds its buckets."""
        cut_buffer, pieces = self._cuts.get(bucket.index(), (None, []))
        if (
            cut_buffer is not None
            and cut_buffer.data_ptr() == buffer.data_ptr()
            and cut_buffer.numel() == buffer.numel()
        ):
            return pieces  # they keep the buffer alive, so no other tensor can have its memory
        pieces, offset = [], 0
        for parameter in bucket.parameters():
            name = self.names.setdefault(id(parameter), f"parameter{len(self.names)}")
            refuse_complex({name: parameter})  # a complex gradient has two reals an element in the buffer
            pieces.append(Piece(name, buffer[offset : offset + parameter.numel()], memory_shape(parameter)))
            offset += parameter.numel()
        if cut_buffer is not None:
            self._cuts.clear()
        self._cuts[bucket.index()] = (buffer, pieces)
        return pieces


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the highest learning rate of the parameter groups; nan if reading it would wait for a device."""
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    if not rates or any(isinstance(rate, torch.Tensor) and rate.device.type != "cpu" for rate in rates):
        return math.nan
    return max(float(rate) for rate in rates)


def refuse_unfit(ddp: object, base: Compressor, optimizer: torch.optim.Optimizer | None) -> None:
    """Refuse a module that gravac cannot attach to, and an optimizer that would apply momentum a second time.

    Raises:
        TypeError: ``ddp`` is not a DistributedDataParallel module.
        RuntimeError: the module has a communication hook already.
        ValueError: compressor and optimizer both apply momentum (SGD's momentum, or Adam's first moment).
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"ddp: attach needs a torch.nn.parallel.DistributedDataParallel module, got {type(ddp).__name__}; "
            "wrap the model first: ddp = DistributedDataParallel(model)"
        )
    if has_hook(ddp):
        raise RuntimeError(
            "ddp has a communication hook already, and torch allows one; detach() the compressor that it belongs "
            "to, or make a new DistributedDataParallel around the model"
        )
    refuse_momentum(base, optimizer)


def refuse_momentum(base: Compressor, optimizer: torch.optim.Optimizer | None) -> None:
    """Refuse an optimizer that would apply momentum a second time.

    Raises:
        ValueError: compressor and optimizer both apply momentum (SGD's momentum, or Adam's first moment).
    """
    for group in optimizer.param_groups if base.owns_momentum and optimizer is not None else ():
        for field, momentum in (("momentum", group.get("momentum", 0)), ("betas[0]", group.get("betas", (0,))[0])):
            if momentum:
                raise ValueError(
                    f"optimizer: {type(optimizer).__name__} has {field}={momentum:g}, and {base.name} applies momentum "
                    "itself; give the optimizer none (torch.optim.SGD(..., momentum=0)) or use another compressor"
                )


def failed(failure: BaseException) -> torch.futures.Future[torch.Tensor]:
    """Return a failed future of a flat buffer, since a hook that raises would break the reducer."""

    def throw(_: object) -> torch.Tensor:
        raise failure

    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    return future.then(throw)


WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")
"""Components of names that torch.compile and activation checkpointing insert."""


def canonical(name: str) -> str:
    """Return a parameter's name without the components that torch.compile and activation checkpointing insert.

    Example:
        >>> canonical("_orig_mod.block._checkpoint_wrapped_module.weight")
        'block.weight'
    """
    return ".".join(component for component in name.split(".") if component not in WRAPPERS)
