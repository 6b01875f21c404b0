# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The life of a step: take gradients in, average them as decided, measure, agree with the other ranks, decide.

A source (DDP's communication hook, a loop over ``named_parameters()``, outer steps) says: these parameters, by name; a
step begins; these gradients are ready; the step ended. All ranks make the same calls in the same order, with the same
names and shapes.

The engine knows no threads, clocks or process groups. ``begin``, ``exchange`` and ``end`` hand calls and jobs to an
executor, which runs them in that order, the same on all ranks, so that nothing needs a lock:

1. ``_begin``: the last step's numbers leave, the decision in force becomes a plan, residuals are set aside if CFs fell.
2. A job for each group: average the tensors by the plan.
3. ``_end``: commit residuals, measure, and decide by what the ranks agreed on (``gravac.engine.agreement``).

What step t showed leaves in step t + latency - 1; the decision by it holds from step t + latency on, or at once if the
ranks ``conclude``. One such step stands for one training step, or for several: a round of outer steps, or a stretch of
native steps, in which torch exchanges and gravac only takes times.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Piece
from gravac.averaging.tensors import flat, memory_shape, refuse_complex
from gravac.candidate import DENSE, Candidate, Mode
from gravac.collectives import Ledger
from gravac.controllers.base import Decision
from gravac.engine.agreement import (
    Agreement,
    AgreementSchedule,
    agreed_measurement,
    all_released,
    named_failure,
    schedule_of,
)
from gravac.engine.coalescing import ReadyGroup, Waiting, cut, exchanged
from gravac.engine.deciding import Deciding
from gravac.engine.factors import Factors
from gravac.engine.handle import Handle, JobResult, RankSums, Then, fail
from gravac.engine.inputs import NO_INPUTS, RanksWithInputs, StepInputs
from gravac.engine.losses import Losses
from gravac.engine.run_state import RunState
from gravac.exchange.alike import described
from gravac.exchange.executor import Executor, Mark, Number, Returning, Verdict, both
from gravac.guarded import Guarded
from gravac.measurement import LocalMeasurement

T = TypeVar("T")

Fill = Callable[[LocalMeasurement], None]
"""Adds to a step's numbers those that only the source knows: moments, verdicts, how far ranks moved apart."""


class Engine:
    """Runs a model's steps on one rank.

    Args:
        averager: averages tensors over the ranks.
        deciding: asks the controller.
        open_executor: called before the first step if ``use`` was not: calls ``use``.

    Attributes:
        state: what the steps so far leave behind.
        device: where the gradients lie.
        shapes: shapes of the parameters, by name, in memory order.
        forms: shapes and dtypes of their gradients, in the model's order; empty if ``know`` was given no parameters.
        described: the parameters in words, in the model's order, to be compared over the ranks.
        losses: training losses reported on this rank since the last step ended.
        probes: losses on this rank's fixed batches, read since the last step ended.
        probe_follows: whether the ranks read the loss on fixed batches before the next step. It changes when a step
            begins, and when the ranks conclude.

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
        self.described: dict[str, str] = {}
        self._open = open_executor
        self._executor: Executor | None = None
        self._agreement: Agreement | None = None
        self._schedule: AgreementSchedule | None = None
        self._guarded = Guarded()
        self._waiting = Waiting()
        self._elements = 0
        self._plan = averager.plan(0, None)
        self._one_round = False
        self._measurement: LocalMeasurement | None = None
        self._ended: LocalMeasurement | None = None  # of the last step that was not only begun
        self._with_inputs = RanksWithInputs(self.state)
        self.losses, self.probes = Losses(), Losses()
        self.probe_follows = False
        self._released_from = 0

    # before the first step

    def know(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Learn the parameters whose gradients will be handed over, by name, in the model's order.

        Raises:
            TypeError: a parameter is complex.
        """
        refuse_complex(parameters)
        self.described = described(parameters)
        self.shapes = {name: memory_shape(parameter) for name, parameter in parameters.items()}
        self.forms = [(self.shapes[name], parameter.dtype) for name, parameter in parameters.items()]
        self.device = next((parameter.device for parameter in parameters.values()), self.device)

    @property
    def form_by_name(self) -> dict[str, Form]:
        """Shapes and dtypes of the gradients, by name; empty if ``know`` was given no parameters."""
        return dict(zip(self.shapes, self.forms, strict=True))

    def open(self) -> None:
        """Have an executor made, if there is none. Called on every rank; ``begin`` calls it.

        Raises:
            SettingsError: a setting differs between ranks; the message names it, its values, and whose they are.
        """
        if not self.ready_to_run:
            self._open()

    def use(self, executor: Executor, timed: Iterable[float] = ()) -> None:
        """Run the steps to come by an executor.

        Args:
            executor: runs them.
            timed: CFs of the candidates whose coding was timed, see ``RunRecord``.
        """
        self.averager.rank, self.averager.world = executor.rank, executor.world
        self.state.rank, self.state.world = executor.rank, executor.world
        self.deciding.open(executor.latency, timed)
        self._executor = executor
        self._agreement = Agreement(executor, self.state, self._observe)
        self._schedule = schedule_of(self._agreement)

    def restore(self, plain: Mapping[str, Any], controller_state: dict[str, Any] | None) -> None:
        """Restore a dumped state, and a dumped state of the controller at the next ``begin``."""
        self.state.restore(plain)
        self.averager.load(plain)
        self.deciding.restore(self.state, controller_state)

    def prepare(self, seconds: float) -> "Future[Candidate]":
        """Make the first decision by what a step takes without exchange. Called on every rank, before ``begin``.

        Args:
            seconds: seconds of such a step on this rank; the ranks go by their mean.

        Returns:
            A future of the candidate.
        """
        decided: Future[Candidate] = Future()
        in_flight: list[Any] = []
        executor = self.executor
        executor.call(lambda: in_flight.append(executor.agree([[seconds]])), functools.partial(fail, decided))
        executor.drain()

        def decide() -> None:
            with named_failure(self.state, lambda: "what a step's compute takes"):
                ((total,),) = executor.agreed(in_flight[0])
            self.state.compute_s = total / executor.agree_world
            decided.set_result(self._first_decision(self.forms).candidate)

        executor.call(decide, functools.partial(fail, decided))
        return decided

    def decide_first(self) -> "Future[Candidate]":
        """Make the first decision, if none was made; return a future of the candidate in force.

        Called on every rank, between two steps.
        """
        self.open()
        decided: Future[Candidate] = Future()

        def decide() -> None:
            decision = self.decision or self._first_decision(self.forms)
            decided.set_result(decision.candidate)

        self.executor.call(decide, functools.partial(fail, decided))
        return decided

    def residuals(self) -> dict[str, torch.Tensor]:
        """Return copies of what was not sent, flat, by name, in the gradients' units; nothing is under way."""
        feedback, scale = self.averager.feedback, self.state.loss_scale or 1.0
        names = [*feedback.residual, *(name for name in feedback.held if name not in feedback.residual)]
        parts = {name: [part[name] for part in (feedback.residual, feedback.held) if name in part] for name in names}
        return {name: torch.stack([part.float() for part in those]).sum(0) / scale for name, those in parts.items()}

    def change_mode(self, mode: Mode) -> None:
        """Steps of another mode follow: drop all that is fed back, which is in the units of the mode before.

        Called between two steps, on every rank. In rounds each group of tensors is refused by itself if its mean is not
        finite.
        """

        def change() -> None:
            self.averager.forget()
            self.averager.feedback.refuse_by_group(mode == "outer")
            self.state.factors = Factors()
            self._ended = None

        self.executor.call(change, lambda failure: None)

    # a step

    def begin(self, inputs: StepInputs = NO_INPUTS) -> "Future[Candidate]":
        """A step begins: its first gradients are about to be ready.

        Args:
            inputs: what the source knows.

        Returns:
            A future of the candidate that was decided; it fails if an earlier step did. If that is of another mode than
            the step, the ranks are to change to it when this step has ended.
        """
        self.open()
        runs: Future[Candidate] = Future()
        tell_failure = functools.partial(fail, runs)
        if not self.schedule.looks:
            self.executor.call(lambda: self.schedule.step_follows(self.state.step), tell_failure)
        self.executor.call(lambda: runs.set_result(self._begin(inputs)), tell_failure)
        return runs

    def ready(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Handle:
        """Average tensors over the ranks, in place, together.

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
        last: bool = False,
        then: Then = lambda failure: None,
        known: Verdict = True,
    ) -> Handle:
        """Average flat pieces over the ranks, in place, perhaps together with those that follow.

        Args:
            pieces: flat gradients, each with the shape of its parameter.
            buffer: the flat tensor that they cover without gaps, in order, if there is one; it spares a copy.
            last: whether these are the last pieces of this step.
            then: called when they hold their mean, on the stream that made it, which no other has to wait for.
            known: whether all of them are finite on this rank, as far as the source knows. If not, compressed pieces
                are NaN afterwards on every rank, and no residual changes.
        """
        handle = Handle(self, self._guarded)
        handle.then(then)
        group = ReadyGroup(tuple(pieces), buffer, handle.ends, handle.ends, known)
        *parts, end = cut(group, self.executor.join)
        for part in parts:
            self._hand_over(part, None)
        self._hand_over(end, group, last)
        return handle

    def flush(self) -> None:
        """Average what was handed over so far without waiting for more; called alike on all ranks."""
        self._hand_over(None, None, last=True)

    def end(self, fill: Fill = lambda measurement: None) -> None:
        """The step's gradients were all handed over.

        Args:
            fill: called by the executor, once the tensors hold their means.
        """
        self.flush()
        loss, probe = self.losses.take_mean(), self.probes.take_mean()
        self.executor.call(lambda: self._end(fill, loss, probe), lambda failure: None)

    def conclude(self) -> None:
        """Have the ranks start to agree on all steps that have ended.

        Called on every rank between ``end`` and ``begin``; ``concluded`` follows before the next ``begin``.
        """
        self.executor.call(self._conclude, lambda failure: None)

    def concluded(self) -> "Future[Candidate]":
        """Decide by all steps that have ended; return a future of the candidate that the next step is to run."""
        decided: Future[Candidate] = Future()
        self.executor.call(lambda: decided.set_result(self._concluded()), functools.partial(fail, decided))
        return decided

    def _hand_over(self, part: ReadyGroup | None, group: ReadyGroup | None, last: bool = False) -> None:
        """Queue ``part`` if the step compresses, otherwise ``group``, which is never cut."""
        taken = [ready for ready in (part, group) if ready is not None]

        def job() -> Any:
            compresses = self._plan.compresses
            taken[:] = self._waiting.take(part if compresses else group, at_once=last or not compresses)
            if not taken:
                return
            pieces = [piece for ready in taken for piece in ready.pieces]
            with named_failure(self.state, lambda: exchanged(pieces)):
                buffer = taken[0].buffer if len(taken) == 1 else None
                known = functools.reduce(both, (ready.known for ready in taken))
                yield from self.averager.average(pieces, self._plan, buffer, known)
            if self._with_inputs.counted:
                factor = self.averager.world / self._with_inputs.number(self.executor)
                for piece in pieces:
                    piece.flat.mul_(factor)
            for ready in taken:
                ready.done()

        def failed(failure: BaseException) -> None:
            for ready in (*taken, *self._waiting.groups):
                ready.fail(failure)

        self.executor.exchange(job(), failed, self.device, lambda: self._one_round)

    # what the steps came to

    @property
    def decision(self) -> Decision | None:
        """The decision in force; ``None`` before the first step."""
        return self.deciding.decision

    @property
    def candidate(self) -> Candidate | None:
        """The candidate decided last, as known without waiting; ``None`` before the first step."""
        return None if self.decision is None else self.decision.candidate

    @property
    def settled_candidate(self) -> Candidate:
        """The candidate decided last, by all steps that have ended; waits for their exchange."""
        self.drain()
        assert self.decision is not None
        return self.decision.candidate

    @property
    def settled(self) -> RunState:
        """The state after all steps that have ended; waits for their exchange."""
        self.drain()
        return self.state

    @property
    def ledger(self) -> Ledger:
        """What was handed to collectives since ``use``."""
        return self._executor.ledger if self._executor else Ledger()

    def sum_over_ranks(self, what: str, numbers: Sequence[float]) -> RankSums:
        """Start to sum this rank's numbers over the ranks. Called on every rank, between ``end`` and ``begin``.

        Args:
            what: what they are, for errors.
            numbers: this rank's, as many on every rank.
        """
        return RankSums(self.executor, what, numbers)

    def run_between_steps(self, what: str, job: Returning[T]) -> JobResult[T]:
        """Run a job of its own collectives. Called on every rank, between ``end`` and ``begin``.

        Args:
            what: what the job exchanges, for errors.
            job: asks for the same collectives on every rank; it may look at data.
        """
        return JobResult(self.executor, what, job, self.device)

    # the executor

    @property
    def ready_to_run(self) -> bool:
        """Whether an executor was given."""
        return self._executor is not None

    @property
    def executor(self) -> Executor:
        """What runs the steps.

        Raises:
            RuntimeError: it was closed, or never opened.
        """
        if self._executor is None:
            raise RuntimeError("the compressor is closed: make a new one")
        return self._executor

    @property
    def schedule(self) -> AgreementSchedule:
        """When the ranks agree on a step's measurement; known once an executor was given."""
        assert self._schedule is not None
        return self._schedule

    def mark(self) -> Mark | None:
        """Return the present moment; ``None`` if nothing runs the steps yet."""
        return None if self._executor is None else self._executor.mark()

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all that was handed over is done, for at most ``seconds``; return whether it is.

        If not, or if the exchange failed, what the steps so far leave behind is as it was last known.
        """
        if self._executor is None or self._agreement is None:
            return True
        drained = self._executor.drain(seconds)
        if drained:
            self._agreement.read(self.state.step)
        return drained

    def close(self, failure: BaseException | None = None) -> None:
        """End the executor after what was handed over, or make that fail with an exception."""
        if self._executor is not None and self._agreement is not None:
            executor, self._executor = self._executor, None
            if failure is not None:
                executor.abandon(failure)
            executor.close()
            self._agreement.let_go()

    # run by the executor

    def _first_decision(self, forms: Sequence[Form]) -> Decision:
        """Admit candidates and decide, now that the ranks and the model are known."""
        self._elements = sum(torch.Size(shape).numel() for shape, _ in forms)
        self.averager.place(self.device)
        if any(dtype == torch.float16 for _, dtype in forms):
            self.averager.feedback.guard()
        return self.deciding.decide_first(self.state, forms, self.averager.world)

    def _begin(self, inputs: StepInputs) -> Candidate:
        """Begin a step; return the candidate that it runs."""
        state, executor, forms = self.state, self.executor, self.forms or inputs.forms
        if self.decision is None:
            self._first_decision(forms)
        self.schedule.step_begins(state.step)
        self._with_inputs.start(executor, inputs.takes_part, self.device)
        self._rescale(inputs.loss_scale)
        assert self.decision is not None
        self._look_for_probe()
        chosen = self.decision.candidate
        previous, before = state.candidate, state.factors
        decision = self._decision_of(inputs, self.decision, previous)
        runs = state.candidate = decision.candidate
        state.factors = Factors.of(decision)
        if previous is not None and before != state.factors and not inputs.dense:
            self.averager.feedback.hold(lambda name: state.factors.fell(before, name))
            self._released_from = state.step
        self._plan = self.averager.plan(
            state.step,
            state.factors.cf,
            decision.shadow,
            dense_cf=runs.cf if runs.dense else None,
            cfs=state.factors.cfs,
            sums=decision.sums,
        )
        self._one_round = self.averager.one_round(self._plan)
        link_s = self.deciding.exchange_s(runs) if self._one_round else 0.0
        self._waiting.set_limits(
            self.averager.coding_bytes(self._plan), self._elements, link_s, self.device.type == "cpu"
        )
        scale = 1.0 if state.loss_scale is None or inputs.mode != "hook" else state.loss_scale
        self._measurement = LocalMeasurement(
            step=state.step,
            candidate=runs,
            first=state.trained,
            steps=inputs.steps,
            shadow=self._plan.shadow,
            learning_rate=inputs.learning_rate,
            loss_scale=scale,
            previous=self._ended,
        )
        self.averager.measure(self._measurement, executor)
        self._measurement.open(executor)
        return chosen

    def _look_for_probe(self) -> None:
        """Take over whether a decision asked for a reading of the probe."""
        self.probe_follows, self.deciding.probe_asked = self.deciding.probe_asked, False

    def _decision_of(self, inputs: StepInputs, decision: Decision, previous: Candidate | None) -> Decision:
        """Return what a step runs: what was decided, if that is of the step's mode."""
        every = inputs.steps if inputs.mode == "outer" else 1
        decided = decision.candidate
        if decided.mode == inputs.mode and not inputs.dense:
            return decision if decided.every == every else replace(decision, candidate=replace(decided, every=every))
        if previous is not None and previous.mode == inputs.mode and not inputs.dense:
            return Decision(replace(previous, every=every))
        return Decision(Candidate(inputs.mode, DENSE, self.averager.dense.cf, every))

    def _rescale(self, loss_scale: Number | None) -> None:
        """Multiply residuals and sums by the change of the loss scale."""
        before = self.state.loss_scale
        if isinstance(loss_scale, torch.Tensor):
            loss_scale = loss_scale.detach().clone()  # a scaler changes its own in place
        elif loss_scale is None or loss_scale == before:
            return
        if before is not None:
            self.averager.rescale(loss_scale / before)
        self.state.loss_scale = loss_scale

    def _end(self, fill: Fill, loss: Number, probe: Number) -> None:
        """End a step: commit what it changed, and measure."""
        state, measurement = self.state, self._measurement
        assert measurement is not None
        measurement.loss, measurement.probe = loss, probe
        fill(measurement)
        self.averager.commit()
        if measurement.candidate.mode == "native":
            measurement.elements = self._elements
        measurement.close(self.executor)
        self._ended = None if measurement.candidate.mode == "native" else measurement
        state.totals.add(measurement)
        if not self.schedule.looks:
            measurement.unreleased = self.averager.feedback.leftover(self._plan.sends_whole)
        state.pending.append(measurement)
        self.schedule.step_ends(state.step)
        state.step += 1
        state.trained += measurement.steps

    def _conclude(self) -> None:
        """Start to agree on all steps that have ended."""
        assert self._agreement is not None
        if not self.schedule.looks:
            self.executor.catch_up()
        self._agreement.read(self.state.step)
        self._agreement.send(self.state.step)

    def _concluded(self) -> Candidate:
        """Decide by all steps that have ended."""
        assert self._agreement is not None
        assert self.decision is not None
        self._agreement.observe(self.state.step)
        self._look_for_probe()
        return self.decision.candidate

    def _observe(self, local: LocalMeasurement, sums: list[list[float]]) -> None:
        """The ranks agree on a step: drop residuals that are zero on all ranks, and decide."""
        world = self.executor.agree_world
        measured = agreed_measurement(local, sums, world, self.deciding.samples(world))
        if local.unreleased and all_released(local, sums) and local.step >= self._released_from:
            self.averager.feedback.drop(local.unreleased, self._plan.sends_whole)
        self.deciding.observe(self.state, measured, local)
