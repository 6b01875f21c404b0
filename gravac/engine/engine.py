# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs steps: averages gradients as decided, measures, agrees with the other ranks on the measurement, and decides.

A source of gradients (DDP's communication hook, a loop over ``named_parameters()``, outer steps) calls the engine. It
gives the parameters by name, and says when a step begins, which gradients are ready, and when the step has ended. All
ranks make the same calls in the same order, with the same names and shapes.

The engine uses no threads, clocks or process groups. ``begin``, ``exchange`` and ``end`` hand calls and jobs to an
executor. A job is a generator that yields collectives; a call is a function. The executor runs jobs and calls in the
order in which it gets them, which is the same on all ranks. The engine therefore needs no lock.

A step consists of these calls and jobs, in this order:

1. ``_begin``: send the last step's numbers, and make a plan from the newest decision. If a CF fell, set the residuals
   aside, to add them to gradients part by part.
2. A job for each group of tensors: average the tensors by the plan.
3. ``_end``: store the new residuals, measure, and decide by the measurement that the ranks agreed on
   (``gravac.engine.agreement``).

The executor's ``latency``, 2 or more, is the number of steps from a measurement to the decision that it leads to. The
ranks send the measurement of step t in step t + latency - 1. The decision by this measurement holds from step t +
latency on. If the ranks call ``conclude`` and ``concluded`` after step t, the decision already holds for step t + 1.

A step of the engine covers one training step, or several: a round of outer steps, or a stretch of native steps, in
which torch exchanges and gravac only measures times.
"""

import functools
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Piece, ShardPlace
from gravac.averaging.recording import StepRecording
from gravac.averaging.tensors import flat, memory_shape, refuse_complex
from gravac.candidate import DENSE, Candidate, Mode, named
from gravac.collectives import Ledger
from gravac.controllers.base import Decision
from gravac.engine.agreement import (
    Agreement,
    AgreementSchedule,
    named_failure,
    schedule_of,
)
from gravac.engine.coalescing import ReadyGroup, Waiting, cut, describe
from gravac.engine.decisions import Deciding
from gravac.engine.factors import Factors
from gravac.engine.handle import Handle, JobResult, RankSums, Then, fail
from gravac.engine.inputs import NO_INPUTS, RanksWithInputs, StepInputs
from gravac.engine.losses import Losses
from gravac.engine.run_state import RunState
from gravac.exchange.comparing import texts_of_tensors
from gravac.exchange.executor import Executor, Job, Mark, Number, Returning, Verdict, both_true
from gravac.guarded import GuardedCaller
from gravac.measurement import agreed

T = TypeVar("T")

AddTimes = Callable[[StepRecording], None]
"""Function that gets a step's measurement, and adds times that the caller of ``Engine.end`` knows."""


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
        probes: mean of the losses on this rank's fixed batches (probes) that were computed since the last step ended.
        forward_s: seconds of the last forward, which the step's measurement gets; nan if it was not timed.
        probe_follows: whether the ranks compute the loss on fixed batches before the next step. Set when a step begins,
            and by ``concluded``.

    Example:
        >>> import torch
        >>> from gravac import AdaptiveCompressor, Static, topk
        >>> from gravac.exchange.lockstep import Lockstep
        >>> ranks = Lockstep(2)
        >>> doors, gradients = [], [torch.full((64, 64), 1.0), torch.full((64, 64), 3.0)]
        >>> for executor, gradient in zip(ranks.executors, gradients):
        ...     door = AdaptiveCompressor(topk, controller=Static(cf=1)).door({"w": gradient}, executor=executor)
        ...     begun = door.begin()
        ...     handle = door.ready([("w", gradient)])
        ...     door.end()
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
        self.parameter_texts: dict[str, str] = {}
        self.shard_places: Mapping[str, ShardPlace] = {}
        self._open_executor = open_executor
        self._executor: Executor | None = None
        self._closing: weakref.finalize[..., Engine] | None = None
        self._ledger = Ledger()
        self._agreement: Agreement | None = None
        self._schedule: AgreementSchedule | None = None
        self._call_guarded = GuardedCaller()
        self._waiting_groups = Waiting()
        self._model_elements = 0
        self._plan = averager.plan(0, None)
        self._jobs_yield_once = False  # whether each job of this step yields collectives only once
        self._measurement: StepRecording | None = None
        self._last_measurement: StepRecording | None = None  # measurement of the last step that ended
        self._ranks_with_inputs = RanksWithInputs(self.state)
        self.losses, self.probes = Losses(), Losses()
        self.forward_s = math.nan
        self.probe_follows = False
        self._last_change_step = 0  # step before which compression factors changed

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
        """
        if not self.ready_to_run:
            self._open_executor()

    def use(self, executor: Executor, timed_cfs: Iterable[float] = ()) -> None:
        """Use an executor for all later steps.

        Args:
            executor: object that runs jobs and calls.
            timed_cfs: CFs at which encode and decode were timed, see ``RunRecord``.
        """
        self.averager.rank, self.averager.world = executor.rank, executor.world
        self.state.rank, self.state.world = executor.rank, executor.world
        self.deciding.set_latency(executor.latency, timed_cfs)
        self._executor, self._ledger = executor, executor.ledger
        self._closing = weakref.finalize(self, executor.close, wait=False)  # for a run that nobody closes
        self._closing.atexit = False
        self._agreement = Agreement(executor, self.state, self._observe)
        self._schedule = schedule_of(self._agreement)

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
        candidate_future: Future[Candidate] = Future()
        time_sums_in_flight: list[Any] = []
        executor = self.executor
        executor.call(
            lambda: time_sums_in_flight.append(executor.agree([[compute_s]])), functools.partial(fail, candidate_future)
        )
        executor.drain()

        def decide_by_compute_time() -> None:
            with named_failure(self.state, lambda: "the compute time of a step"):
                ((total,),) = executor.agreed(time_sums_in_flight[0])
            self.state.compute_s = total / executor.agree_world
            candidate_future.set_result(self._first_decision(self.forms).candidate)

        executor.call(decide_by_compute_time, functools.partial(fail, candidate_future))
        return candidate_future

    def decide_first(self) -> "Future[Candidate]":
        """Make the first decision, unless one was made already. Called on every rank, between two steps.

        Returns:
            A future of the candidate of the newest decision.
        """
        self.open()
        candidate_future: Future[Candidate] = Future()

        def decide_if_undecided() -> None:
            decision = self.decision or self._first_decision(self.forms)
            candidate_future.set_result(decision.candidate)

        self.executor.call(decide_if_undecided, functools.partial(fail, candidate_future))
        return candidate_future

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

    def change_mode(self, mode: Mode) -> None:
        """Prepare for steps of another mode: drop all residuals, which do not fit what the new mode exchanges.

        Called between two steps, on every rank. In outer steps, the residuals of a group of tensors stay unchanged if a
        mean of this group is not finite; other groups do not matter.

        Args:
            mode: mode of the steps that follow.
        """

        def change() -> None:
            self.averager.forget()
            self.averager.residuals.checks_group_means = mode == "outer"
            self.state.factors = Factors()
            self._last_measurement = None

        self.executor.call(change, lambda failure: None)

    # a step

    def begin(self, inputs: StepInputs = NO_INPUTS) -> "Future[Candidate]":
        """Begin a step, before its first gradients are ready. Called on every rank.

        Args:
            inputs: facts of the step, such as mode and learning rate.

        Returns:
            A future of the candidate of the newest decision; it fails if an earlier step failed. If this candidate has
            another mode than the step, the ranks must change to that mode when the step has ended.
        """
        self.open()
        candidate_future: Future[Candidate] = Future()
        on_failure = functools.partial(fail, candidate_future)
        if not self.schedule.host_looks:
            self.executor.call(lambda: self.schedule.before_step(self.state.step), on_failure)
        self.executor.call(lambda: candidate_future.set_result(self._begin(inputs)), on_failure)
        return candidate_future

    def ready(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Handle:
        """Start to average some tensors over the ranks, in place and together; return a handle to wait with.

        Args:
            tensors: names and tensors, of any shape, dense in memory; the same names in the same order on all ranks.

        Raises:
            ValueError: a tensor has gaps in memory, so that it has no flat view.
            TypeError: a tensor is complex.
        """
        refuse_complex(dict(tensors))
        pieces = [
            Piece(name, flat(name, tensor), self.shapes.get(name) or memory_shape(tensor)) for name, tensor in tensors
        ]
        return self.exchange(pieces, pieces[0].flat if len(pieces) == 1 else None)

    def exchange(
        self,
        pieces: Sequence[Piece],
        buffer: torch.Tensor | None = None,
        is_last: bool = False,
        then: Then = lambda failure: None,
        finite: Verdict = True,
    ) -> Handle:
        """Start to average flat gradients over the ranks, in place; return a handle to wait for the mean.

        The gradients may wait for those of later calls, to be averaged in one job.

        Args:
            pieces: flat gradients, each with the shape of its parameter.
            buffer: the flat tensor of which the pieces are consecutive views without gaps, which saves a copy;
                ``None``: there is none.
            is_last: whether these are the last gradients of this step.
            then: function that is called with ``None`` when the pieces hold their mean, or with the exception if the
                exchange failed. The function is called on the stream that computed the mean, so that no stream has to
                wait.
            finite: whether all pieces are finite on this rank; True if not known. If False on any rank, compressed
                pieces become NaN on every rank, and no residual changes.
        """
        handle = Handle(self, self._call_guarded)
        handle.then(then)
        group = ReadyGroup(tuple(pieces), buffer, handle.set_ended, handle.set_ended, finite)
        *segments, final_segment = cut(group, self.executor.join)
        for segment in segments:
            self._hand_over(segment, None)
        self._hand_over(final_segment, group, is_last)
        return handle

    def run_in_step(self, description: str, job: Job, then: Then) -> None:
        """Start a job that exchanges something else than gradients within a step. Called on every rank.

        Args:
            description: description of what the job exchanges, for error messages.
            job: generator of collectives, the same on every rank.
            then: function that is called with ``None`` when the job has ended, or with the exception if it failed.
        """

        def run() -> Job:
            with named_failure(self.state, lambda: description):
                yield from job
            then(None)

        self.executor.exchange(run(), then, self.device, lambda: False)

    def flush(self) -> None:
        """Start to average all gradients that the source handed over so far; called on all ranks at the same point."""
        self._hand_over(None, None, is_last=True)

    def end(self, add_times: AddTimes = lambda measurement: None) -> None:
        """End a step when all its gradients have been handed over: measure and decide. Does not wait for the exchange.

        Args:
            add_times: function that gets the step's measurement, and adds times known to the caller to the measurement.
                The executor calls this function when all tensors hold their means.
        """
        self.flush()
        loss, probe = self.losses.take_mean(), self.probes.take_mean()
        forward_s, self.forward_s = self.forward_s, math.nan
        self.executor.call(lambda: self._end(add_times, loss, probe, forward_s), lambda failure: None)

    def conclude(self) -> None:
        """Start to agree with the other ranks on all steps that have ended, without waiting for later steps.

        Called on every rank between ``end`` and ``begin``; ``concluded`` must be called before the next ``begin``.
        """
        self.executor.call(self._send_ended_steps, lambda failure: None)

    def concluded(self) -> "Future[Candidate]":
        """Decide by the measurements that ``conclude`` sent; return a future of the candidate for the next step."""
        candidate_future: Future[Candidate] = Future()
        self.executor.call(
            lambda: candidate_future.set_result(self._decide_by_ended_steps()),
            functools.partial(fail, candidate_future),
        )
        return candidate_future

    def _hand_over(self, segment: ReadyGroup | None, group: ReadyGroup | None, is_last: bool = False) -> None:
        """Queue a job that averages an exchange group: in segments if the step compresses, otherwise as a whole.

        Whether the step compresses is known only when the job runs.

        Args:
            segment: the group, or a segment of it; averaged if the step compresses. ``None``: no tensors.
            group: the whole group; averaged if the step is dense. ``None``: no tensors.
            is_last: whether to average all waiting groups now, since the step has no later group.
        """
        job_groups = [ready_group for ready_group in (segment, group) if ready_group is not None]

        def job() -> Any:
            compresses = self._plan.compresses
            job_groups[:] = self._waiting_groups.take(
                segment if compresses else group, at_once=is_last or not compresses
            )
            if not job_groups:
                return
            pieces = [piece for ready_group in job_groups for piece in ready_group.pieces]
            with named_failure(self.state, lambda: describe(pieces)):
                buffer = job_groups[0].buffer if len(job_groups) == 1 else None
                finite = functools.reduce(both_true, (ready_group.finite for ready_group in job_groups))
                yield from self.averager.average(pieces, self._plan, buffer, finite)
                if self._ranks_with_inputs.counted:
                    ratio_of_ranks = self.averager.world / self._ranks_with_inputs.number(self.executor)
                    for piece in pieces:
                        piece.flat.mul_(ratio_of_ranks)
            for ready_group in job_groups:
                ready_group.done()

        def fail_groups(failure: BaseException) -> None:
            for ready_group in (*job_groups, *self._waiting_groups.groups):
                ready_group.fail(failure)

        self.executor.exchange(job(), fail_groups, self.device, lambda: self._jobs_yield_once)

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
        return RankSums(self.executor, self._with_step(description), numbers)

    def run_between_steps(self, description: str, job: Returning[T]) -> JobResult[T]:
        """Start a job that is not part of a step; return a handle of its result.

        Called on every rank, between two steps.

        Args:
            description: description of what the job exchanges, for error messages.
            job: generator that yields collectives, the same on every rank; it may read tensors' values, for which
                the host waits.
        """
        return JobResult(self.executor, self._with_step(description), job, self.device)

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
        """The executor, which runs jobs and calls.

        Raises:
            RuntimeError: the engine was closed, or never opened.
        """
        if self._executor is None:
            raise RuntimeError("the compressor is closed; make a new AdaptiveCompressor")
        return self._executor

    @property
    def schedule(self) -> AgreementSchedule:
        """Schedule that says when the ranks agree on measurements; the engine must have an executor."""
        assert self._schedule is not None
        return self._schedule

    def mark(self) -> Mark | None:
        """Return the present moment, by the executor's clock or stream; ``None`` without an executor."""
        return None if self._executor is None else self._executor.mark()

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all calls and jobs have ended, for at most ``seconds``; return whether they have ended.

        ``None`` waits without limit. If jobs are left, or if the exchange failed, ``state`` is as the last call left
        it.
        """
        if self._executor is None or self._agreement is None:
            return True
        drained = self._executor.drain(seconds)
        if drained:
            self._agreement.read(self.state.step)
        return drained

    def close(self, failure: BaseException | None = None) -> None:
        """End the executor after all calls and jobs.

        Args:
            failure: exception with which unfinished calls and jobs fail; ``None``: they run to their end first.
        """
        if self._executor is not None and self._agreement is not None:
            executor, self._executor = self._executor, None
            if self._closing is not None:
                self._closing.detach()
            if failure is not None:
                executor.abandon(failure)
            executor.close()
            self._agreement.drop_in_flight()

    # run by the executor

    def _first_decision(self, forms: Sequence[Form]) -> Decision:
        """Select the candidates, and return the controller's first decision; ranks and model must be known."""
        self._model_elements = sum(torch.Size(shape).numel() for shape, _ in forms)
        self.averager.to_device(self.device)
        if any(dtype == torch.float16 for _, dtype in forms):
            self.averager.residuals.turn_on_overflow_safety()
        return self.deciding.decide_first(self.state, forms, self.averager.world)

    def _begin(self, inputs: StepInputs) -> Candidate:
        """Begin a step, called by the executor; return the candidate of the newest decision.

        The step runs this candidate only if the mode of the candidate is also the mode of the step.
        """
        state, executor, forms = self.state, self.executor, self.forms or inputs.forms
        if self.decision is None:
            self._first_decision(forms)
        state.covered = inputs.steps
        self.schedule.step_begins(state.step)
        self._ranks_with_inputs.start(executor, inputs.takes_part, self.device)
        self._rescale(inputs.loss_scale)
        assert self.decision is not None
        self._take_probe_request()
        decided_candidate = self.decision.candidate
        previous_candidate, previous_factors = state.candidate, state.factors
        decision = self._decision_of(inputs, self.decision, previous_candidate)
        candidate = state.candidate = decision.candidate
        state.factors = Factors.of(decision)
        if previous_candidate is not None and previous_factors != state.factors and not inputs.dense:
            self._last_change_step = state.step
        self._plan = self.averager.plan(
            state.step,
            state.factors.cf,
            decision.shadow,
            dense_cf=candidate.cf if candidate.dense else None,
            cfs=state.factors.cfs,
            sums=decision.sums,
        )
        self._jobs_yield_once = self.averager.one_round(self._plan)
        exchange_s = self.deciding.exchange_s(candidate) if self._jobs_yield_once else 0.0
        self._waiting_groups.set_limits(
            self.averager.coding_bytes_per_element(self._plan),
            self._model_elements,
            exchange_s,
            self.device.type == "cpu",
        )
        loss_scale = 1.0 if state.loss_scale is None or inputs.mode != "hook" else state.loss_scale
        self._measurement = StepRecording(
            step=state.step,
            candidate=candidate,
            first=state.trained,
            steps=inputs.steps,
            shadow=self._plan.shadow_cfs,
            learning_rate=inputs.learning_rate,
            loss_scale=loss_scale,
            previous=self._last_measurement,
        )
        self.averager.measure(self._measurement, executor)
        self._measurement.open(executor)
        return decided_candidate

    def _take_probe_request(self) -> None:
        """Set ``probe_follows`` to whether a decision requested the loss on fixed batches, and clear the request."""
        self.probe_follows, self.deciding.probe_requested = self.deciding.probe_requested, False

    def _decision_of(self, inputs: StepInputs, decision: Decision, previous_candidate: Candidate | None) -> Decision:
        """Return the decision that a step runs: the first of three decisions whose candidate has the step's mode.

        1. The newest decision.
        2. A decision for the candidate of the previous step.
        3. A decision for the dense candidate of the step's mode; always taken if ``inputs.dense`` is True.

        Args:
            inputs: facts of the step, such as its mode.
            decision: the newest decision.
            previous_candidate: candidate of the previous step; ``None`` before the first step.
        """
        steps_per_exchange = inputs.steps if inputs.mode == "outer" else 1
        decided_candidate = decision.candidate
        if decided_candidate.mode == inputs.mode and not inputs.dense:
            return (
                decision
                if decided_candidate.every == steps_per_exchange
                else replace(decision, candidate=replace(decided_candidate, every=steps_per_exchange))
            )
        if previous_candidate is not None and previous_candidate.mode == inputs.mode and not inputs.dense:
            return Decision(replace(previous_candidate, every=steps_per_exchange))
        dense_candidate = Candidate(inputs.mode, DENSE, self.averager.dense.cf, steps_per_exchange)
        return Decision(named(dense_candidate, self.deciding.forecasts))

    def _rescale(self, loss_scale: Number | None) -> None:
        """Store the loss scale; if it changed, multiply residuals and sums of gradients by new scale / old scale."""
        previous_scale = self.state.loss_scale
        if isinstance(loss_scale, torch.Tensor):
            loss_scale = loss_scale.detach().clone()  # a scaler changes its tensor in place
        elif loss_scale is None or loss_scale == previous_scale:
            return
        if previous_scale is not None:
            self.averager.rescale(loss_scale / previous_scale)
        self.state.loss_scale = loss_scale

    def _end(self, add_times: AddTimes, loss: Number, probe: Number, forward_s: float) -> None:
        """End a step, called by the executor: store new residuals, complete the measurement, let the ranks agree on it.

        Args:
            add_times: function that gets the step's measurement, and adds times that the engine's caller knows, such as
                the end of backward.
            loss: mean of the training losses since the last step; nan if there are none.
            probe: mean of the losses on fixed batches since the last step; nan if there are none.
            forward_s: seconds of the last forward; nan if it was not timed.
        """
        state, measurement = self.state, self._measurement
        assert measurement is not None
        measurement.loss, measurement.probe, measurement.forward_s = loss, probe, forward_s
        add_times(measurement)
        with named_failure(state, lambda: "whether all gradients were finite"):
            self.averager.commit(self.executor.everywhere)
        if measurement.candidate.mode == "native":
            measurement.elements = self._model_elements
        measurement.close(self.executor)
        self._last_measurement = None if measurement.candidate.mode == "native" else measurement
        state.totals.add(measurement)
        measurement.emptied = tuple(self.averager.residuals.emptied)
        self.averager.residuals.emptied.clear()
        state.pending.append(measurement)
        self.schedule.step_ends(state.step)
        state.step += 1
        state.trained += measurement.steps
        state.covered = 1

    def _send_ended_steps(self) -> None:
        """Start to sum the measurements of all ended steps over the ranks; called by the executor."""
        assert self._agreement is not None
        if not self.schedule.host_looks:
            self.executor.wait_for_previous_step()
        self._agreement.read(self.state.step)
        self._agreement.send(self.state.step)

    def _decide_by_ended_steps(self) -> Candidate:
        """Let the controller decide by all steps that have ended; return the candidate of the next step."""
        assert self._agreement is not None
        assert self.decision is not None
        self._agreement.observe(self.state.step)
        self._take_probe_request()
        return self.decision.candidate

    def _observe(self, local: StepRecording, sums_over_ranks: list[list[float]]) -> None:
        """Let the controller decide by a step's measurement that the ranks agreed on.

        Also drop residuals that are zero, because the step sent them whole and all gradients were finite.

        Args:
            local: this rank's measurement of the step.
            sums_over_ranks: sums of the measurement's vectors over the ranks.
        """
        world = self.executor.agree_world
        assert local.own is not None
        agreed_step = agreed(local.own, sums_over_ranks, world, self.deciding.samples(world))
        if local.emptied and math.isfinite(agreed_step.error) and local.step >= self._last_change_step:
            self.averager.residuals.drop(local.emptied)
        self.deciding.observe(self.state, agreed_step, local)
