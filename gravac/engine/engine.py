# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs steps: averages gradients as decided, measures, agrees with the other ranks on the measurement, and decides.

A source of gradients (DDP's communication hook, a loop over ``named_parameters()``, outer steps) calls the engine. It
gives the parameters by name, and says when a step begins, which gradients are ready, and when the step has ended. All
ranks make the same calls in the same order, with the same names and shapes.

The engine uses no threads, clocks or process groups. ``begin``, ``submit`` and ``end`` submit jobs to an executor. A
job is a generator that yields collectives. The executor runs jobs in the order in which it gets them, which is the same
on all ranks. The engine therefore needs no lock.

A step consists of these jobs, in this order:

1. ``_begin``, alone: observe earlier steps, and make a plan from the newest decision.
2. ``Agreement.exchange_due``: sum the numbers of an earlier step over the ranks.
3. ``_average``, for each group of tensors: average the tensors by the plan.
4. ``_end``, alone: store the new residuals, measure, and decide by the measurement that the ranks agreed on
   (``gravac.engine.agreement``).

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
from dataclasses import replace
from typing import Any, TypeVar

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Piece, ShardPlace
from gravac.averaging.recording import StepRecording
from gravac.averaging.tensors import flat, memory_shape, refuse_complex
from gravac.candidate import DENSE, Candidate, Mode, named
from gravac.collectives import AllReduce, Ledger
from gravac.controllers.base import Decision
from gravac.engine.agreement import Agreement, named_failure
from gravac.engine.coalescing import ReadyGroup, Waiting, cut, describe, finite_of
from gravac.engine.decisions import Deciding
from gravac.engine.factors import Factors
from gravac.engine.handle import Averaged, Handle, JobResult, RankSums
from gravac.engine.inputs import NO_INPUTS, StepInputs
from gravac.engine.losses import Losses
from gravac.engine.run_state import RunState
from gravac.exchange.comparing import texts_of_tensors
from gravac.exchange.executor import Executor, Job, Mark, Round, everywhere, fail, job_of, sums_over_all
from gravac.exchange.failures import ExchangeError
from gravac.exchange.reading import Finite, Number
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
        self._call_guarded = GuardedCaller()
        self._waiting_groups = Waiting()
        self._model_elements = 0
        self._plan = averager.plan(0, None)
        self._last_recording: StepRecording | None = None  # of the last step that ended
        self._counts_ranks = False  # whether this step counts the ranks that still have inputs
        self._ratio_of_ranks = torch.ones((), dtype=torch.float64, device="cpu")  # all ranks / ranks that have inputs
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
        return self.executor.submit(self._prepare(compute_s), alone=True)

    def decide_first(self) -> "Future[Candidate]":
        """Make the first decision, unless one was made already. Called on every rank, between two steps.

        Returns:
            A future of the candidate of the newest decision.
        """
        self.open()
        return self.executor.submit(
            job_of(lambda: (self.decision or self._first_decision(self.forms)).candidate), alone=True
        )

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
            self._last_recording = None

        self.executor.submit(job_of(change), alone=True)

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
        candidate = self.executor.submit(self._begin(inputs), alone=True)
        self.executor.submit(self.agreement.exchange_due())
        if inputs.takes_part is not None:
            self.executor.submit(self._count_ranks(inputs.takes_part))
        return candidate

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
            group.averaged.add_done_callback(lambda averaged: self._call_guarded(then, averaged))
        *segments, final_segment = cut(group)
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
        """
        self.flush()
        loss, probe = self.losses.take_mean(), self.probes.take_mean()
        forward_s, self.forward_s = self.forward_s, math.nan
        self.executor.submit(self._end(add_times, loss, probe, forward_s), alone=True)

    def conclude(self) -> None:
        """Start to agree with the other ranks on all steps that have ended, without waiting for later steps.

        Called on every rank between ``end`` and ``begin``; ``concluded`` must be called before the next ``begin``.
        """
        self.executor.submit(self.agreement.exchange_ended(), alone=True)

    def concluded(self) -> "Future[Candidate]":
        """Decide by the measurements that ``conclude`` sent; return a future of the candidate for the next step."""
        return self.executor.submit(job_of(self._decide_by_ended_steps), alone=True)

    def _submit_group(self, group: ReadyGroup | None, is_last: bool = False) -> None:
        """Submit a job that averages an exchange group, or a segment of one.

        Args:
            group: the group, or a segment of it; ``None``: no tensors.
            is_last: whether to average all waiting groups now, since the step has no later group.
        """
        taken_groups = [] if group is None else [group]

        def fail_groups(averaged: "Future[None]") -> None:
            if (failure := averaged.exception()) is not None:
                for ready_group in (*taken_groups, *self._waiting_groups.groups):
                    fail(ready_group.averaged, failure)

        self.executor.submit(self._average(taken_groups, is_last), timed=True).add_done_callback(fail_groups)

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
        return RankSums(self.executor.submit(self._between_steps(description, job)))

    def run_between_steps(self, description: str, job: Job[T]) -> JobResult[T]:
        """Start a job that is not part of a step; return a handle of its result.

        Called on every rank, between two steps.

        Args:
            description: description of what the job exchanges, for error messages.
            job: generator that yields collectives, the same on every rank; it may read tensors' values, for which
                the host waits.
        """
        future = self.executor.submit(self._between_steps(description, job), timed=True)
        return JobResult(self.executor, description, future)

    def _between_steps(self, description: str, job: Job[T]) -> Job[T]:
        """Run a job between two steps, and name in its errors what it exchanges, and the next training step."""
        next_step = self.state.trained + self.state.native.made
        try:
            return (yield from job)
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: step {next_step}, {description}: {failure}") from failure.__cause__

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
    def agreement(self) -> Agreement:
        """Object that lets the ranks agree on measurements; the engine must have an executor."""
        assert self._agreement is not None
        return self._agreement

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
            self._agreement.forget_sums()

    # run by the executor

    def _first_decision(self, forms: Sequence[Form]) -> Decision:
        """Select the candidates, and return the controller's first decision; ranks and model must be known."""
        self._model_elements = sum(torch.Size(shape).numel() for shape, _ in forms)
        self.averager.to_device(self.device)
        if any(dtype == torch.float16 for _, dtype in forms):
            self.averager.residuals.turn_on_overflow_safety()
        return self.deciding.decide_first(self.state, forms, self.averager.world)

    def _prepare(self, compute_s: float) -> Job[Candidate]:
        """Make the first decision by the mean over the ranks of a step's seconds without exchange."""
        with named_failure(self.state, lambda: "the compute time of a step"):
            (total,) = yield from sums_over_all(self.executor, [[compute_s]])
            self.state.compute_s = total.read()[0] / self.executor.agree_world
        return self._first_decision(self.forms).candidate

    def _begin(self, inputs: StepInputs) -> Job[Candidate]:
        """Begin a step; return the candidate of the newest decision.

        The step runs this candidate only if the mode of the candidate is also the mode of the step.
        """
        state, executor, forms = self.state, self.executor, self.forms or inputs.forms
        if self.decision is None:
            self._first_decision(forms)
        state.covered = inputs.steps
        yield from self.agreement.catch_up()
        self._counts_ranks = inputs.takes_part is not None
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
        exchange_s = self.deciding.exchange_s(candidate) if self.averager.one_round(self._plan) else 0.0
        self._waiting_groups.set_limits(
            self.averager.coding_bytes_per_element(self._plan),
            self._model_elements,
            exchange_s,
            self.device.type == "cpu",
        )
        loss_scale = 1.0 if state.loss_scale is None or inputs.mode != "hook" else state.loss_scale
        recording = StepRecording(
            step=state.step,
            candidate=candidate,
            first=state.trained,
            steps=inputs.steps,
            shadow=self._plan.shadow_cfs,
            learning_rate=inputs.learning_rate,
            loss_scale=loss_scale,
            previous=self._last_recording,
        )
        self.averager.measure(recording, executor)
        recording.open(executor)
        return decided_candidate

    def _count_ranks(self, takes_part: bool) -> Job[None]:
        """Count the ranks that still have batches to train on, as in DDP's ``join()``.

        Args:
            takes_part: whether this rank still has batches.
        """
        flag = torch.full((1,), float(takes_part), dtype=torch.float64, device=self.device)
        with named_failure(self.state, lambda: "the number of ranks with inputs left"):
            (rank_count,) = yield Round([AllReduce(flag)], last=True)
        self._ratio_of_ranks = self.executor.world / rank_count[0]

    def _average(self, taken_groups: list[ReadyGroup], is_last: bool) -> Job[None]:
        """Average a group of tensors: in segments if the step compresses, otherwise as a whole.

        A group may wait for later groups. Whether the step compresses is known only when the job runs.

        Args:
            taken_groups: the group, or a segment of it; empty: no tensors. Replaced by the groups that the job takes.
            is_last: whether to average all waiting groups now.
        """
        compresses = self._plan.compresses
        group = taken_groups[0] if taken_groups else None
        taken_groups[:] = self._waiting_groups.take(
            group if compresses or group is None else group.whole, at_once=is_last or not compresses
        )
        if not taken_groups:
            return
        pieces = [piece for ready_group in taken_groups for piece in ready_group.pieces]
        with named_failure(self.state, lambda: describe(pieces)):
            buffer = taken_groups[0].buffer if len(taken_groups) == 1 else None
            finite = yield from self.averager.average(pieces, self._plan, buffer, finite_of(taken_groups))
            if self._counts_ranks:
                self.executor.join()
                for piece in pieces:
                    piece.flat.mul_(self._ratio_of_ranks)
        for ready_group in taken_groups:
            ready_group.add_mean(finite, self.executor)

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

    def _end(self, add_times: AddTimes, loss: Number, probe: Number, forward_s: float) -> Job[None]:
        """End a step: store new residuals, complete the measurement, decide by what the ranks have agreed on.

        Args:
            add_times: function that gets the step's measurement, and adds times that the engine's caller knows, such as
                the end of backward.
            loss: mean of the training losses since the last step; nan if there are none.
            probe: mean of the losses on fixed batches since the last step; nan if there are none.
            forward_s: seconds of the last forward; nan if it was not timed.
        """
        state, recording = self.state, self.averager.recording
        recording.loss, recording.probe, recording.forward_s = loss, probe, forward_s
        add_times(recording)
        finite: Finite = None
        if self.averager.residuals.wait_for_step:
            with named_failure(state, lambda: "whether all gradients were finite"):
                finite = yield from everywhere(self.executor, recording.finite)
        self.averager.commit(finite)
        if recording.candidate.mode == "native":
            recording.elements = self._model_elements
        recording.close(self.executor)
        self._last_recording = None if recording.candidate.mode == "native" else recording
        state.totals.add(recording)
        recording.emptied = tuple(self.averager.residuals.emptied)
        self.averager.residuals.emptied.clear()
        state.pending.append(recording)
        self.agreement.observe_due()
        state.step += 1
        state.trained += recording.steps
        state.covered = 1

    def _decide_by_ended_steps(self) -> Candidate:
        """Let the controller decide by all steps that have ended; return the candidate of the next step."""
        assert self.decision is not None
        self.agreement.observe(self.state.step)
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
