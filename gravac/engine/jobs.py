# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The jobs of which a step consists, in this order.

1. ``begin``, alone: observe earlier steps, and make a plan from the newest decision.
2. ``Agreement.exchange_due``: sum the numbers of an earlier step over the ranks. Jobs are resumed in their order, so
   no gradients are decoded before all ranks that agree have begun the step.
3. ``average``, for each group of tensors: average the tensors by the plan.
4. ``end``, alone: store the new residuals, measure, and decide by the measurement that the ranks agreed on.

The executor runs all functions of this file, in the order in which the engine submits them. Code of the training loop
calls none of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form
from gravac.averaging.recording import StepRecording
from gravac.candidate import DENSE, Candidate, named
from gravac.collectives import AllReduce
from gravac.controllers.base import Decision
from gravac.engine.agreement import Agreement, named_failure
from gravac.engine.coalescing import ReadyGroup, Waiting, describe, finite_of
from gravac.engine.decisions import Deciding
from gravac.engine.factors import Factors
from gravac.engine.inputs import StepInputs
from gravac.engine.run_state import RunState
from gravac.exchange.executor import Executor, Job, Round, everywhere, sums_over_all
from gravac.exchange.reading import Finite, Number
from gravac.measurement import agreed

AddTimes = Callable[[StepRecording], None]
"""Function that gets the record of a step, and adds times that the caller of ``Engine.end`` knows."""


class Model(NamedTuple):
    """The gradients of a model: their shapes and dtypes, the same on all ranks, and their device."""

    forms: Sequence[Form]
    device: torch.device


class StepJobs:
    """The jobs of a rank's steps, and what one job leaves for the next.

    Args:
        averager: object that averages tensors over the ranks.
        deciding: object that lets the controller decide.
        state: state of the run, which the jobs change.
        executor: object that runs the jobs.

    Attributes:
        agreement: object that sums measurements over the ranks.
        waiting_groups: exchange groups that wait for further groups.
    """

    def __init__(self, averager: Averager, deciding: Deciding, state: RunState, executor: Executor) -> None:
        self.averager, self.deciding, self.state, self.executor = averager, deciding, state, executor
        self.agreement = Agreement(executor, state, self._observe)
        self.waiting_groups = Waiting()
        self._model_elements = 0
        self._plan = averager.plan(0, None)
        self._last_recording: StepRecording | None = None  # of the last step that ended
        self._last_change_step = 0  # step before which compression factors changed
        self._counts_ranks = False  # whether this step counts the ranks that still have inputs
        self._ratio_of_ranks: Number = 1.0  # all ranks / ranks that have inputs

    @property
    def decision(self) -> Decision | None:
        """The newest decision; ``None`` before the first step."""
        return self.deciding.decision

    # before the first step, and between two steps

    def prepare(self, compute_s: float, model: Model) -> Job[Candidate]:
        """Make the first decision by the mean over the ranks of a step's seconds without exchange.

        Args:
            compute_s: these seconds on this rank.
            model: the gradients' forms and device.
        """
        with named_failure(self.state, lambda: "the compute time of a step"):
            (total,) = yield from sums_over_all(self.executor, [[compute_s]])
            self.state.compute_s = total.read()[0] / self.executor.agree_world
        return self._first_decision(model).candidate

    def decide_first(self, model: Model) -> Candidate:
        """Make the first decision, unless one was made already; return the candidate of the newest decision."""
        return (self.decision or self._first_decision(model)).candidate

    def _first_decision(self, model: Model) -> Decision:
        """Select the candidates, and return the controller's first decision; ranks and model must be known."""
        self._model_elements = sum(torch.Size(shape).numel() for shape, _ in model.forms)
        self.averager.to_device(model.device)
        if any(dtype == torch.float16 for _, dtype in model.forms):
            self.averager.residuals.turn_on_overflow_safety()
        return self.deciding.decide_first(self.state, model.forms, self.averager.world)

    def change_mode(self) -> None:
        """Drop all residuals, which do not fit what steps of another mode exchange."""
        self.averager.forget()
        self.state.factors = Factors()
        self._last_recording = None

    def decide_by_ended_steps(self) -> Candidate:
        """Let the controller decide by all steps that have ended; return the candidate of the next step."""
        assert self.decision is not None
        self.agreement.observe()
        return self.decision.candidate

    # a step

    def begin(self, inputs: StepInputs, model: Model) -> Job[Candidate]:
        """Begin a step; return the candidate of the newest decision.

        The step runs this candidate only if the mode of the candidate is also the mode of the step.

        Args:
            inputs: facts of the step.
            model: the gradients' forms and device.
        """
        state = self.state
        if self.decision is None:
            self._first_decision(model)
        state.covered = inputs.steps
        self.averager.residuals.checks_group_means = inputs.mode == "outer"
        yield from self.agreement.catch_up()
        self._counts_ranks = inputs.takes_part is not None
        self._rescale(inputs.loss_scale)
        assert self.decision is not None
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
        self.waiting_groups.set_limits(
            self.averager.coding_bytes_per_element(self._plan),
            self._model_elements,
            exchange_s,
            model.device.type == "cpu",
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
        self.averager.measure(recording, self.executor)
        recording.open(self.executor)
        return decided_candidate

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

    def count_ranks(self, takes_part: bool, device: torch.device) -> Job[None]:
        """Count the ranks that still have batches to train on, as in DDP's ``join()``.

        Args:
            takes_part: whether this rank still has batches.
            device: device of the gradients.
        """
        flag = torch.full((1,), float(takes_part), dtype=torch.float64, device=device)
        with named_failure(self.state, lambda: "the number of ranks with inputs left"):
            (rank_count,) = yield Round([AllReduce(flag)], last=True)
        (self._ratio_of_ranks,) = self.executor.numbers([self.executor.world / rank_count[0]])

    def average(self, taken_groups: list[ReadyGroup], is_last: bool) -> Job[None]:
        """Average a group of tensors: in segments if the step compresses, otherwise as a whole.

        A group may wait for later groups. Whether the step compresses is known only when the job runs.

        Args:
            taken_groups: the group, or a segment of it; empty: no tensors. Replaced by the groups that the job takes.
            is_last: whether to average all waiting groups now.
        """
        compresses = self._plan.compresses
        group = taken_groups[0] if taken_groups else None
        taken_groups[:] = self.waiting_groups.take(
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

    def end(self, add_times: AddTimes, loss: Number, forward_s: float) -> Job[None]:
        """End a step: store new residuals, complete the measurement, decide by what the ranks have agreed on.

        Args:
            add_times: function that gets the step's measurement, and adds times that the engine's caller knows, such as
                the end of backward.
            loss: mean of the training losses since the last step; nan if there are none.
            forward_s: seconds of the last forward; nan if it was not timed.
        """
        state, recording = self.state, self.averager.recording
        recording.loss, recording.forward_s = loss, forward_s
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
