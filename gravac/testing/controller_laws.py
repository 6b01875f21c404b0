# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Laws that every controller must obey, also a user's own. They need no torch, no network and no clock.

In a test suite, after ``from gravac.testing import controller_laws``::

    @pytest.mark.parametrize("law", controller_laws.LAWS, ids=lambda law: law.__name__)
    def test_my_controller(law):
        law(MyController())

Each law raises ``AssertionError`` with the decisions that break the law. Controllers run as in training: the decision
by the measurement of step t applies from step t+2 on; a decision by a native stretch applies at once.
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
"""Number of steps for which a law runs a controller: 20 windows of 20 steps."""

RANGES = ((1.0, 1000.0), (10.0, 1000.0), (10.0, 10.0), (64.0, 100.0))
SUPPORTED_CFS = (1.5, 4.0, 32.0, 70.0, 256.0)
TENSORS = ("blocks.0.weight", "blocks.1.weight", "head.weight")

Law = Callable[[Controller[Any]], None]
Measure = Callable[[int, Decision], Measurement]
"""Function that makes up a step's measurement from the number of earlier training steps and the step's decision."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step in which a controller was run on a made-up measurement; see ``drive``.

    Attributes:
        applied: decision that applied in the step.
        measured: measurement of the step.
        state: state of the controller after observing the measurement.
        decision: decision made from the measurement; applies ``latency`` steps later.
    """

    applied: Decision
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
    """Run a controller on made-up measurements, as in training.

    Args:
        controller: controller to drive.
        forecasts: forecasts of the candidates that the controller may select; the first is of dense.
        measure: makes up the measurement of a step.
        steps: number of the engine's steps: each is a training step, a native stretch, or a round of outer steps.
        reload: whether to dump the state to JSON, and restore it, after every step.

    Yields:
        Each step, with the decision that applied in the step and the decision made from its measurement.

    Example:
        >>> from gravac.controllers.static import Static
        >>> static = Static(cf=10)
        >>> steps = list(drive(static, forecasts_of(static), turbulent, 3))
        >>> {str(step.decision.candidate) for step in steps}
        {'any 10x'}
    """
    state, decision = controller.start(forecasts)
    latency, trained = getattr(controller, "latency", LATENCY), 0
    pending = deque([decision] * latency)
    mode, previous = decision.candidate.mode, decision.candidate
    for step in range(steps):
        current = pending.popleft()
        # the ranks learn of another mode when this step begins, and change the mode when the step has ended
        if current.candidate.mode != mode:
            mode, current = current.candidate.mode, Decision(previous)
        previous = current.candidate
        measured = replace(measure(trained, current), step=step, first=trained, steps=_steps_of(current))
        if previous.mode == "native":
            measured = replace(measured, error=0.0, energy=0.0, shadow=(), norms=())
            measured = replace(measured, waited=math.nan, coded=math.nan, exchanged=math.nan, drift=math.nan)
        trained += measured.steps
        state, decision = controller.observe(state, measured)
        yield Step(current, measured, state, decision)
        pending.append(decision)
        if previous.mode == "native":
            pending, mode = deque([decision] * latency), decision.candidate.mode
        if reload:
            state, restored = controller.restore(json.loads(json.dumps(controller.dump(state))), forecasts)
            assert replace(restored, reason="", summary=None) == replace(decision, reason="", summary=None), (
                f"step {step}: decided {decision}, after a restore {restored}"
            )


def _steps_of(decision: Decision) -> int:
    """Return how many training steps the engine runs as one step, under a decision."""
    return decision.watch if decision.candidate.mode == "native" else decision.candidate.every


def forecast_of(compressor: str, cf: float, mode: Mode = "hook") -> Forecast:
    """Return a made-up forecast of a compressor at a CF, which sends ``cf`` times fewer bytes than dense float32.

    Example:
        >>> forecast_of("any", 10.0).wire_ratio
        10.0
    """
    return Forecast(Candidate(mode, compressor, cf), wire_ratio=cf, family=mode if mode == "native" else "")


def forecasts_of(controller: Controller[Any], cf_range: tuple[float, float] = (10.0, 1000.0)) -> tuple[Forecast, ...]:
    """Return forecasts of dense, and of a compressor that supports all CFs, at the CFs that the controller proposes.

    Example:
        >>> from gravac.controllers.static import Static
        >>> ", ".join(str(forecast.candidate) for forecast in forecasts_of(Static(cf=10)))
        'dense 1x, any 10x'
    """
    cfs = controller.propose(cf_range, Span(*cf_range))
    return (forecast_of(DENSE, 1.0), *(forecast_of("any", cf) for cf in cfs))


def turbulent(step: int, decision: Decision) -> Measurement:
    """Make up a measurement whose gain falls with the CF and oscillates over hundreds of steps; times are noisy.

    These lead a controller to all kinds of decisions. The norms of three tensors also oscillate; the learning rate is
    halved from time to time.
    """
    swing = 0.55 + 0.45 * math.cos(step / 60)
    energy = 3.0 + math.sin(step)

    def error(cf: float) -> float:
        return energy * (1 - swing * math.pow(cf, -0.15))

    cf = decision.candidate.cf
    reported = TENSORS if decision.sums == "report" else ()
    norms = tuple((name, 2 + math.sin(step / 40 + 2 * i) + i * math.cos(step)) for i, name in enumerate(reported))
    return Measurement(
        step=step,
        candidate=decision.candidate,
        seconds=0.02 + 0.5 / cf + 0.002 * math.sin(7.0 * step * step),
        samples=64.0,
        error=0.0 if decision.candidate.dense else error(cf),
        energy=energy,
        shadow=tuple((shadow_cf, error(shadow_cf)) for shadow_cf in decision.shadow),
        learning_rate=0.1 * math.pow(0.5, step // 90),
        norms=norms,
    )


def broken(step: int, decision: Decision) -> Measurement:
    """Make up a measurement as ``turbulent`` does, with a missing, zero or non-finite number in two of three steps."""
    measured = turbulent(step, decision)
    bad = (math.nan, math.inf, -math.inf)[step % 3]
    faults: tuple[dict[str, Any], ...] = (
        {"error": bad},
        {"energy": bad},
        {"error": bad, "energy": bad},
        {"seconds": bad},
        {"seconds": 0.0},
        {"error": 0.0, "energy": 0.0, "shadow": tuple((cf, 0.0) for cf in decision.shadow)},
        {"shadow": ()},
        {"shadow": tuple((cf, bad) for cf in decision.shadow)},
        {"error": 4 * measured.energy},
        {"learning_rate": bad, "norms": tuple((name, bad) for name, _ in measured.norms)},
        {"learning_rate": 0.0, "norms": tuple((name, 0.0) for name, _ in measured.norms)},
        {"norms": ()},
        {"seconds": 1e4},
    )
    return replace(measured, **faults[(step * 7 // 3) % len(faults)]) if step % 3 else measured


def the_same_measurements_give_the_same_decisions(controller: Controller[Any]) -> None:
    """Check that two equal runs of a controller decide the same, so that all its memory is in the state."""
    forecasts = forecasts_of(controller)
    expected_decisions = [step.decision for step in drive(controller, forecasts, turbulent)]
    other_drive = drive(controller, forecasts, broken)
    second_drive = drive(controller, forecasts, turbulent)
    for i, (step, expected) in enumerate(zip(second_drive, expected_decisions, strict=True)):
        next(other_drive)
        assert step.decision == expected, f"step {i}: decided {expected}, the second time {step.decision}"


def observing_leaves_the_state_alone(controller: Controller[Any]) -> None:
    """Check that ``observe`` does not change the state: a second call decides the same, and the dump stays the same."""
    forecasts = forecasts_of(controller)
    previous = None
    for i, step in enumerate(drive(controller, forecasts, turbulent)):
        if previous is not None:
            state, dumped = previous
            assert controller.dump(state) == dumped, f"step {i}: observing changed the state it was given"
            repeated = controller.observe(state, step.measured)[1]
            assert repeated == step.decision, f"step {i}: decided {step.decision}, from the same state again {repeated}"
        previous = step.state, controller.dump(step.state)


def only_given_candidates_are_decided(controller: Controller[Any]) -> None:
    """Check that the controller selects only candidates that it was given, and names tensors once each, ascending.

    If a native candidate was given, the controller may also select the same candidate in gravac's hook.
    """
    for forecasts, measure in _cases(controller):
        allowed = {forecast.candidate for forecast in forecasts}
        allowed |= {candidate.in_hook for candidate in allowed if candidate.mode == "native"}
        for decision in _decisions(controller, forecasts, measure):
            assert decision.candidate in allowed, f"{decision.candidate} was not given"
            names = [name for name, _ in decision.tensors]
            assert set(TENSORS).issuperset(names), f"{names}: there are {TENSORS} only"
            assert all(first < second for first, second in itertools.pairwise(names)), f"tensors {names} do not ascend"
            for name, candidate in decision.tensors:
                assert candidate in allowed, f"{name}: {candidate} was not given"
                assert candidate != decision.candidate, f"{name}: {candidate} is what it runs anyway"


def a_change_is_told_with_its_reason(controller: Controller[Any]) -> None:
    """Check that a decision has a reason if and only if it changes what runs or has a summary."""
    for forecasts, measure in _cases(controller):
        decisions = itertools.pairwise(_decisions(controller, forecasts, measure))
        for i, (previous, decision) in enumerate(decisions):
            due = decision.runs != previous.runs or decision.summary is not None
            assert bool(decision.reason) == due, f"step {i}: reason {decision.reason!r}, changed or summary {due}"


def shadows_are_few_ascending_and_given(controller: Controller[Any]) -> None:
    """Check that shadow CFs ascend, are at most ``SHADOWS``, and belong to candidates that are not dense."""
    for forecasts, measure in _cases(controller):
        allowed = {forecast.candidate.cf for forecast in forecasts if not forecast.candidate.dense}
        for decision in _decisions(controller, forecasts, measure):
            shadow = decision.shadow
            assert len(shadow) <= SHADOWS, f"{len(shadow)} shadow CFs {shadow}; at most {SHADOWS} may be asked for"
            assert all(low < high for low, high in itertools.pairwise(shadow)), f"shadow CFs {shadow} do not ascend"
            assert allowed.issuperset(shadow), f"shadow CFs {shadow} are not all among {sorted(allowed)}"


def the_state_dumps_as_plain_values(controller: Controller[Any]) -> None:
    """Check that ``dump`` survives JSON unchanged, after every step, and contains neither NaN nor infinity."""
    for forecasts, measure in _cases(controller):
        for i, step in enumerate(drive(controller, forecasts, measure)):
            dumped = controller.dump(step.state)
            assert json.loads(json.dumps(dumped, allow_nan=False)) == dumped, f"step {i}: {dumped} is not plain"


def a_restored_state_goes_on_identically(controller: Controller[Any]) -> None:
    """Check that a run whose state is dumped and restored after every step decides as an uninterrupted run."""
    for forecasts, measure in _cases(controller):
        uninterrupted = drive(controller, forecasts, measure)
        reloaded = drive(controller, forecasts, measure, reload=True)
        for i, (expected, step) in enumerate(zip(uninterrupted, reloaded, strict=True)):
            assert expected.decision == step.decision, (
                f"step {i}: decided {expected.decision}, with restores {step.decision}"
            )


def a_state_restores_with_other_candidates(controller: Controller[Any]) -> None:
    """Check that a state restored with fewer or more candidates (another number of ranks) selects one of them."""
    full = forecasts_of(controller)
    lists = [full[:1], full[:2], (full[0], *full[2:]), full]
    if getattr(controller, "native", False):
        lists += [(forecast_of(DENSE, 1.0, "native"), *full[1:]), (forecast_of(DENSE, 1.0, "native"),)]
    for forecasts in lists:
        for i, step in itertools.islice(enumerate(drive(controller, forecasts, turbulent, 200)), 0, None, 15):
            dumped = json.loads(json.dumps(controller.dump(step.state)))
            for forecasts_at_restore in lists:
                allowed = {forecast.candidate for forecast in forecasts_at_restore}
                allowed |= {candidate.in_hook for candidate in allowed if candidate.mode == "native"}
                state, decision = controller.restore(dumped, forecasts_at_restore)
                for j in range(40):
                    for candidate in (decision.candidate, *(candidate for _, candidate in decision.tensors)):
                        assert candidate in allowed, f"dumped at step {i}: {candidate} is not given any more"
                    cfs = {candidate.cf for candidate in allowed if not candidate.dense}
                    assert cfs.issuperset(decision.shadow), f"dumped at step {i}: shadow CFs {decision.shadow}"
                    state, decision = controller.observe(state, turbulent(i + j, decision))


def broken_measurements_do_not_raise(controller: Controller[Any]) -> None:
    """Check that energies, errors or seconds that are zero or not finite, and missing shadows, raise no exception."""

    def hopeless(step: int, decision: Decision) -> Measurement:
        return broken(3 * step + 1 + step % 2, decision)

    for measure in (broken, hopeless):
        for step in drive(controller, forecasts_of(controller), measure):
            json.dumps(controller.dump(step.state), allow_nan=False)


def dense_alone_is_enough(controller: Controller[Any]) -> None:
    """Check that dense runs, for all tensors and without shadow CFs, if it is the only candidate."""
    only = forecasts_of(controller)[:1]
    for measure in (turbulent, broken):
        runs = {(decision.runs, decision.shadow) for decision in _decisions(controller, only, measure)}
        assert runs == {((only[0].candidate, ()), ())}, "dense was alone"


def proposals_are_in_reach(controller: Controller[Any]) -> None:
    """Check that proposed CFs ascend, are in the user's range (or 1 or 2), and are supported by the compressor."""
    for low, high in RANGES:
        listed = tuple(cf for cf in SUPPORTED_CFS if low <= cf <= high)
        for supported_cfs in (Span(low, high), listed):
            cfs = controller.propose((low, high), supported_cfs)
            assert all(lower < higher for lower, higher in itertools.pairwise(cfs)), (
                f"proposed {cfs}, which do not ascend"
            )
            outside = [cf for cf in cfs if not (low <= cf <= high or cf in (1.0, 2.0))]
            assert not outside, f"proposed {outside}, outside ({low:g}, {high:g})"
            if not isinstance(supported_cfs, Span):
                assert set(supported_cfs).issuperset(cfs), (
                    f"proposed {cfs}, of a compressor that can do {supported_cfs}"
                )


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
"""All laws for controllers, in the order in which failures are best read."""


def _decisions(controller: Controller[Any], forecasts: Sequence[Forecast], measure: Measure) -> Iterator[Decision]:
    """Yield the decision with which a controller starts, and the decision of every step."""
    yield controller.start(forecasts)[1]
    yield from (step.decision for step in drive(controller, forecasts, measure))


def _cases(controller: Controller[Any]) -> list[tuple[tuple[Forecast, ...], Measure]]:
    """Return forecasts of several ranges, with dense in 32 bit, 16 bit or both, and good or broken measurements."""
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
