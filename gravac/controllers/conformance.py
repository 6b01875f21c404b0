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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import DENSE, Candidate, Span
from gravac.controllers.base import LATENCY, SHADOWS, Controller, Decision, Measurement

STEPS = 400
"""Number of steps that a law drives a controller for: 20 windows of 20."""

RANGES = ((1.0, 1000.0), (10.0, 1000.0), (10.0, 10.0), (64.0, 100.0))
REACH = (1.5, 4.0, 32.0, 70.0, 256.0)
TENSORS = ("blocks.0.weight", "blocks.1.weight", "head.weight")

Law = Callable[[Controller[Any]], None]
Measure = Callable[[int, Decision], Measurement]
"""A made-up measurement of a step, given the step's number and the decision that holds in it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a drive.

    Attributes:
        ran: decision that held in the step.
        measured: measurement of the step.
        state: state of the controller after observing the measurement.
        decision: decision made from the measurement; it holds ``latency`` steps later.
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
    """Run a controller over made-up measurements, with training's latency, or the controller's if it has one.

    Args:
        controller: controller to drive.
        candidates: candidates that may be chosen; the first is dense.
        measure: makes up the measurement of a step.
        steps: number of steps.
        reload: whether to dump and restore the state, through JSON, after every step.

    Yields:
        Each step, with the decision that held in it and the one made from it.

    Example:
        >>> from gravac.controllers.static import Static
        >>> static = Static(cf=10)
        >>> steps = list(drive(static, candidates_of(static), turbulent, 3))
        >>> [str(step.decision.candidate) for step in steps]
        ['any 10x', 'any 10x', 'any 10x']
    """
    state, decision = controller.start(candidates)
    coming = deque([decision] * getattr(controller, "latency", LATENCY))
    for step in range(steps):
        holds = coming.popleft()
        measured = measure(step, holds)
        state, decision = controller.observe(state, measured)
        yield Step(holds, measured, state, decision)
        coming.append(decision)
        if reload:
            state, again = controller.restore(json.loads(json.dumps(controller.dump(state))), candidates)
            assert replace(again, reason="", summary=None) == replace(decision, reason="", summary=None), (
                f"step {step}: decided {decision}, after a restore {again}"
            )


def candidates_of(controller: Controller[Any], cf_range: tuple[float, float] = (10.0, 1000.0)) -> tuple[Candidate, ...]:
    """Return dense, and a compressor that can do any CF at the CFs that the controller proposes.

    Example:
        >>> from gravac.controllers.static import Static
        >>> [str(candidate) for candidate in candidates_of(Static(cf=10))]
        ['dense 1x', 'any 10x']
    """
    cfs = controller.propose(cf_range, Span(*cf_range))
    return (Candidate(DENSE, 1.0, 1.0), *(Candidate("any", cf, cf) for cf in cfs))


def turbulent(step: int, holds: Decision) -> Measurement:
    """Make up a measurement with gains that fall with CF and swing over hundreds of steps; times are noisy.

    So every decision that can be made is made. The norms of three tensors swing too; the learning rate is halved now
    and then.
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
    """Make up a measurement like ``turbulent``'s, with a missing, zero or non-finite value in two of three steps."""
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
    """Check that two equal drives decide alike, with steps of another in between: all memory is in the state."""
    candidates = candidates_of(controller)
    alone = [step.decision for step in drive(controller, candidates, turbulent)]
    between = drive(controller, candidates, broken)
    for at, (step, before) in enumerate(zip(drive(controller, candidates, turbulent), alone, strict=True)):
        next(between)
        assert step.decision == before, f"step {at}: decided {before}, the second time {step.decision}"


def observing_leaves_the_state_alone(controller: Controller[Any]) -> None:
    """Check that a state can be observed from twice, and dumps as before: observing does not change it."""
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
    """Check that all candidates decided on were given to ``start``; that tensors are named once each, ascending."""
    for candidates, measure in _cases(controller):
        for decision in _decisions(controller, candidates, measure):
            assert decision.candidate in candidates, f"{decision.candidate} was not given"
            names = [name for name, _ in decision.tensors]
            assert set(TENSORS).issuperset(names), f"{names}: there are {TENSORS} only"
            assert all(a < b for a, b in itertools.pairwise(names)), f"tensors {names} do not ascend"
            for name, candidate in decision.tensors:
                assert candidate in candidates, f"{name}: {candidate} was not given"
                assert candidate != decision.candidate, f"{name}: {candidate} is what it runs anyway"


def a_change_is_told_with_its_reason(controller: Controller[Any]) -> None:
    """Check that a change of what runs, and a summary, have a reason; and that there is none without."""
    for candidates, measure in _cases(controller):
        decisions = itertools.pairwise(_decisions(controller, candidates, measure))
        for at, (before, decision) in enumerate(decisions):
            due = decision.runs != before.runs or decision.summary is not None
            assert bool(decision.reason) == due, f"step {at}: reason {decision.reason!r}, changed or summary {due}"


def shadows_are_few_ascending_and_given(controller: Controller[Any]) -> None:
    """Check that shadow CFs ascend, are at most ``SHADOWS``, and belong to candidates that are not dense."""
    for candidates, measure in _cases(controller):
        given = {candidate.cf for candidate in candidates if not candidate.dense}
        for decision in _decisions(controller, candidates, measure):
            shadow = decision.shadow
            assert len(shadow) <= SHADOWS, f"{len(shadow)} shadow CFs {shadow}; at most {SHADOWS} may be asked for"
            assert all(a < b for a, b in itertools.pairwise(shadow)), f"shadow CFs {shadow} do not ascend"
            assert given.issuperset(shadow), f"shadow CFs {shadow} are not all among {sorted(given)}"


def the_state_dumps_as_plain_values(controller: Controller[Any]) -> None:
    """Check that ``dump`` survives JSON unchanged, after every step, and holds neither NaN nor infinity."""
    for candidates, measure in _cases(controller):
        for at, step in enumerate(drive(controller, candidates, measure)):
            plain = controller.dump(step.state)
            assert json.loads(json.dumps(plain, allow_nan=False)) == plain, f"step {at}: {plain} is not plain"


def a_restored_state_goes_on_identically(controller: Controller[Any]) -> None:
    """Check that a drive dumped and restored after every step decides as an uninterrupted one."""
    for candidates, measure in _cases(controller):
        straight = drive(controller, candidates, measure)
        for at, (a, b) in enumerate(zip(straight, drive(controller, candidates, measure, reload=True), strict=True)):
            assert a.decision == b.decision, f"step {at}: decided {a.decision}, with restores {b.decision}"


def a_state_restores_with_other_candidates(controller: Controller[Any]) -> None:
    """Check that a state restored with fewer or more candidates (another number of ranks) decides for one of them."""
    most = candidates_of(controller)
    lists = (most[:1], most[:2], (most[0], *most[2:]), most)
    for then in lists:
        for at, step in itertools.islice(enumerate(drive(controller, then, turbulent, 200)), 0, None, 15):
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
    """Check that energies, errors or seconds that are zero or not finite, and missing shadows, raise nothing."""

    def hopeless(step: int, holds: Decision) -> Measurement:
        return broken(3 * step + 1 + step % 2, holds)

    for measure in (broken, hopeless):
        for step in drive(controller, candidates_of(controller), measure):
            json.dumps(controller.dump(step.state), allow_nan=False)


def dense_alone_is_enough(controller: Controller[Any]) -> None:
    """Check that dense runs, in all tensors and without shadows, when no other candidate is admitted."""
    only = candidates_of(controller)[:1]
    for measure in (turbulent, broken):
        decisions = _decisions(controller, only, measure)
        assert all(decision.runs == (only[0], ()) and not decision.shadow for decision in decisions), "dense was alone"


def proposals_are_in_reach(controller: Controller[Any]) -> None:
    """Check that proposed CFs ascend, and are in the user's range (or 1 or 2) and in the compressor's list if any."""
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
"""All laws for controllers, in the order worth reading."""


def _decisions(controller: Controller[Any], candidates: Sequence[Candidate], measure: Measure) -> Iterator[Decision]:
    """Yield the decision that a controller starts with, and that of every step."""
    yield controller.start(candidates)[1]
    yield from (step.decision for step in drive(controller, candidates, measure))


def _cases(controller: Controller[Any]) -> list[tuple[tuple[Candidate, ...], Measure]]:
    """Return candidates of several ranges, dense in 32, 16 bit or both, each with good and broken measurements."""
    wide, narrow = candidates_of(controller), candidates_of(controller, (1.0, 100.0))
    half = Candidate(DENSE, 2.0, 2.0)
    cases = [wide, narrow, (half, *wide[1:])]
    if controller.sixteen_bit:
        cases += [(wide[0], half, *wide[1:]), (wide[0], half)]
    return [(candidates, measure) for candidates in cases for measure in (turbulent, broken)]
