# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The laws every controller must obey, also a user's own. Needs no torch, no network and no clock.

In a test suite, after ``from gravac.testing import controller_laws``::

    @pytest.mark.parametrize("law", controller_laws.LAWS, ids=lambda law: law.__name__)
    def test_my_controller(law):
        law(MyController())

Each law raises ``AssertionError`` with what it saw. Controllers are driven as in training: the decision made from step
t holds from step t+2; that from a native stretch, at once.
"""

import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast, Mode, Span
from gravac.controllers.base import LATENCY, SHADOWS, Controller, Decision, Measurement

STEPS = 400
"""Number of steps that a law drives a controller for: 20 windows of 20."""

RANGES = ((1.0, 1000.0), (10.0, 1000.0), (10.0, 10.0), (64.0, 100.0))
REACH = (1.5, 4.0, 32.0, 70.0, 256.0)
TENSORS = ("blocks.0.weight", "blocks.1.weight", "head.weight")

Law = Callable[[Controller[Any]], None]
Measure = Callable[[int, Decision], Measurement]
"""A made-up measurement of a step, given the number of training steps before it and the decision that holds in it."""


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
    forecasts: Sequence[Forecast],
    measure: Measure,
    steps: int = STEPS,
    *,
    reload: bool = False,
) -> Iterator[Step]:
    """Run a controller over made-up measurements, with training's latency, or the controller's if it has one.

    Args:
        controller: controller to drive.
        forecasts: forecasts of the candidates that may be chosen; the first is of dense.
        measure: makes up the measurement of a step.
        steps: number of the engine's steps: each is a training step, a native stretch, or a round of outer steps.
        reload: whether to dump and restore the state, through JSON, after every step.

    Yields:
        Each step, with the decision that held in it and the one made from it.

    Example:
        >>> from gravac.controllers.static import Static
        >>> static = Static(cf=10)
        >>> steps = list(drive(static, forecasts_of(static), turbulent, 3))
        >>> {str(step.decision.candidate) for step in steps}
        {'any 10x'}
    """
    state, decision = controller.start(forecasts)
    latency, trained = getattr(controller, "latency", LATENCY), 0
    coming = deque([decision] * latency)
    mode, previous = decision.candidate.mode, decision.candidate
    for step in range(steps):
        holds = coming.popleft()
        if (
            holds.candidate.mode != mode
        ):  # the ranks learn of it as this step begins, and change when the step has ended
            mode, holds = holds.candidate.mode, Decision(previous)
        previous = holds.candidate
        measured = replace(measure(trained, holds), step=step, first=trained, steps=_steps_of(holds))
        if previous.mode == "native":
            measured = replace(measured, error=0.0, energy=0.0, shadow=(), norms=())
            measured = replace(measured, waited=math.nan, coded=math.nan, exchanged=math.nan, drift=math.nan)
        trained += measured.steps
        state, decision = controller.observe(state, measured)
        yield Step(holds, measured, state, decision)
        coming.append(decision)
        if previous.mode == "native":
            coming, mode = deque([decision] * latency), decision.candidate.mode
        if reload:
            state, again = controller.restore(json.loads(json.dumps(controller.dump(state))), forecasts)
            assert replace(again, reason="", summary=None) == replace(decision, reason="", summary=None), (
                f"step {step}: decided {decision}, after a restore {again}"
            )


def _steps_of(holds: Decision) -> int:
    """Return the number of training steps of the engine's step in which a decision holds."""
    return holds.watch if holds.candidate.mode == "native" else holds.candidate.every


def forecast_of(compressor: str, cf: float, mode: Mode = "hook") -> Forecast:
    """Return a made-up forecast of a compressor at a CF: it sends ``cf`` times fewer bytes than dense float32.

    Example:
        >>> forecast_of("any", 10.0).wire_ratio
        10.0
    """
    return Forecast(Candidate(mode, compressor, cf), wire_ratio=cf, family=mode if mode == "native" else "")


def forecasts_of(controller: Controller[Any], cf_range: tuple[float, float] = (10.0, 1000.0)) -> tuple[Forecast, ...]:
    """Return forecasts of dense, and of a compressor that can do any CF at the CFs that the controller proposes.

    Example:
        >>> from gravac.controllers.static import Static
        >>> ", ".join(str(forecast.candidate) for forecast in forecasts_of(Static(cf=10)))
        'dense 1x, any 10x'
    """
    cfs = controller.propose(cf_range, Span(*cf_range))
    return (forecast_of(DENSE, 1.0), *(forecast_of("any", cf) for cf in cfs))


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
    forecasts = forecasts_of(controller)
    alone = [step.decision for step in drive(controller, forecasts, turbulent)]
    between = drive(controller, forecasts, broken)
    for at, (step, before) in enumerate(zip(drive(controller, forecasts, turbulent), alone, strict=True)):
        next(between)
        assert step.decision == before, f"step {at}: decided {before}, the second time {step.decision}"


def observing_leaves_the_state_alone(controller: Controller[Any]) -> None:
    """Check that a state can be observed from twice, and dumps as before: observing does not change it."""
    forecasts = forecasts_of(controller)
    before = None
    for at, step in enumerate(drive(controller, forecasts, turbulent)):
        if before is not None:
            state, dumped = before
            assert controller.dump(state) == dumped, f"step {at}: observing changed the state it was given"
            again = controller.observe(state, step.measured)[1]
            assert again == step.decision, f"step {at}: decided {step.decision}, from the same state again {again}"
        before = step.state, controller.dump(step.state)


def only_given_candidates_are_decided(controller: Controller[Any]) -> None:
    """Check that each candidate decided on was forecast to ``start``; that tensors are named once each, ascending.

    Beside a native candidate, the same in gravac's hook may be decided on.
    """
    for forecasts, measure in _cases(controller):
        given = {forecast.candidate for forecast in forecasts}
        given |= {candidate.in_hook for candidate in given if candidate.mode == "native"}
        for decision in _decisions(controller, forecasts, measure):
            assert decision.candidate in given, f"{decision.candidate} was not given"
            names = [name for name, _ in decision.tensors]
            assert set(TENSORS).issuperset(names), f"{names}: there are {TENSORS} only"
            assert all(a < b for a, b in itertools.pairwise(names)), f"tensors {names} do not ascend"
            for name, candidate in decision.tensors:
                assert candidate in given, f"{name}: {candidate} was not given"
                assert candidate != decision.candidate, f"{name}: {candidate} is what it runs anyway"


def a_change_is_told_with_its_reason(controller: Controller[Any]) -> None:
    """Check that a change of what runs, and a summary, have a reason; and that there is none without."""
    for forecasts, measure in _cases(controller):
        decisions = itertools.pairwise(_decisions(controller, forecasts, measure))
        for at, (before, decision) in enumerate(decisions):
            due = decision.runs != before.runs or decision.summary is not None
            assert bool(decision.reason) == due, f"step {at}: reason {decision.reason!r}, changed or summary {due}"


def shadows_are_few_ascending_and_given(controller: Controller[Any]) -> None:
    """Check that shadow CFs ascend, are at most ``SHADOWS``, and belong to candidates that are not dense."""
    for forecasts, measure in _cases(controller):
        given = {forecast.candidate.cf for forecast in forecasts if not forecast.candidate.dense}
        for decision in _decisions(controller, forecasts, measure):
            shadow = decision.shadow
            assert len(shadow) <= SHADOWS, f"{len(shadow)} shadow CFs {shadow}; at most {SHADOWS} may be asked for"
            assert all(a < b for a, b in itertools.pairwise(shadow)), f"shadow CFs {shadow} do not ascend"
            assert given.issuperset(shadow), f"shadow CFs {shadow} are not all among {sorted(given)}"


def the_state_dumps_as_plain_values(controller: Controller[Any]) -> None:
    """Check that ``dump`` survives JSON unchanged, after every step, and holds neither NaN nor infinity."""
    for forecasts, measure in _cases(controller):
        for at, step in enumerate(drive(controller, forecasts, measure)):
            plain = controller.dump(step.state)
            assert json.loads(json.dumps(plain, allow_nan=False)) == plain, f"step {at}: {plain} is not plain"


def a_restored_state_goes_on_identically(controller: Controller[Any]) -> None:
    """Check that a drive dumped and restored after every step decides as an uninterrupted one."""
    for forecasts, measure in _cases(controller):
        straight = drive(controller, forecasts, measure)
        for at, (a, b) in enumerate(zip(straight, drive(controller, forecasts, measure, reload=True), strict=True)):
            assert a.decision == b.decision, f"step {at}: decided {a.decision}, with restores {b.decision}"


def a_state_restores_with_other_candidates(controller: Controller[Any]) -> None:
    """Check that a state restored with fewer or more candidates (another number of ranks) decides for one of them."""
    most = forecasts_of(controller)
    lists = [most[:1], most[:2], (most[0], *most[2:]), most]
    if getattr(controller, "native", False):
        lists += [(forecast_of(DENSE, 1.0, "native"), *most[1:]), (forecast_of(DENSE, 1.0, "native"),)]
    for then in lists:
        for at, step in itertools.islice(enumerate(drive(controller, then, turbulent, 200)), 0, None, 15):
            plain = json.loads(json.dumps(controller.dump(step.state)))
            for now in lists:
                given = {forecast.candidate for forecast in now}
                given |= {candidate.in_hook for candidate in given if candidate.mode == "native"}
                state, decision = controller.restore(plain, now)
                for more in range(40):
                    for candidate in (decision.candidate, *(candidate for _, candidate in decision.tensors)):
                        assert candidate in given, f"dumped at step {at}: {candidate} is not given any more"
                    cfs = {candidate.cf for candidate in given if not candidate.dense}
                    assert cfs.issuperset(decision.shadow), f"dumped at step {at}: shadow CFs {decision.shadow}"
                    state, decision = controller.observe(state, turbulent(at + more, decision))


def broken_measurements_do_not_raise(controller: Controller[Any]) -> None:
    """Check that energies, errors or seconds that are zero or not finite, and missing shadows, raise nothing."""

    def hopeless(step: int, holds: Decision) -> Measurement:
        return broken(3 * step + 1 + step % 2, holds)

    for measure in (broken, hopeless):
        for step in drive(controller, forecasts_of(controller), measure):
            json.dumps(controller.dump(step.state), allow_nan=False)


def dense_alone_is_enough(controller: Controller[Any]) -> None:
    """Check that dense runs, in all tensors and without shadows, when no other candidate is admitted."""
    only = forecasts_of(controller)[:1]
    for measure in (turbulent, broken):
        runs = {(decision.runs, decision.shadow) for decision in _decisions(controller, only, measure)}
        assert runs == {((only[0].candidate, ()), ())}, "dense was alone"


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


def _decisions(controller: Controller[Any], forecasts: Sequence[Forecast], measure: Measure) -> Iterator[Decision]:
    """Yield the decision that a controller starts with, and that of every step."""
    yield controller.start(forecasts)[1]
    yield from (step.decision for step in drive(controller, forecasts, measure))


def _cases(controller: Controller[Any]) -> list[tuple[tuple[Forecast, ...], Measure]]:
    """Return forecasts of several ranges, dense in 32, 16 bit or both, each with good and broken measurements."""
    wide, narrow = forecasts_of(controller), forecasts_of(controller, (1.0, 100.0))
    half = forecast_of(DENSE, 2.0)
    cases = [wide, narrow, (half, *wide[1:])]
    if controller.sixteen_bit:
        cases += [(wide[0], half, *wide[1:]), (wide[0], half)]
    if getattr(controller, "native", False):
        native = forecast_of(DENSE, 1.0, "native")
        cases += [(native, *wide[1:]), (native,)]
        if controller.sixteen_bit:
            cases += [(native, half, forecast_of(DENSE, 2.0, "native"), *wide[1:]), (native, half)]
    return [(forecasts, measure) for forecasts in cases for measure in (turbulent, broken)]
