# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The laws every controller must obey, also a user's own. Needs no torch, no network and no clock.

In a test suite, after ``from gravac.controllers import conformance``::

    @pytest.mark.parametrize("law", conformance.LAWS, ids=lambda law: law.__name__)
    def test_my_controller(law):
        law(MyController())

Each law raises ``AssertionError`` with what it saw. Controllers are driven as in training: the decision made from step
t holds from step t+2.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import DENSE, Candidate, Span
from gravac.controllers.base import SHADOWS, Controller, Decision, Measurement

STEPS = 400
"""Steps a controller is driven for: 20 windows of 20."""

RANGES = ((1.0, 1000.0), (10.0, 1000.0), (10.0, 10.0), (64.0, 100.0))
REACH = (1.5, 4.0, 32.0, 70.0, 256.0)
TENSORS = ("blocks.0.weight", "blocks.1.weight", "head.weight")

Law = Callable[[Controller[Any]], None]
Measure = Callable[[int, Decision], Measurement]
"""What a step comes to, given which step it is and the decision that holds in it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a drive.

    Attributes:
        ran: the decision that held in it.
        measured: what it came to.
        state: of the controller, after observing it.
        decision: from observing it; holds two steps later.
    """

    ran: Decision
    measured: Measurement
    state: Any
    decision: Decision


def drive(
    controller: Controller[Any],
    candidates: Sequence[Candidate],
    measure: Measure,
    steps: int = STEPS,
    *,
    reload: bool = False,
) -> Iterator[Step]:
    """Run a controller over made-up measurements, with training's latency.

    Args:
        controller: to drive.
        candidates: what may be chosen; the first is dense.
        measure: makes up what a step comes to.
        steps: how many.
        reload: dump and restore, through JSON, after every step.
    """
    state, coming = controller.start(candidates)
    holds = coming
    for step in range(steps):
        measured = measure(step, holds)
        state, decision = controller.observe(state, measured)
        yield Step(holds, measured, state, decision)
        holds, coming = coming, decision
        if reload:
            state, again = controller.restore(json.loads(json.dumps(controller.dump(state))), candidates)
            assert replace(again, reason="", summary=None) == replace(decision, reason="", summary=None), (
                f"step {step}: decided {decision}, after a restore {again}"
            )


def candidates_of(controller: Controller[Any], cf_range: tuple[float, float] = (10.0, 1000.0)) -> tuple[Candidate, ...]:
    """Dense, and a compressor of any CF at those proposed."""
    cfs = controller.propose(cf_range, Span(*cf_range))
    return (Candidate(DENSE, 1.0, 1.0), *(Candidate("any", cf, cf) for cf in cfs))


def turbulent(step: int, holds: Decision) -> Measurement:
    """Gain falls with CF and swings over hundreds of steps, so that all that can be decided is; times are noisy.

    So do the norms of three tensors; the learning rate is halved now and then.
    """
    swing = 0.55 + 0.45 * math.cos(step / 60)
    energy = 3.0 + math.sin(step)

    def error(cf: float) -> float:
        return energy * (1 - swing * math.pow(cf, -0.15))

    cf = holds.candidate.cf
    reported = TENSORS if holds.sums == "report" else ()
    norms = tuple((name, 2 + math.sin(step / 40 + 2 * at) + at * math.cos(step)) for at, name in enumerate(reported))
    return Measurement(
        step=step,
        candidate=holds.candidate,
        seconds=0.02 + 0.5 / cf + 0.002 * math.sin(7.0 * step * step),
        samples=64.0,
        error=0.0 if holds.candidate.dense else error(cf),
        energy=energy,
        shadow=tuple((at, error(at)) for at in holds.shadow),
        learning_rate=0.1 * math.pow(0.5, step // 90),
        norms=norms,
    )


def broken(step: int, holds: Decision) -> Measurement:
    """As ``turbulent``, but two steps of three have something missing, zero, negative or not finite."""
    measured = turbulent(step, holds)
    bad = (math.nan, math.inf, -math.inf)[step % 3]
    faults: tuple[dict[str, Any], ...] = (
        {"error": bad},
        {"energy": bad},
        {"error": bad, "energy": bad},
        {"seconds": bad},
        {"seconds": 0.0},
        {"error": 0.0, "energy": 0.0, "shadow": tuple((cf, 0.0) for cf in holds.shadow)},
        {"shadow": ()},
        {"shadow": tuple((cf, bad) for cf in holds.shadow)},
        {"error": 4 * measured.energy},
        {"learning_rate": bad, "norms": tuple((name, bad) for name, _ in measured.norms)},
        {"learning_rate": 0.0, "norms": tuple((name, 0.0) for name, _ in measured.norms)},
        {"norms": ()},
        {"seconds": 1e4},
    )
    return replace(measured, **faults[(step * 7 // 3) % len(faults)]) if step % 3 else measured


def the_same_measurements_give_the_same_decisions(controller: Controller[Any]) -> None:
    """Twice the same drive, one step of another in between: nothing is remembered outside the state."""
    candidates = candidates_of(controller)
    alone = [step.decision for step in drive(controller, candidates, turbulent)]
    between = drive(controller, candidates, broken)
    for at, (step, before) in enumerate(zip(drive(controller, candidates, turbulent), alone, strict=True)):
        next(between)
        assert step.decision == before, f"step {at}: decided {before}, the second time {step.decision}"


def observing_leaves_the_state_alone(controller: Controller[Any]) -> None:
    """A state that was observed from can be observed from again, and dumps as it did."""
    candidates = candidates_of(controller)
    before = None
    for at, step in enumerate(drive(controller, candidates, turbulent)):
        if before is not None:
            state, dumped = before
            assert controller.dump(state) == dumped, f"step {at}: observing changed the state it was given"
            again = controller.observe(state, step.measured)[1]
            assert again == step.decision, f"step {at}: decided {step.decision}, from the same state again {again}"
        before = step.state, controller.dump(step.state)


def only_given_candidates_are_decided(controller: Controller[Any]) -> None:
    """Candidates are those given to ``start``, always; tensors' too, which are named once each, ascending."""
    for candidates, measure in _cases(controller):
        decisions = [controller.start(candidates)[1]]
        decisions += [step.decision for step in drive(controller, candidates, measure)]
        for decision in decisions:
            assert decision.candidate in candidates, f"{decision.candidate} was not given"
            names = [name for name, _ in decision.tensors]
            assert set(TENSORS).issuperset(names), f"{names}: there are {TENSORS} only"
            assert all(a < b for a, b in itertools.pairwise(names)), f"tensors {names} do not ascend"
            for name, candidate in decision.tensors:
                assert candidate in candidates, f"{name}: {candidate} was not given"
                assert candidate != decision.candidate, f"{name}: {candidate} is what it runs anyway"


def a_change_is_told_with_its_reason(controller: Controller[Any]) -> None:
    """A change of what runs and a summary have a reason; else there is none."""
    for candidates, measure in _cases(controller):
        before = controller.start(candidates)[1].runs
        for at, step in enumerate(drive(controller, candidates, measure)):
            told = step.decision
            said = told.runs != before or told.summary is not None
            assert bool(told.reason) == said, f"step {at}: reason {told.reason!r}, change or summary {said}"
            before = told.runs


def shadows_are_few_ascending_and_given(controller: Controller[Any]) -> None:
    """Shadow CFs ascend, are at most ``SHADOWS``, and are those of candidates that are not dense."""
    for candidates, measure in _cases(controller):
        given = {candidate.cf for candidate in candidates if not candidate.dense}
        decisions = [controller.start(candidates)[1]]
        decisions += [step.decision for step in drive(controller, candidates, measure)]
        for decision in decisions:
            shadow = decision.shadow
            assert len(shadow) <= SHADOWS, f"{len(shadow)} shadow CFs {shadow}; at most {SHADOWS} may be asked for"
            assert all(a < b for a, b in itertools.pairwise(shadow)), f"shadow CFs {shadow} do not ascend"
            assert given.issuperset(shadow), f"shadow CFs {shadow} are not all among {sorted(given)}"


def the_state_dumps_as_plain_values(controller: Controller[Any]) -> None:
    """``dump`` survives JSON unchanged, after every step, and without NaN or infinity."""
    for candidates, measure in _cases(controller):
        for at, step in enumerate(drive(controller, candidates, measure)):
            plain = controller.dump(step.state)
            assert json.loads(json.dumps(plain, allow_nan=False)) == plain, f"step {at}: {plain} is not plain"


def a_restored_state_goes_on_identically(controller: Controller[Any]) -> None:
    """Dumped and restored after every step, the decisions are those of an uninterrupted drive."""
    for candidates, measure in _cases(controller):
        straight = drive(controller, candidates, measure)
        for at, (a, b) in enumerate(zip(straight, drive(controller, candidates, measure, reload=True), strict=True)):
            assert a.decision == b.decision, f"step {at}: decided {a.decision}, with restores {b.decision}"


def a_state_restores_with_other_candidates(controller: Controller[Any]) -> None:
    """With fewer or more candidates than at the dump (another number of ranks), it decides one of the present ones."""
    most = candidates_of(controller)
    lists = (most[:1], most[:2], (most[0], *most[2:]), most)
    for then in lists:
        for at, step in enumerate(drive(controller, then, turbulent, 200)):
            if at % 15:
                continue
            plain = json.loads(json.dumps(controller.dump(step.state)))
            for now in lists:
                state, decision = controller.restore(plain, now)
                for more in range(40):
                    for candidate in (decision.candidate, *(candidate for _, candidate in decision.tensors)):
                        assert candidate in now, f"dumped at step {at}: {candidate} is not given any more"
                    cfs = {candidate.cf for candidate in now if not candidate.dense}
                    assert cfs.issuperset(decision.shadow), f"dumped at step {at}: shadow CFs {decision.shadow}"
                    state, decision = controller.observe(state, turbulent(at + more, decision))


def broken_measurements_do_not_raise(controller: Controller[Any]) -> None:
    """Non-finite or zero energy, error or seconds, and shadows that are missing; also nothing but those."""
    candidates = candidates_of(controller)
    for decided in drive(controller, candidates, broken):
        json.dumps(controller.dump(decided.state), allow_nan=False)

    def hopeless(step: int, holds: Decision) -> Measurement:
        return broken(3 * step + 1 + step % 2, holds)

    for decided in drive(controller, candidates, hopeless):
        json.dumps(controller.dump(decided.state), allow_nan=False)


def dense_alone_is_enough(controller: Controller[Any]) -> None:
    """When no candidate is admitted but dense, dense runs, in all tensors and without shadows."""
    only = candidates_of(controller)[:1]
    for measure in (turbulent, broken):
        first = controller.start(only)[1]
        decisions = [first, *(step.decision for step in drive(controller, only, measure))]
        assert all(decision.runs == (only[0], ()) and not decision.shadow for decision in decisions), "dense was alone"


def proposals_are_in_reach(controller: Controller[Any]) -> None:
    """CFs proposed ascend, are in the user's range (or 1 or 2), and in a compressor's list when it has one."""
    for low, high in RANGES:
        listed = tuple(cf for cf in REACH if low <= cf <= high)
        for reach in (Span(low, high), listed):
            cfs = controller.propose((low, high), reach)
            assert all(a < b for a, b in itertools.pairwise(cfs)), f"proposed {cfs}, which do not ascend"
            out = [cf for cf in cfs if not (low <= cf <= high or cf in (1.0, 2.0))]
            assert not out, f"proposed {out}, outside ({low:g}, {high:g})"
            if not isinstance(reach, Span):
                assert set(reach).issuperset(cfs), f"proposed {cfs}, of a compressor that can do {reach}"


LAWS: tuple[Law, ...] = (
    the_same_measurements_give_the_same_decisions,
    observing_leaves_the_state_alone,
    only_given_candidates_are_decided,
    a_change_is_told_with_its_reason,
    shadows_are_few_ascending_and_given,
    the_state_dumps_as_plain_values,
    a_restored_state_goes_on_identically,
    a_state_restores_with_other_candidates,
    broken_measurements_do_not_raise,
    dense_alone_is_enough,
    proposals_are_in_reach,
)
"""Every law, in the order worth reading."""


def _cases(controller: Controller[Any]) -> list[tuple[tuple[Candidate, ...], Measure]]:
    """Candidates of several ranges, dense in 16 bit or also in 16 bit, each with kind and with broken measurements."""
    wide, narrow = candidates_of(controller), candidates_of(controller, (1.0, 100.0))
    half = Candidate(DENSE, 2.0, 2.0)
    cases = [wide, narrow, (half, *wide[1:])]
    if controller.sixteen_bit:
        cases += [(wide[0], half, *wide[1:]), (wide[0], half)]
    return [(candidates, measure) for candidates in cases for measure in (turbulent, broken)]
