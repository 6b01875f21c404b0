# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs steps: averages gradients as decided, measures, agrees with the other ranks on the measurement, and decides.

A source of gradients (DDP's communication hook, a loop over ``named_parameters()``, outer steps) calls the engine. It
gives the parameters by name, and says when a step begins, which gradients are ready, and when the step has ended. All
ranks make the same calls in the same order, with the same names and shapes.

The engine uses no threads, clocks or process groups. ``begin``, ``submit`` and ``end`` submit jobs to an executor. A
job is a generator that yields collectives. The executor runs jobs in the order in which it gets them, which is the same
on all ranks. The engine therefore needs no lock. ``gravac.engine.jobs`` has the jobs of a step.

The executor's ``latency``, 2 or more, is the number of steps from a measurement to the decision that it leads to. The
ranks send the measurement of step t in step t + latency - 1. The decision by this measurement holds from step t +
latency on. If the ranks call ``conclude`` and ``concluded`` after step t, the decision already holds for step t + 1.

A step of the engine covers one training step, or several: a round of outer steps, or a stretch of native steps, in
which torch exchanges and gravac only measures times.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Piece, ShardPlace
from gravac.averaging.tensors import flat, memory_shape, refuse_complex, refuse_missing
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.controllers.base import Decision
from gravac.engine.agreement import named_failure
from gravac.engine.coalescing import ReadyGroup, cut
from gravac.engine.decisions import Deciding
from gravac.engine.handle import Averaged, Handle, JobResult, RankSums
from gravac.engine.inputs import NO_INPUTS, StepInputs
from gravac.engine.jobs import AddTimes, Model, StepJobs
from gravac.engine.losses import Losses
from gravac.engine.run_state import RunState
from gravac.exchange.comparing import texts_of_tensors
from gravac.exchange.executor import Executor, Job, Mark, fail, job_of, sums_over_all
from gravac.exchange.failures import ExchangeError
from gravac.exchange.reading import Finite, Number
from gravac.guarded import GuardedCaller

T = TypeVar("T")

CLOSED = "the compressor is closed; make a new AdaptiveCompressor"
"""Message of the error of an engine that was closed."""


class Engine:
    """Runs the steps of a model's training on one rank: averages its gradients, measures and decides.

    Args:
        averager: object that averages tensors over the ranks.
        deciding: object that lets the controller decide.
        open_executor: function that creates an executor and calls ``use``; called before the first step if the engine
            has no executor.

    Attributes:
        state: state of the run after the steps so far.
        device: device of the gradients.
        shapes: shapes of the parameters, by name, dimensions in memory order.
        forms: shape and dtype of each parameter's gradient, in the model's order, the same on all ranks; empty if
            ``know`` was given no parameters.
        parameter_texts: name, shape and dtype of each parameter as text, in the model's order; ranks compare these.
        shard_places: position of this rank's shard within each parameter, by name; empty if each rank has whole
            parameters, or if the positions are not known.
        losses: mean of the training losses reported on this rank since the last step ended.
        forward_s: seconds of the last forward, which the step's measurement gets; nan if it was not timed.

    Example:
        >>> import torch
        >>> from gravac import AdaptiveCompressor, Static, topk
        >>> from gravac.exchange.lockstep import Lockstep
        >>> ranks = Lockstep(2)
        >>> engines, gradients = [], [torch.full((64, 64), 1.0), torch.full((64, 64), 3.0)]
        >>> for executor, gradient in zip(ranks.executors, gradients):
        ...     compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
        ...     engine = compressor.attach_parameters({"w": gradient}, executor=executor)
        ...     begun = engine.begin()
        ...     handle = engine.ready([("w", gradient)])
        ...     engine.end()
        >>> handle.wait()
        >>> gradients[0].mean()
        tensor(2.)
    """

    def __init__(
        self, averager: Averager, deciding: Deciding, open_executor: Callable[[], None] = lambda: None
    ) -> None:
        self.averager, self.deciding = averager, deciding
        self.state = RunState(**averager.tensors)
        self.device = torch.device("cpu")
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.forms: list[Form] = []
        self._dtypes: list[torch.dtype] = []
        self._position_by_name: dict[str, int] = {}
        self.parameter_texts: dict[str, str] = {}
        self.shard_places: Mapping[str, ShardPlace] = {}
        self._open_executor = open_executor
        self._executor: Executor | None = None
        self._closing: weakref.finalize[..., Engine] | None = None
        self._ledger = Ledger()
        self._jobs: StepJobs | None = None
        self._in_step = self._is_closed = False
        self._call_guarded = GuardedCaller()
        self.losses = Losses()
        self.forward_s = math.nan

    # before the first step

    def know(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Store names, shapes, dtypes and device of the parameters whose gradients will be exchanged.

        Args:
            parameters: the parameters by name, in the model's order.

        Raises:
            TypeError: a parameter is complex.
        """
        refuse_complex(parameters)
        self.parameter_texts = texts_of_tensors(parameters)
        self.shapes = {name: memory_shape(parameter) for name, parameter in parameters.items()}
        self._dtypes = [parameter.dtype for parameter in parameters.values()]
        self._position_by_name = {name: position for position, name in enumerate(parameters)}
        self.decide_by({})
        self.device = next((parameter.device for parameter in parameters.values()), self.device)

    def decide_by(self, agreed_shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the shapes by which ranks select candidates and the tensors to compress, so that all ranks decide alike.

        Needed if ranks hold shards of different sizes.

        Args:
            agreed_shapes: the largest shape of each parameter's shards over all ranks, dimensions in memory order, by
                parameter name; empty: all ranks have the same shapes.
        """
        self.averager.agreed_shapes = agreed_shapes
        shapes = (agreed_shapes.get(name, shape) for name, shape in self.shapes.items())
        self.forms = list(zip(shapes, self._dtypes, strict=True))

    @property
    def form_by_name(self) -> dict[str, Form]:
        """Shape and dtype of each gradient on this rank, by parameter name; empty if ``know`` got no parameters."""
        return dict(zip(self.shapes, zip(self.shapes.values(), self._dtypes, strict=True), strict=True))

    def open(self) -> None:
        """Create an executor, if there is none. Called on every rank; ``begin`` calls it.

        Raises:
            SettingsError: a setting differs between ranks; the message names the setting, its values, and their ranks.
            RuntimeError: the engine was closed.
        """
        self._check_open()
        if not self.ready_to_run:
            self._open_executor()

    def use(self, executor: Executor, timed_cfs: Iterable[float] = ()) -> None:
        """Use an executor for all later steps.

        Args:
            executor: object that runs jobs.
            timed_cfs: CFs at which encode and decode were timed, see ``RunRecord``.
        """
        self.averager.rank, self.averager.world = executor.rank, executor.world
        self.state.rank, self.state.world = executor.rank, executor.world
        self.deciding.set_latency(executor.latency, timed_cfs)
        self._executor, self._ledger = executor, executor.ledger
        self._closing = weakref.finalize(self, executor.close, wait=False)  # for a run that nobody closes
        self._closing.atexit = False
        self._jobs = StepJobs(self.averager, self.deciding, self.state, executor)

    def restore(self, loaded: RunState, controller_state: dict[str, Any] | None) -> None:
        """Restore a run from a checkpoint. The next ``begin`` restores the controller.

        Args:
            loaded: saved state of the run, with the tensors.
            controller_state: saved state of the controller; ``None``: the controller starts anew.
        """
        self.state.restore(loaded)
        self.averager.load({"residual": loaded.residual, "memory": loaded.memory, "sums": loaded.sums})
        self.deciding.restore(self.state, controller_state)

    def prepare(self, compute_s: float) -> "Future[Candidate]":
        """Make the first decision, given the time of a step without exchange. Called on every rank, before ``begin``.

        Args:
            compute_s: seconds of a step without exchange on this rank; the ranks use their mean.

        Returns:
            A future of the candidate that was chosen.
        """
        return self.executor.submit(self.jobs.prepare(compute_s, self._model), alone=True)

    def decide_first(self) -> "Future[Candidate]":
        """Make the first decision, unless one was made already. Called on every rank, between two steps.

        Returns:
            A future of the candidate of the newest decision.
        """
        self.open()
        jobs, model = self.jobs, self._model
        return self.executor.submit(job_of(lambda: jobs.decide_first(model)), alone=True)

    def residuals(self) -> dict[str, torch.Tensor]:
        """Return each parameter's residual, flat float32, by name, divided by the loss scale.

        The tensors are copies. Called while no job is in flight.
        """
        loss_scale = self.state.loss_scale or 1.0
        return {name: residual.float() / loss_scale for name, residual in self.averager.residuals.by_name.items()}

    def residual_norm(self) -> float:
        """Return the norm of all residuals, divided by the loss scale. Called while no job is in flight."""
        residuals = self.averager.residuals.by_name.values()
        squared_norm = sum(float(residual.float().square().sum()) for residual in residuals)
        return math.sqrt(squared_norm) / float(self.state.loss_scale or 1.0)

    def change_mode(self) -> None:
        """Prepare for steps of another mode: drop all residuals, which do not fit what the new mode exchanges.

        Called between two steps, on every rank.
        """
        self.executor.submit(job_of(self.jobs.change_mode), alone=True)

    # a step

    def begin(self, inputs: StepInputs = NO_INPUTS) -> "Future[Candidate]":
        """Begin a step, before its first gradients are ready. Called on every rank.

        If all ranks give up a step, they call ``begin`` again, without ``end``. The time of the step that was given up
        then counts as time of the next step.

        Args:
            inputs: facts of the step, such as mode and learning rate.

        Returns:
            A future of the candidate of the newest decision; it fails if an earlier step failed. If this candidate has
            another mode than the step, the ranks must change to that mode when the step has ended.

        Raises:
            RuntimeError: the engine was closed.
        """
        self._in_step = True
        self.open()
        executor, jobs = self.executor, self.jobs
        model = Model(self.forms or inputs.forms, self.device)
        candidate = executor.submit(jobs.begin(inputs, model), alone=True)
        executor.submit(jobs.agreement.exchange_due())
        if inputs.takes_part is not None:
            executor.submit(jobs.count_ranks(inputs.takes_part, self.device))
        return candidate

    def ready(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Handle:
        """Start to average some tensors over the ranks, in place and together; return a handle to wait with.

        Args:
            tensors: names and tensors, of any shape, dense in memory; the same names on all ranks. Their order does not
                matter, if the engine knows the names.

        Raises:
            ValueError: a tensor has gaps in memory, so that it has no flat view.
            TypeError: a tensor is complex, or ``None``.
            RuntimeError: the engine was closed, or no step has begun.
        """
        self._check_in_step("ready")
        refuse_missing(dict(tensors))
        refuse_complex(dict(tensors))
        ordered = sorted(tensors, key=lambda named: self._position_by_name.get(named[0], len(self._position_by_name)))
        pieces = [
            Piece(name, flat(name, tensor), self.shapes.get(name) or memory_shape(tensor)) for name, tensor in ordered
        ]
        return self.submit(pieces, pieces[0].flat if len(pieces) == 1 else None)

    def submit(
        self,
        pieces: Sequence[Piece],
        buffer: torch.Tensor | None = None,
        is_last: bool = False,
        then: Callable[[Averaged], None] | None = None,
        finite: Finite = None,
    ) -> Handle:
        """Start to average flat gradients over the ranks, in place; return a handle to wait for the mean.

        The gradients may wait for those of later calls, to be averaged in one job.

        Args:
            pieces: flat gradients, each with the shape of its parameter.
            buffer: the flat tensor of which the pieces are consecutive views without gaps, which saves a copy;
                ``None``: there is none.
            is_last: whether these are the last gradients of this step.
            then: function that is called with a future when the pieces hold their mean, or when the exchange failed.
                The function is called on the stream that computed the mean, so that no stream has to wait.
            finite: whether all pieces are finite on this rank. If they are not on any rank, compressed pieces become
                NaN on every rank, and no residual changes.
        """
        group = ReadyGroup(tuple(pieces), buffer, finite=finite)
        if then is not None:
            call_guarded = self._call_guarded  # the job must not keep the engine alive
            group.averaged.add_done_callback(lambda averaged: call_guarded(then, averaged))
        *segments, final_segment = cut(group, on_cpu=self.device.type == "cpu")
        for segment in segments:
            self._submit_group(segment)
        self._submit_group(final_segment, is_last)
        return Handle(self, group.averaged, self._call_guarded)

    def submit_job(self, description: str, job: Job[T]) -> "Future[T]":
        """Start a job that exchanges something else than gradients within a step; return a future of its result.

        Called on every rank.

        Args:
            description: description of what the job exchanges, for error messages.
            job: generator of collectives, the same on every rank.
        """

        def run() -> Job[T]:
            with named_failure(self.state, lambda: description):
                return (yield from job)

        return self.executor.submit(run(), timed=True)

    def flush(self) -> None:
        """Start to average all gradients that the source handed over so far; called on all ranks at the same point."""
        self._submit_group(None, is_last=True)

    def end(self, add_times: AddTimes = lambda measurement: None) -> None:
        """End a step when all its gradients have been handed over: measure and decide. Does not wait for the exchange.

        Args:
            add_times: function that gets the step's measurement, and adds times known to the caller to the measurement.
                The executor calls this function when all tensors hold their means.

        Raises:
            RuntimeError: the engine was closed, or no step has begun.
        """
        self._check_in_step("end")
        self.flush()
        self._in_step = False
        loss = self.losses.take_mean()
        forward_s, self.forward_s = self.forward_s, math.nan
        self.executor.submit(self.jobs.end(add_times, loss, forward_s), alone=True)

    def conclude(self) -> None:
        """Start to agree with the other ranks on all steps that have ended, without waiting for later steps.

        Called on every rank between ``end`` and ``begin``; ``concluded`` must be called before the next ``begin``.
        """
        self.executor.submit(self.jobs.agreement.exchange_ended(), alone=True)

    def concluded(self) -> "Future[Candidate]":
        """Decide by the measurements that ``conclude`` sent; return a future of the candidate for the next step."""
        return self.executor.submit(job_of(self.jobs.decide_by_ended_steps), alone=True)

    def _submit_group(self, group: ReadyGroup | None, is_last: bool = False) -> None:
        """Submit a job that averages an exchange group, or a segment of one.

        Args:
            group: the group, or a segment of it; ``None``: no tensors.
            is_last: whether to average all waiting groups now, since the step has no later group.
        """
        taken_groups, jobs = [] if group is None else [group], self.jobs

        def fail_groups(averaged: "Future[None]") -> None:
            if (failure := averaged.exception()) is not None:
                for ready_group in (*taken_groups, *jobs.waiting_groups.groups):
                    fail(ready_group.averaged, failure)

        self.executor.submit(jobs.average(taken_groups, is_last), timed=True).add_done_callback(fail_groups)

    # results of the steps

    @property
    def decision(self) -> Decision | None:
        """The newest decision; ``None`` before the first step."""
        return self.deciding.decision

    @property
    def candidate(self) -> Candidate | None:
        """Candidate of the newest decision, without a wait for steps in flight; ``None`` before the first step."""
        return None if self.decision is None else self.decision.candidate

    @property
    def settled_candidate(self) -> Candidate:
        """The candidate of the newest decision, after waiting for the exchange of all steps that have ended."""
        self.drain()
        assert self.decision is not None
        return self.decision.candidate

    @property
    def settled(self) -> RunState:
        """The run's state, after waiting for the exchange of all steps that have ended."""
        self.drain()
        return self.state

    @property
    def ledger(self) -> Ledger:
        """Counts of this rank's collectives and bytes since ``use``, also after ``close``; 0 before ``use``."""
        return self._ledger

    def sum_over_ranks(self, description: str, numbers: Sequence[Number]) -> RankSums:
        """Start to sum numbers over the ranks; return a handle of the sums. Called on every rank, between two steps.

        Args:
            description: description of the numbers, for error messages.
            numbers: this rank's numbers; every rank has as many.
        """
        job = sums_over_all(self.executor, [numbers])
        return RankSums(self.executor.submit(_named(self._with_step(description), job)), numbers)

    def run_between_steps(self, description: str, job: Job[T]) -> JobResult[T]:
        """Start a job that is not part of a step; return a handle of its result.

        Called on every rank, between two steps.

        Args:
            description: description of what the job exchanges, for error messages.
            job: generator that yields collectives, the same on every rank; it may read tensors' values, for which
                the host waits.
        """
        description = self._with_step(description)
        return JobResult(self.executor, description, self.executor.submit(_named(description, job), timed=True))

    def _with_step(self, description: str) -> str:
        """Return the description of an exchange between two steps, with the number of the next training step."""
        return f"step {self.state.trained + self.state.native.made}, {description}"

    # the executor

    @property
    def ready_to_run(self) -> bool:
        """True if the engine has an executor."""
        return self._executor is not None

    @property
    def executor(self) -> Executor:
        """The executor, which runs jobs.

        Raises:
            RuntimeError: the engine was closed, or never opened.
        """
        if self._executor is None:
            raise RuntimeError(CLOSED)
        return self._executor

    def _check_open(self) -> None:
        """Raise ``RuntimeError`` if the engine was closed."""
        if self._is_closed:
            raise RuntimeError(CLOSED)

    def _check_in_step(self, method: str) -> None:
        """Raise ``RuntimeError`` if the engine was closed, or if no step has begun.

        Args:
            method: name of the method that was called, for the message.
        """
        self._check_open()
        if not self._in_step:
            raise RuntimeError(f"{method}: no step has begun; call engine.begin() first")

    @property
    def jobs(self) -> StepJobs:
        """The jobs of a step; the engine must have an executor."""
        assert self._jobs is not None
        return self._jobs

    @property
    def _model(self) -> Model:
        return Model(self.forms, self.device)

    def mark(self) -> Mark | None:
        """Return the present moment, by the executor's clock or stream; ``None`` without an executor."""
        return None if self._executor is None else self._executor.mark()

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all jobs have ended, for at most ``seconds``; return whether they have ended.

        ``None`` waits without limit. If jobs are left, or if the exchange failed, ``state`` is as the last job left it.
        """
        if self._executor is None or self._jobs is None:
            return True
        drained = self._executor.drain(seconds)
        if drained:
            self._executor.join()  # the numbers may be on the stream of another thread
            self._jobs.agreement.read(self.state.step)
        return drained

    def close(self, failure: BaseException | None = None) -> None:
        """End the executor after all jobs.

        Args:
            failure: exception with which unfinished jobs fail; ``None``: they run to their end first.
        """
        self._is_closed = True
        if self._executor is not None and self._jobs is not None:
            executor, self._executor = self._executor, None
            if self._closing is not None:
                self._closing.detach()
            if failure is not None:
                executor.abandon(failure)
            executor.close()


def _named(description: str, job: Job[T]) -> Job[T]:
    """Run a job, and say in its errors what it exchanges."""
    try:
        return (yield from job)
    except ExchangeError as failure:
        raise ExchangeError(f"gravac: {description}: {failure}") from failure.__cause__
