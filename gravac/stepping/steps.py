# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The life of a step: agree on an earlier one, run what was decided, keep what was not sent, decide.

Nothing here knows threads, clocks or process groups: ``begin``, ``exchange`` for every group and ``end`` hand calls and
jobs to an executor, which runs them in that order, the same on all ranks, so that nothing needs a lock. What step t
showed travels in step t + latency - 1, and the decision that it leads to holds from step t + latency on. Where a host
runs the exchange the latency is 2, and it is waited for at that step's end; where the host must not wait it is 3, and
looked at in the next step's beginning.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.controllers.base import Decision
from gravac.exchange.executor import Executor, Fail, Number, Verdict, both
from gravac.exchange.group import ExchangeError
from gravac.stepping.clock import StepClock, Timestamps
from gravac.stepping.coalescing import ReadyGroup, Waiting, cut, exchanged
from gravac.stepping.deciding import Deciding
from gravac.stepping.measuring import Measured, Measurements
from gravac.stepping.planning import Planner
from gravac.stepping.state import StepState, Unobserved
from gravac.stepping.taking_part import TakingPart

AGREEMENT = "the ranks' agreement on an earlier step"
TAKING_PART = "the number of ranks with inputs left"


class Steps:
    """Runs steps for one model on one rank.

    Args:
        averager: what averages tensors over the ranks.
        deciding: asks the controller.
        levels: CFs that a single tensor may get, beside the candidates', when what a CF would send is spent over the
            tensors by their curves; none leaves all tensors at the CF decided.
        survey_every: steps between two surveys of the curves.

    Attributes:
        state: what the steps so far leave behind.
        device: where the gradients lie.
        compute_s: seconds that a step takes without exchange, mean over ranks; ``None``: nobody was told.
    """

    def __init__(
        self,
        averager: Averager,
        deciding: Deciding,
        levels: Sequence[float] = (),
        survey_every: int = 1,
    ) -> None:
        self.averager = averager
        self.state = StepState()
        self._deciding = deciding
        self._planner = Planner(averager, levels, survey_every)
        self._executor: Executor | None = None
        self._measurements = Measurements(self._planner.wire_bytes)
        self._taking_part = TakingPart()
        self._learning_rate = math.nan
        self._held_at = 0
        self._plan = averager.plan(0, None)
        self._clock = StepClock()
        self.device = torch.device("cpu")
        self.compute_s: float | None = None
        self._waiting = Waiting()
        self._elements, self._one_round = 0, False

    # handing over

    @property
    def decision(self) -> Decision | None:
        """The decision in force; ``None`` before the first step."""
        return self._deciding.decision

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates admitted; none before the first step."""
        return self._deciding.candidates

    @property
    def restored(self) -> dict[str, Any] | None:
        """The controller's dumped state, to be restored when the first step begins; ``None``: there is none."""
        return self._deciding.restored

    @property
    def ready(self) -> bool:
        """Whether an executor was given."""
        return self._executor is not None

    @property
    def ledger(self) -> Ledger:
        """What counts everything handed to collectives since ``open``."""
        return self._executor.ledger if self._executor else Ledger()

    def open(self, executor: Executor, timed: Iterable[float] = ()) -> None:
        """Have an executor run the steps to come; of ``timed`` tells ``RunRecord``."""
        self.averager.rank, self.averager.world = executor.rank, executor.world
        self._deciding.open(executor.latency, timed)
        self._executor = executor

    def begin(
        self,
        forms: Sequence[Form],
        loss_scale: Number | None,
        fail: Fail,
        learning_rate: float = math.nan,
        takes_part: bool | None = None,
        every: int = 1,
        begun: Callable[[Candidate], None] = lambda candidate: None,
    ) -> None:
        """Hand over that a backward started.

        Args:
            forms: shapes and dtypes of the model's gradients, as far as known; used once.
            loss_scale: factor on the gradients to come, 0-d tensor where only the device knows it; ``None``: no scaler.
            fail: told of an exception.
            learning_rate: rate that this step's gradients will be applied with; nan when not known.
            takes_part: divide sums by the number of ranks for which this is true; ``None``, on every rank, by all.
            every: number of the model's steps that this one stands for.
            begun: told what was decided for this step.
        """
        if self.executor.masked:
            self.executor.call(self._catch_up, fail)
        self.executor.call(lambda: self._begin(forms, loss_scale, learning_rate, takes_part, every, begun), fail)

    def prepare(self, forms: Sequence[Form], seconds: float, chosen: Callable[[Candidate], None], fail: Fail) -> None:
        """Hand over what a step's compute takes on this rank, before the first step, so that its choice may go by that.

        Args:
            forms: see ``begin``.
            seconds: time that a step took without exchange.
            chosen: told what was decided for the first step.
            fail: told of an exception.
        """
        started: list[Any] = []
        self.executor.call(lambda: started.append(self.executor.agree([[seconds]])), fail)
        self.executor.drain()
        self.executor.call(lambda: self._prepare(forms, started[0], chosen), fail)

    def exchange(self, group: ReadyGroup, last: bool = False) -> None:
        """Hand a group over to be averaged, perhaps together with those that follow.

        Args:
            group: tensors; told, by the executor, when these hold the mean.
            last: whether it is the last group of this backward.
        """
        *parts, end = cut(group, self.executor.join)
        for part in parts:
            self._hand_over(part, None)
        self._hand_over(end, group, last)

    def flush(self) -> None:
        """Have what was handed over so far averaged without waiting for more; called alike on all ranks."""
        self._hand_over(None, None, last=True)

    def end(
        self,
        timestamps: Timestamps,
        fail: Fail,
        spread: Callable[[], Number] = lambda: math.nan,
        applied: Callable[[], Verdict] = lambda: True,
    ) -> None:
        """Hand over that the backward ended, as all its groups were; of ``spread`` and ``applied`` see ``Door.end``."""
        self.flush()
        self.executor.call(lambda: self._end(timestamps, spread, applied), fail)

    def _hand_over(self, part: ReadyGroup | None, group: ReadyGroup | None, last: bool = False) -> None:
        """Hand over what goes if this step compresses, and what goes if it does not."""
        taken = [one for one in (part, group) if one is not None]

        def job() -> Any:
            compresses = self._plan.compresses
            taken[:] = self._waiting.take(part if compresses else group, at_once=last or not compresses)
            if not taken:
                return
            pieces = [piece for one in taken for piece in one.pieces]
            with self._naming(lambda: exchanged(pieces)):
                whole = taken[0].whole if len(taken) == 1 else None
                known = functools.reduce(both, (one.known for one in taken))
                yield from self.averager.average(pieces, self._plan, whole, known)
            if self._taking_part.asked:
                with self._naming(lambda: TAKING_PART):
                    factor = self.averager.world / self._taking_part.count(self.executor)
                for piece in pieces:
                    piece.flat.mul_(factor)
            for one in taken:
                one.done()

        def fail(failure: BaseException) -> None:
            for one in (*taken, *self._waiting.groups):
                one.fail(failure)

        self.executor.exchange(job(), fail, self.device, lambda: self._one_round)

    def restore(self, state: StepState, controller_state: dict[str, Any] | None) -> None:
        """Go on from a state, and a dumped controller state, at the next ``begin``."""
        self.state = state
        self._measurements.clear()
        self._deciding.restore(state, controller_state)
        self._planner.forget()

    @property
    def settled(self) -> StepState:
        """The state, once all that was handed over is done."""
        self.drain()
        return self.state

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until all that was handed over is done, for at most ``seconds``; return whether it is.

        If not, or if the exchange failed, what the steps so far leave behind is as it was last known.
        """
        if self._executor is None:
            return True
        drained = self._executor.drain(seconds)
        if drained:
            self._measurements.report(self._executor, self.state, self.state.step)
        return drained

    def close(self, failure: BaseException | None = None) -> None:
        """End the executor after what was handed over, or have that fail with an exception."""
        if self._executor is not None:
            executor, self._executor = self._executor, None
            if failure is not None:
                executor.abandon(failure)
            executor.close()
            self._measurements.let_go()

    @property
    def executor(self) -> Executor:
        """What runs the steps.

        Raises:
            RuntimeError: it was closed, or never opened.
        """
        if self._executor is None:
            raise RuntimeError("the compressor is closed: make a new one")
        return self._executor

    # run by the executor

    @contextmanager
    def _naming(self, what: Callable[[], str]) -> Iterator[None]:
        """Have a failure of the exchange say in which step it happened, and with what."""
        try:
            yield
        except ExchangeError as failure:
            step, ran = self.state.step, self.state.ran
            raise ExchangeError(f"gravac: step {step}, {what()}, {ran}: {failure}") from failure.__cause__

    def _catch_up(self) -> None:
        """Look at what is a step old; of a run that was taken up, agree on what should be agreed on by now."""
        self.executor.catch_up()
        self._measurements.report(self.executor, self.state, self.state.step + 1 - self.executor.latency)
        with self._naming(lambda: AGREEMENT):
            self._measurements.agree(self.executor, self.state, self.state.step - self.executor.latency)

    def _prepare(self, forms: Sequence[Form], started: Any, chosen: Callable[[Candidate], None]) -> None:
        with self._naming(lambda: "what a step's compute takes"):
            ((seconds,),) = self.executor.agreed(started)
        self.compute_s = seconds / self.executor.agree_world
        chosen(self._start(forms).candidate)

    def _begin(
        self,
        forms: Sequence[Form],
        loss_scale: Number | None,
        learning_rate: float,
        takes_part: bool | None,
        every: int,
        begun: Callable[[Candidate], None],
    ) -> None:
        state = self.state
        if self.decision is None:
            self._start(forms)
        if self.executor.masked:
            self._observe_until(state.step - self.executor.latency)
        with self._naming(lambda: AGREEMENT):
            self._measurements.agree(self.executor, state, state.step + 1 - self.executor.latency)
        with self._naming(lambda: TAKING_PART):
            self._taking_part.begin(self.executor, takes_part, self.device)
        self._scale(loss_scale)
        assert self.decision is not None
        chosen = self.decision.candidate
        before, state.ran = state.ran, chosen if every == chosen.every else replace(chosen, every=every)
        old, state.factors = state.factors, self._planner.factors(self.decision, state.curves)
        if before is not None and old != state.factors:
            self.averager.feedback.hold(lambda name: state.factors.fell(old, name))
            self._held_at = state.step
        self._plan = self._planner.plan(state.step, self.decision, state.factors, self.candidates)
        self._one_round = self.averager.one_round(self._plan)
        link_s = self._deciding.exchange_s(chosen) if self._one_round else 0.0
        self._waiting.begin(self.averager.coding_bytes(self._plan), self._elements, link_s, self.device.type == "cpu")
        self._learning_rate = learning_rate
        self.averager.begin(self.executor)
        self._clock.begin(self.executor, every)
        begun(chosen)

    def _scale(self, loss_scale: Number | None) -> None:
        """The gradients to come are multiplied with something else than what is kept: let that follow."""
        before = self.state.loss_scale
        if isinstance(loss_scale, torch.Tensor):
            loss_scale = loss_scale.detach().clone()  # a scaler changes its own in place
        elif loss_scale is None or loss_scale == before:
            return
        if before is not None:
            self.averager.rescale(loss_scale / before)
        self.state.loss_scale = loss_scale

    def _start(self, forms: Sequence[Form]) -> Decision:
        """The world and the model are known now: return the first decision."""
        self._elements = sum(torch.Size(shape).numel() for shape, _ in forms)
        self.averager.place(self.device)
        if any(dtype == torch.float16 for _, dtype in forms):
            self.averager.feedback.guard()
        return self._deciding.start(self.state, forms, self.averager.world)

    def _end(self, timestamps: Timestamps, spread: Callable[[], Number], applied: Callable[[], Verdict]) -> None:
        state, stats = self.state, self.averager.stats
        stats.verdicts.append(applied())
        assert state.ran is not None
        self.averager.commit()
        clocked = self._clock.end(self.executor, timestamps, stats)
        state.wire_bytes += clocked.wire_bytes
        state.dense_wire_bytes += clocked.dense_wire_bytes
        state.steps_at[state.ran] = state.steps_at.get(state.ran, 0) + 1
        scale = 1.0 if state.loss_scale is None else state.loss_scale
        leftover = self.averager.feedback.leftover(self._plan.sends_whole) if self.executor.masked else {}
        one = (state.step, state.ran, self._plan, stats, clocked, scale, self._learning_rate, leftover, spread())
        self._measurements.add(Measured(*one))
        if not self.executor.masked:
            self._measurements.report(self.executor, state, state.step)
            self._observe_until(state.step + 1 - self.executor.latency)
        state.step += 1

    def _observe_until(self, last: int) -> None:
        """Observe steps up to ``last`` on which the ranks agree."""
        while True:
            with self._naming(lambda: AGREEMENT):
                found = self._measurements.agreed(self.executor, self.state, last)
            if found is None:
                return
            self._observe(found[0], *found[1])

    def _observe(self, one: Unobserved, total: Sequence[float], surveyed: Sequence[float] | None = None) -> None:
        """The ranks agreed on a step: decide, and tell."""
        state, world = self.state, self.executor.agree_world
        norms: tuple[tuple[str, float], ...] = ()
        if one.tensor_errors is not None and surveyed is not None:
            norms = one.tensor_errors.norms(surveyed, world)
            if curves := one.tensor_errors.curves(surveyed):
                state.curves.update(curves)
                self._planner.forget()
        measured = one.report.agreed(total, world, self._deciding.samples(world), norms)
        if one.leftover and one.report.left(total) == 0 and one.report.step >= self._held_at:
            self.averager.feedback.drop(one.leftover, self._plan.sends_whole)
        self._deciding.observe(state, measured, one.costs)
