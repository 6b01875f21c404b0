# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The life of a step: agree on the last one, run what was decided, keep what was not sent, decide.

All of it runs on the exchange thread, in the order a framework's adapter hands it over (``begin``, ``exchange`` for
every group, ``end``), so that nothing here needs a lock. The measurement of step t travels first in step t+1, nobody
waits for it before that step's end, and the decision it leads to holds from step t+2.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gravac.averaging.allocation import Curve, allocate
from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Plan
from gravac.candidate import Candidate
from gravac.collectives import AllReduce, Collective, Ledger, wire_ratio
from gravac.controllers.base import Controller, Decision
from gravac.exchange.fifo import Fifo
from gravac.exchange.group import ExchangeError, GroupTransport, Pending
from gravac.stepping.admission import Admission
from gravac.stepping.agreement import StepReport, gain
from gravac.stepping.clock import StepClock, StepCosts, Timestamps
from gravac.stepping.coalescing import ReadyGroup, elements, enough, exchanged
from gravac.stepping.step_records import decided, measured_step, shares
from gravac.stepping.tensor_errors import TensorErrors
from gravac.telemetry.records import DecisionRecord, Record, RunRecord

Fail = Callable[[BaseException], None]


class Steps:
    """Runs steps for one model on one rank.

    Args:
        averager: the core operation.
        controller: decides which candidate runs.
        admit: gives the candidates for forms, and those dropped.
        emit: takes records; called on the exchange thread.
        samples_per_step: over all ranks; ``None`` counts a step of a rank as one sample.
        steps_per_epoch: to name the epoch in reasons; ``None`` does not.
        levels: CFs that a single tensor may get, beside the candidates', when what a CF would send is spent over the
            tensors by their curves; none leaves all tensors at the CF decided.
        survey_every: steps between two surveys of the curves.
        settings: told in the run's record; see ``RunRecord``.
    """

    def __init__(
        self,
        averager: Averager,
        controller: Controller[Any],
        admit: Callable[[Sequence[Form]], Admission],
        emit: Callable[[Record], None],
        samples_per_step: float | None,
        steps_per_epoch: int | None = None,
        levels: Sequence[float] = (),
        survey_every: int = 1,
        settings: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self.averager = averager
        self.controller = controller
        self.history: list[DecisionRecord] = []
        self.decision: Decision | None = None
        self.candidates: tuple[Candidate, ...] = ()
        self.step = 0
        self.gain: float | None = None
        self.wire_ratio: float | None = None
        self.loss_scale: float | None = None
        self.wire_bytes = 0
        self.dense_wire_bytes = 0
        self.steps_at: dict[Candidate, int] = {}
        self.state: Any = None
        self.report: StepReport | None = None
        self.tensor_errors: TensorErrors | None = None
        self.survey_bytes = 0
        self.curves: dict[str, Curve] = {}
        self._admit = admit
        self._emit = emit
        self._settings = dict(settings or {})
        self._samples = samples_per_step
        self._steps_per_epoch = steps_per_epoch
        self._levels = tuple(levels)
        self._survey_every = survey_every
        self._allotted: dict[float, dict[str, float | None]] = {}
        self._fifo: Fifo | None = None
        self._agreeing: list[Pending] | None = None
        self._costs: StepCosts | None = None
        self._learning_rate = math.nan
        self.plan = Plan(step=0, cf=None)
        self.ran: Candidate | None = None
        self._clock = StepClock()
        self._device = torch.device("cpu")
        self._waiting: list[ReadyGroup] = []
        self._elements = 0
        self._enough = 0
        self._one_round = False
        self._joined_factor = 1.0
        self._restored: dict[str, Any] | None = None

    # on the training thread

    @property
    def ready(self) -> bool:
        """Whether a transport was given."""
        return self._fifo is not None

    @property
    def ledger(self) -> Ledger:
        """Of everything handed to collectives since ``open``."""
        return self._fifo.transport.ledger if self._fifo else Ledger()

    def open(self, transport: GroupTransport) -> None:
        """Start the exchange thread on a transport."""
        self.averager.rank, self.averager.world = transport.rank, transport.world
        self._fifo = Fifo(transport)

    def begin(
        self,
        forms: Sequence[Form],
        loss_scale: float | None,
        fail: Fail,
        learning_rate: float = math.nan,
        takes_part: bool | None = None,
    ) -> None:
        """A backward started.

        Args:
            forms: of the model's gradients, as far as known; used once.
            loss_scale: of the gradients to come; ``None`` when there is no scaler.
            fail: told of an exception.
            learning_rate: that this step's gradients will be applied with; nan when not known.
            takes_part: divide this step's sums by the number of ranks for which this is true instead of by all ranks;
                ``None``, on every rank, divides by all.
        """
        self._thread.call(lambda: self._begin(forms, loss_scale, learning_rate, takes_part), fail)

    def exchange(self, group: ReadyGroup, last: bool = False) -> None:
        """Average a group, perhaps together with those that follow.

        Args:
            group: told on the exchange thread when its tensors hold the mean.
            last: of this backward.
        """
        self._device = group.pieces[0].flat.device
        self._hand_over(group, last)

    def end(self, timestamps: Timestamps, fail: Fail) -> None:
        """The backward ended; all its groups were handed over."""
        self._hand_over(None, last=True)
        self._thread.call(lambda: self._end(timestamps), fail)

    def _hand_over(self, group: ReadyGroup | None, last: bool) -> None:
        taken: list[ReadyGroup] = [] if group is None else [group]

        def job() -> Any:
            self._waiting += taken
            wait = not self.plan.uncompressed and elements(self._waiting) < self._enough
            if not self._waiting or (wait and not last):
                return
            taken[:], self._waiting = self._waiting, []
            pieces = [piece for one in taken for piece in one.pieces]
            with self._naming(lambda: exchanged(pieces)):
                yield from self.averager.average(pieces, self.plan, taken[0].whole if len(taken) == 1 else None)
            if self._joined_factor != 1:
                for piece in pieces:
                    piece.flat.mul_(self._joined_factor)
            for one in taken:
                one.done()

        def fail(failure: BaseException) -> None:
            for one in (*taken, *self._waiting):
                one.fail(failure)

        self._thread.exchange(job(), fail, self._device, lambda: self._one_round)

    def totals(self) -> dict[str, float]:
        """What the steps so far come to; drained before."""
        told = {"steps": float(self.step), "wire_bytes": float(self.wire_bytes)}
        told["wire_ratio"] = wire_ratio(self.dense_wire_bytes, self.wire_bytes)
        if self.gain is not None:
            told["gain"] = self.gain
        return {**told, "survey_bytes": float(self.survey_bytes), **shares(self.steps_at, self.candidates)}

    def restore(self, controller_state: dict[str, Any] | None) -> None:
        """Go on from a dumped controller state at the next ``begin``."""
        self._restored = controller_state
        self.decision = None

    def learn(self, curves: Mapping[str, Curve]) -> None:
        """Know some tensors' curves, instead of what was known of them."""
        if curves:
            self.curves.update(curves)
            self._allotted.clear()

    def drain(self, seconds: float | None = None) -> None:
        """Wait until all that was handed over is done, for at most ``seconds``."""
        if self._fifo is not None:
            self._fifo.drain(seconds)

    def close(self) -> None:
        """End the exchange thread after what was handed over."""
        if self._fifo is not None:
            self._fifo.close()
            self._fifo = None

    @property
    def _thread(self) -> Fifo:
        if self._fifo is None:
            raise RuntimeError("the compressor is closed: make a new one")
        return self._fifo

    # on the exchange thread

    @contextmanager
    def _naming(self, what: Callable[[], str]) -> Iterator[None]:
        """Have a failure of the exchange say in which step it happened, and with what."""
        try:
            yield
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: step {self.step}, {what()}, {self.ran}: {failure}") from failure.__cause__

    def _begin(
        self, forms: Sequence[Form], loss_scale: float | None, learning_rate: float, takes_part: bool | None
    ) -> None:
        self._joined_factor = 1.0 if takes_part is None else self._over_those_with_inputs(takes_part)
        if self.decision is None:
            self._elements = sum(torch.Size(shape).numel() for shape, _ in forms)
            self._start(forms)
        assert self.decision is not None
        if self.report is not None:
            asked: list[Collective] = [AllReduce(self.report.vector())]
            if self.tensor_errors is not None:
                asked.append(AllReduce(self.tensor_errors.vector()))
                self.survey_bytes += asked[-1].payload_bytes
            with self._naming(lambda: "the ranks' agreement on the step before"):
                self._agreeing = self._thread.transport.start(asked)
        if loss_scale is not None and loss_scale != self.loss_scale:
            if self.loss_scale is not None:
                self.averager.rescale(loss_scale / self.loss_scale)
            self.loss_scale = loss_scale
        before, self.plan = self.plan, self._planned(self.decision)
        if self.ran is not None and (before.cf, before.cfs) != (self.plan.cf, self.plan.cfs):
            self.averager.feedback.hold(lambda name: _fell(before.cf_of(name), self.plan.cf_of(name)))
        self.ran = self.decision.candidate
        self._one_round = self.averager.one_round(self.plan)
        self._enough = enough(self._elements, self.ran.exchange_s or 0.0 if self._one_round else 0.0)
        self._learning_rate = learning_rate
        self.averager.begin()
        self._clock.begin(self._thread)

    def _over_those_with_inputs(self, takes_part: bool) -> float:
        """Count the ranks that still have inputs; what a mean over all ranks is to be multiplied with."""
        transport = self._thread.transport
        with self._naming(lambda: "the number of ranks with inputs left"):
            (count,) = transport.finish(transport.start([AllReduce(torch.tensor([float(takes_part)]))]))
        return self.averager.world / float(count)

    def _planned(self, decision: Decision) -> Plan:
        """A decision, as the averager takes it."""
        candidate, cf = decision.candidate, _cf(decision.candidate)
        form = self.averager.dense.at(candidate.cf) if candidate.dense else None
        cfs = {name: _cf(one) for name, one in decision.tensors}
        if cf is not None and not cfs and self._levels:
            if cf not in self._allotted:
                self._allotted[cf] = allocate(self.curves, cf)
            cfs = self._allotted[cf]
        survey: tuple[float, ...] = ()
        if self._levels and (self.step + 1) % self._survey_every == 0:
            survey = tuple(sorted({*self._levels, *(one.cf for one in self.candidates if not one.dense)}))
        return Plan(self.step, cf, decision.shadow, form, cfs, decision.sums, survey)

    def _wire_bytes(self, form: Form, cf: float | None) -> int:
        """See ``gravac.stepping.tensor_errors.WireBytes``."""
        averager = self.averager
        compressor, at = (averager.dense, averager.dense.cf) if cf is None else (averager.base, cf)
        return averager.wire_bytes([form], compressor, at)

    def _start(self, forms: Sequence[Form]) -> None:
        """The world and the model are known now: admit candidates and ask the controller for its first decision."""
        self.candidates, dropped = self._admit(forms)
        if self._restored is not None:
            self.state, self.decision = self.controller.restore(self._restored, self.candidates)
        else:
            self.state, self.decision = self.controller.start(self.candidates)
        self._emit(RunRecord(self._settings, self.averager.world, self.candidates, dropped))

    def _end(self, timestamps: Timestamps) -> None:
        assert self.ran is not None
        stats = self.averager.stats
        self.averager.commit()
        costs = self._clock.end(self._thread, timestamps, stats)
        self.wire_bytes += costs.wire_bytes
        self.dense_wire_bytes += costs.dense_wire_bytes
        if self._agreeing is not None:
            with self._naming(lambda: "the ranks' agreement on the step before"):
                agreed = self._thread.transport.finish(self._agreeing)
            self._observe(*agreed)
            self._agreeing = None
        self.report = StepReport.of(self.step, self.ran, self.plan.shadow, costs, stats, self._learning_rate)
        self.tensor_errors = TensorErrors.of(stats, self.plan, self.loss_scale or 1.0, self._wire_bytes)
        self._costs = costs
        self.steps_at[self.ran] = self.steps_at.get(self.ran, 0) + 1
        self.step += 1

    def _observe(self, total: torch.Tensor, surveyed: torch.Tensor | None = None) -> None:
        """The ranks agreed on the step before: decide, and tell."""
        assert self.report is not None
        assert self.decision is not None
        world = self.averager.world
        samples = self._samples if self._samples is not None else float(world)
        norms: tuple[tuple[str, float], ...] = ()
        if self.tensor_errors is not None and surveyed is not None:
            norms = self.tensor_errors.norms(surveyed, world)
            self.learn(self.tensor_errors.curves(surveyed))
        measured = self.report.agreed(total, world, samples, norms)
        self.gain = gain(measured.error, measured.energy)
        if self._costs is not None:
            self.wire_ratio = self._costs.wire_ratio
            self._emit(measured_step(measured, self._costs))
        before = self.decision.runs
        self.state, self.decision = self.controller.observe(self.state, measured)
        summary = self.decision.summary
        changed = self.decision.runs != before
        if summary is None and not changed:
            return
        record = decided(self.step + 1, self.decision, changed, self.gain, self._steps_per_epoch)
        self.history.append(record)
        self._emit(record)


def _cf(candidate: Candidate) -> float | None:
    """As ``Plan`` has it."""
    return None if candidate.dense else candidate.cf


def _fell(before: float | None, now: float | None) -> bool:
    """Whether a CF did; dense is the lowest."""
    return (now or 0.0) < (before or 0.0)
