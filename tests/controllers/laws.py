# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Laws that every controller must obey, without torch, network or clock.

Each law takes a controller, and raises an ``AssertionError`` with the decisions that break the law. Controllers run as
in training: the decision from the measurement of step t applies from step t+2 on. Successive native steps (DDP
exchanges by itself) have a single measurement; the decision from that measurement applies at once.
"""

import itertools
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gravac.candidate import DENSE, Candidate, Forecast, Mode, Span
from gravac.controllers.base import LATENCY, SHADOWS, Controller, Decision, Measurement, has_flag

STEPS = 400
"""Number of steps for which a law runs a controller: 20 windows of 20 steps."""

RANGES = ((1.0, 1000.0), (10.0, 1000.0), (10.0, 10.0), (64.0, 100.0))
"""Settings ``cf_range`` (lowest and highest compression factor, CF) with which laws are checked."""

SUPPORTED_CFS = (1.5, 4.0, 32.0, 70.0, 256.0)
"""CFs of a made-up compressor that supports only some CFs."""

TENSORS = ("blocks.0.weight", "blocks.1.weight", "head.weight")
"""Names of the tensors of a made-up model."""

ONLY_TIME_IS_KNOWN: dict[str, Any] = {
    "error": 0.0,
    "energy": 0.0,
    "shadow": (),
    "norms": (),
    **dict.fromkeys(("waited", "coded", "exchanged", "drift"), math.nan),
}
"""Fields of the measurement of native steps, in which DDP exchanges by itself."""

Law = Callable[[Controller[Any]], None]
"""Function that raises an ``AssertionError`` if a controller breaks a law."""

Measure = Callable[[int, Decision], Measurement]
"""Function that returns the made-up measurement of a step.

Arguments: number of earlier training steps, and the decision that applies in the step."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a run in which a controller gets made-up measurements; see ``drive``.

    Attributes:
        applied: decision that applied in the step.
        measured: measurement of the step.
        state: state of the controller after it observed ``measured``.
        decision: decision that the controller made by ``measured``. It applies two steps later, or as many
            steps as the controller's attribute ``latency`` says; after native steps at once.
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
    """Run a controller on made-up measurements, with the latency of training; yield each step.

    Args:
        controller: controller to drive.
        forecasts: forecasts of the candidates that the controller may select; the first candidate is dense.
        measure: function that gets the number of earlier training steps and the decision that applies in the step, and
            returns the measurement of the step.
        steps: number of measurements. Each is of one training step, of successive native steps, or of a round (outer
            steps up to an exchange).
        reload: whether the state is dumped to JSON and restored after every step.

    Yields:
        Each step, with the decision that applied in the step and the decision from the step's measurement.

    Example:
        >>> from gravac.controllers.static import Static
        >>> static = Static(cf=10)
        >>> steps = list(drive(static, forecasts_of(static), turbulent, 3))
        >>> {str(step.decision.candidate) for step in steps}
        {'any 10x'}
    """
    state, decision = controller.start(forecasts)
    latency, trained_steps = getattr(controller, "latency", LATENCY), 0
    pending_decisions = deque([decision] * latency)
    current_mode, previous_candidate = decision.candidate.mode, decision.candidate
    for step in range(steps):
        applied_decision = pending_decisions.popleft()
        # ranks learn of another mode when a step begins, and change the mode after that step
        if applied_decision.candidate.mode != current_mode:
            current_mode, applied_decision = applied_decision.candidate.mode, Decision(previous_candidate)
        previous_candidate = applied_decision.candidate
        measured = replace(
            measure(trained_steps, applied_decision),
            step=step,
            first=trained_steps,
            steps=_covered_steps(applied_decision),
            **(ONLY_TIME_IS_KNOWN if previous_candidate.mode == "native" else {}),
        )
        trained_steps += measured.steps
        state, decision = controller.observe(state, measured)
        yield Step(applied_decision, measured, state, decision)
        pending_decisions.append(decision)
        if previous_candidate.mode == "native":
            pending_decisions, current_mode = deque([decision] * latency), decision.candidate.mode
        if reload:
            state, restored_decision = controller.restore(_plain_dump(controller, state, step), forecasts)
            assert restored_decision == decision or _without_words(restored_decision) == _without_words(decision), (
                f"step {step}: decided {decision}, after a restore {restored_decision}"
            )


def _without_words(decision: Decision) -> Decision:
    """Return a decision without the reason and the summary, which ``restore`` need not repeat."""
    return replace(decision, reason="", summary=None)


def _plain_dump(controller: Controller[Any], state: Any, step: int) -> dict[str, Any]:
    """Return a dump of a state after it was written to JSON and read back; check that the dump did not change."""
    state_dump = controller.dump(state)
    read_back: dict[str, Any] = json.loads(json.dumps(state_dump, allow_nan=False))
    assert read_back == state_dump, (
        f"step {step}: the dump {state_dump} changes when it is written to JSON and read back; use lists in place "
        "of tuples, and texts as keys"
    )
    return read_back


def _covered_steps(decision: Decision) -> int:
    """Return the number of training steps that one measurement covers while a decision applies.

    More than 1 for successive native steps, and for a round of outer steps.
    """
    return decision.watch if decision.candidate.mode == "native" else decision.candidate.every


def forecast_of(compressor: str, cf: float, mode: Mode = "hook") -> Forecast:
    """Return a made-up forecast of a compressor at a CF, which sends ``cf`` times fewer bytes than dense float32.

    Example:
        >>> forecast_of("any", 10.0).wire_ratio
        10.0
    """
    return Forecast(Candidate(mode, compressor, cf), wire_ratio=cf, family=mode if mode == "native" else "")


def forecasts_of(controller: Controller[Any], cf_range: tuple[float, float] = (10.0, 1000.0)) -> tuple[Forecast, ...]:
    """Return forecasts of dense, and of a made-up compressor ``"any"`` at the CFs that the controller proposes.

    Example:
        >>> from gravac.controllers.static import Static
        >>> ", ".join(str(forecast.candidate) for forecast in forecasts_of(Static(cf=10)))
        'dense 1x, any 10x'
    """
    cfs = controller.propose(cf_range, Span(*cf_range))
    return (forecast_of(DENSE, 1.0), *(forecast_of("any", cf) for cf in cfs))


def turbulent(step: int, decision: Decision) -> Measurement:
    """Return a made-up measurement whose gain falls with the CF and oscillates over hundreds of steps.

    Step times are noisy, the norms of three tensors oscillate, and the learning rate is halved every 90 steps. So a
    controller makes many kinds of decisions.

    Args:
        step: number of earlier training steps.
        decision: decision that applies in the step.
    """
    gain_scale = 0.55 + 0.45 * math.cos(step / 60)
    energy = 3.0 + math.sin(step)

    def error_at(cf: float) -> float:
        return energy * (1 - gain_scale * math.pow(cf, -0.15))

    cf = decision.candidate.cf
    reported_names = TENSORS if decision.sums == "report" else ()
    norms = tuple((name, 2 + math.sin(step / 40 + 2 * i) + i * math.cos(step)) for i, name in enumerate(reported_names))
    return Measurement(
        step=step,
        candidate=decision.candidate,
        seconds=0.02 + 0.5 / cf + 0.002 * math.sin(7.0 * step * step),
        samples=64.0,
        error=0.0 if decision.candidate.dense else error_at(cf),
        energy=energy,
        shadow=tuple((shadow_cf, error_at(shadow_cf)) for shadow_cf in decision.shadow),
        learning_rate=0.1 * math.pow(0.5, step // 90),
        norms=norms,
    )


def broken(step: int, decision: Decision) -> Measurement:
    """Return a measurement as ``turbulent`` does, with a missing, wrong or non-finite number in two of three steps.

    Args:
        step: number of earlier training steps.
        decision: decision that applies in the step.
    """
    measurement = turbulent(step, decision)
    bad_number = (math.nan, math.inf, -math.inf)[step % 3]
    faulty_fields: tuple[dict[str, Any], ...] = (
        {"error": bad_number},
        {"energy": bad_number},
        {"error": bad_number, "energy": bad_number},
        {"seconds": bad_number},
        {"seconds": 0.0},
        {"error": 0.0, "energy": 0.0, "shadow": tuple((cf, 0.0) for cf in decision.shadow)},
        {"shadow": ()},
        {"shadow": tuple((cf, bad_number) for cf in decision.shadow)},
        {"error": 4 * measurement.energy},
        {"learning_rate": bad_number, "norms": tuple((name, bad_number) for name, _ in measurement.norms)},
        {"learning_rate": 0.0, "norms": tuple((name, 0.0) for name, _ in measurement.norms)},
        {"norms": ()},
        {"seconds": 1e4},
    )
    return replace(measurement, **faulty_fields[(step * 7 // 3) % len(faulty_fields)]) if step % 3 else measurement


def the_same_measurements_give_the_same_decisions(controller: Controller[Any]) -> None:
    """Check that a controller makes the same decisions in two equal runs, while a third run gets other measurements.

    A controller must therefore keep all that it remembers in the state.
    """
    forecasts = forecasts_of(controller)
    expected_decisions = [step.decision for step in _shared_run(controller, forecasts, turbulent)]
    other_drive = drive(controller, forecasts, broken)
    second_drive = drive(controller, forecasts, turbulent)
    for i, (step, expected) in enumerate(zip(second_drive, expected_decisions, strict=True)):
        next(other_drive)
        assert step.decision == expected, (
            f"step {i}: decided {expected}, but {step.decision} in an equal second run; keep all that the controller "
            "remembers in the state"
        )


def observing_leaves_the_state_alone(controller: Controller[Any]) -> None:
    """Check that ``observe`` does not change its argument ``state``: a second call returns the same decision."""
    forecasts = forecasts_of(controller)
    previous_state_and_dump = None
    for i, step in enumerate(drive(controller, forecasts, turbulent)):
        if previous_state_and_dump is not None:
            state, state_dump = previous_state_and_dump
            assert controller.dump(state) == state_dump, (
                f"step {i}: observe changed its argument state; return a new state"
            )
            repeated_decision = controller.observe(state, step.measured)[1]
            assert repeated_decision == step.decision, (
                f"step {i}: decided {step.decision}, but {repeated_decision} in a second call of observe with the same "
                "state; keep all that the controller remembers in the state"
            )
        previous_state_and_dump = step.state, controller.dump(step.state)


def only_given_candidates_are_decided(controller: Controller[Any]) -> None:
    """Check that decisions have only candidates that ``start`` got, also for single tensors (``Decision.tensors``).

    If ``start`` got a native candidate, the controller may also select the same candidate in mode ``hook``. The names
    in ``Decision.tensors`` must ascend, and their candidates must differ from that of the model.
    """
    for forecasts, measure in _cases(controller):
        allowed_candidates = _allowed_candidates(forecasts)
        for decision in _decisions(controller, forecasts, measure):
            assert decision.candidate in allowed_candidates, (
                f"decided {decision.candidate}, which is not among the forecasts of start"
            )
            names = [name for name, _ in decision.tensors]
            assert set(TENSORS).issuperset(names), f"decision.tensors names {names}, but the tensors are {TENSORS}"
            assert all(first < second for first, second in itertools.pairwise(names)), (
                f"decision.tensors: the names {names} do not ascend"
            )
            for name, candidate in decision.tensors:
                assert candidate in allowed_candidates, (
                    f"{name}: decided {candidate}, which is not among the forecasts of start"
                )
                assert candidate != decision.candidate, (
                    f"{name}: {candidate} is the model's candidate; leave the tensor out"
                )


def a_change_is_told_with_its_reason(controller: Controller[Any]) -> None:
    """Check that a decision has a reason if it changes a running candidate or has a summary, and no reason otherwise.

    A summary has the gain and the throughput of the window that has ended.
    """
    for forecasts, measure in _cases(controller):
        decisions = itertools.pairwise(_decisions(controller, forecasts, measure))
        for i, (previous, decision) in enumerate(decisions):
            needs_reason = decision.runs != previous.runs or decision.summary is not None
            assert bool(decision.reason) == needs_reason, (
                f"step {i}: the decision changes a running candidate, or has a summary, but has no reason"
                if needs_reason
                else f"step {i}: the decision changes no candidate and has no summary, but has the reason "
                f"{decision.reason!r}; leave the reason empty"
            )


def shadows_are_few_ascending_and_given(controller: Controller[Any]) -> None:
    """Check that a decision has at most ``SHADOWS`` shadow CFs, ascending, all of them CFs of compressed candidates."""
    for forecasts, measure in _cases(controller):
        allowed_cfs = {forecast.candidate.cf for forecast in forecasts if not forecast.candidate.dense}
        for decision in _decisions(controller, forecasts, measure):
            shadow_cfs = decision.shadow
            assert len(shadow_cfs) <= SHADOWS, (
                f"{len(shadow_cfs)} shadow CFs {shadow_cfs}; at most {SHADOWS} are allowed"
            )
            assert all(lower_cf < higher_cf for lower_cf, higher_cf in itertools.pairwise(shadow_cfs)), (
                f"shadow CFs {shadow_cfs} do not ascend"
            )
            assert allowed_cfs.issuperset(shadow_cfs), (
                f"shadow CFs {shadow_cfs} are not all among {sorted(allowed_cfs)}"
            )


def the_state_dumps_as_plain_values(controller: Controller[Any]) -> None:
    """Check after every step that what ``dump`` returns can be written to JSON and read back unchanged.

    NaN and infinity are not allowed. ``a_restored_state_goes_on_identically`` checks the dumps of the other cases.
    """
    for forecasts, measure in _cases_to_dump(controller):
        for i, step in enumerate(_shared_run(controller, forecasts, measure)):
            _plain_dump(controller, step.state, i)


def a_restored_state_goes_on_identically(controller: Controller[Any]) -> None:
    """Check that a run makes the same decisions if the controller's state is dumped and restored after every step."""
    for forecasts, measure in _cases_to_reload(controller):
        uninterrupted_steps = _shared_run(controller, forecasts, measure)
        reloaded_steps = drive(controller, forecasts, measure, reload=True)
        for i, (expected_step, step) in enumerate(zip(uninterrupted_steps, reloaded_steps, strict=True)):
            assert expected_step.decision == step.decision, (
                f"step {i}: decided {expected_step.decision}, but {step.decision} if the state is restored after "
                "every step"
            )


def a_state_restores_with_other_candidates(controller: Controller[Any]) -> None:
    """Check that after ``restore`` with fewer or more candidates, decisions have only the candidates of ``restore``.

    Each dump is restored with every second list of candidates, and with the others at the next dump of the run.
    """
    all_forecasts = forecasts_of(controller)
    forecast_lists = [all_forecasts[:1], all_forecasts[:2], (all_forecasts[0], *all_forecasts[2:]), all_forecasts]
    if has_flag(controller, "chooses_native"):
        forecast_lists += [
            (forecast_of(DENSE, 1.0, "native"), *all_forecasts[1:]),
            (forecast_of(DENSE, 1.0, "native"),),
        ]
    for list_number, forecasts in enumerate(forecast_lists):
        for i, step in itertools.islice(enumerate(drive(controller, forecasts, turbulent, 200)), 0, None, 15):
            state_dump = json.loads(json.dumps(controller.dump(step.state)))
            for forecasts_at_restore in forecast_lists[(list_number + i) % 2 :: 2]:
                allowed_candidates = _allowed_candidates(forecasts_at_restore)
                compressed_cfs = {candidate.cf for candidate in allowed_candidates if not candidate.dense}
                state, decision = controller.restore(state_dump, forecasts_at_restore)
                for j in range(40):
                    for candidate in (decision.candidate, *(candidate for _, candidate in decision.tensors)):
                        assert candidate in allowed_candidates, (
                            f"dumped at step {i}: decided {candidate}, which is not among the forecasts of restore"
                        )
                    assert compressed_cfs.issuperset(decision.shadow), (
                        f"dumped at step {i}: not all shadow CFs {decision.shadow} are of candidates that restore got"
                    )
                    state, decision = controller.observe(state, turbulent(i + j, decision))


def broken_measurements_do_not_raise(controller: Controller[Any]) -> None:
    """Check that ``observe`` raises no exception if numbers of a measurement are zero, not finite or missing."""

    def always_broken(step: int, decision: Decision) -> Measurement:
        return broken(3 * step + 1 + step % 2, decision)

    for measure in (broken, always_broken):
        for step in _shared_run(controller, forecasts_of(controller), measure):
            json.dumps(controller.dump(step.state), allow_nan=False)


def dense_alone_is_enough(controller: Controller[Any]) -> None:
    """Check that if dense is the only candidate, a controller decides dense for all tensors, without shadow CFs."""
    dense_forecasts = forecasts_of(controller)[:1]
    for measure in (turbulent, broken):
        runs_and_shadows = {
            (decision.runs, decision.shadow) for decision in _decisions(controller, dense_forecasts, measure)
        }
        assert runs_and_shadows == {((dense_forecasts[0].candidate, ()), ())}, (
            f"decided {runs_and_shadows}, but dense is the only candidate"
        )


def proposals_are_in_reach(controller: Controller[Any]) -> None:
    """Check that proposed CFs ascend, that the compressor supports them, and that each is in the user's range.

    CFs 1 (dense float32) and 2 (16 bit) may be outside the range.
    """
    for lowest_cf, highest_cf in RANGES:
        listed_cfs = tuple(cf for cf in SUPPORTED_CFS if lowest_cf <= cf <= highest_cf)
        for supported_cfs in (Span(lowest_cf, highest_cf), listed_cfs):
            proposed_cfs = controller.propose((lowest_cf, highest_cf), supported_cfs)
            assert all(lower_cf < higher_cf for lower_cf, higher_cf in itertools.pairwise(proposed_cfs)), (
                f"proposed {proposed_cfs}, which do not ascend"
            )
            cfs_outside = [cf for cf in proposed_cfs if not (lowest_cf <= cf <= highest_cf or cf in (1.0, 2.0))]
            assert not cfs_outside, f"proposed {cfs_outside}, outside the range ({lowest_cf:g}, {highest_cf:g})"
            if not isinstance(supported_cfs, Span):
                assert set(supported_cfs).issuperset(proposed_cfs), (
                    f"proposed {proposed_cfs}, but the compressor supports {supported_cfs}"
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
"""All laws for controllers. If several fail, read the first failure first."""


def check_controller(controller: Controller[Any]) -> None:
    """Check that a controller obeys every law; the error has the law's name, the case and the decisions."""
    for law in LAWS:
        try:
            law(controller)
        except AssertionError as error:
            raise AssertionError(f"{law.__name__}: {error}") from error


def _decisions(controller: Controller[Any], forecasts: Sequence[Forecast], measure: Measure) -> Iterator[Decision]:
    """Run a controller for ``STEPS`` steps; yield the decision of ``start``, then the decision after every step."""
    yield controller.start(forecasts)[1]
    yield from (step.decision for step in _shared_run(controller, forecasts, measure))


def _allowed_candidates(forecasts: Sequence[Forecast]) -> set[Candidate]:
    """Return the candidates that a controller may select: those of the forecasts, and native ones in the hook, too."""
    candidates = {forecast.candidate for forecast in forecasts}
    return candidates | {candidate.in_hook for candidate in candidates if candidate.mode == "native"}


_latest_runs: list[tuple[Controller[Any], dict[Any, list[Step]]]] = []
"""The controller whose laws were checked last, and its runs, which the laws share; empty before the first."""


def _shared_run(controller: Controller[Any], forecasts: Sequence[Forecast], measure: Measure) -> list[Step]:
    """Return the steps of a run of ``STEPS`` steps; the same run for all laws of a controller."""
    if not (_latest_runs and _latest_runs[0][0] is controller):
        _latest_runs[:] = [(controller, {})]
    runs, case = _latest_runs[0][1], (tuple(forecasts), measure)
    if case not in runs:
        runs[case] = [*drive(controller, forecasts, measure)]
    return runs[case]


Case = tuple[tuple[Forecast, ...], Measure]
"""Forecasts and measurements of a run."""


def _cases_to_reload(controller: Controller[Any]) -> list[Case]:
    """Return half of ``_cases``, and the first: each list of forecasts, with good and with broken measurements in turn.

    A run that restores the state after every step takes several times as long as the run itself.
    """
    return [case for i, case in enumerate(_cases(controller)) if i % 4 in (1, 2) or i == 0]


def _cases_to_dump(controller: Controller[Any]) -> list[Case]:
    """Return the other half of ``_cases``."""
    return [case for i, case in enumerate(_cases(controller)) if i % 4 in (0, 3)]


def _cases(controller: Controller[Any]) -> list[Case]:
    """Return ``(forecasts, measure)`` for all cases that laws check.

    Cases differ in CF range, in the dense candidates (32 bit, 16 bit or both; native if the controller allows it), and
    in whether the measurements are good or broken.
    """
    wide_forecasts, narrow_forecasts = forecasts_of(controller), forecasts_of(controller, (1.0, 100.0))
    dense_16_bit_forecast = forecast_of(DENSE, 2.0)
    forecast_lists = [wide_forecasts, narrow_forecasts, (dense_16_bit_forecast, *wide_forecasts[1:])]
    if controller.chooses_sixteen_bit:
        forecast_lists += [
            (wide_forecasts[0], dense_16_bit_forecast, *wide_forecasts[1:]),
            (wide_forecasts[0], dense_16_bit_forecast),
        ]
    if has_flag(controller, "chooses_native"):
        dense_native_forecast = forecast_of(DENSE, 1.0, "native")
        forecast_lists += [(dense_native_forecast, *wide_forecasts[1:]), (dense_native_forecast,)]
        if controller.chooses_sixteen_bit:
            forecast_lists += [
                (dense_native_forecast, dense_16_bit_forecast, forecast_of(DENSE, 2.0, "native"), *wide_forecasts[1:]),
                (dense_native_forecast, dense_16_bit_forecast),
            ]
    return [(forecasts, measure) for forecasts in forecast_lists for measure in (turbulent, broken)]
