# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Every controller obeys every law, a controller that breaks one is caught by it, and so does the documented one."""

import math
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gravac import controllers
from gravac.candidate import Candidate, Forecast, Span
from gravac.controllers import CONTROLLERS, Accordion, Controller, Decision, Measurement, Static, Warmup
from gravac.controllers.base import adapt_to_latency
from gravac.controllers.static import StaticState
from gravac.settings import SettingsError
from tests.controllers import laws as conformance
from tests.controllers.laws import Law
from tests.packaging.test_docs_run import example

pytestmark = pytest.mark.timeout(60)

OURS = {
    "accordion": controllers.Accordion(),
    "accordion, fast": controllers.Accordion(epoch=11, every=2, eta=0.3),
    "accordion, every epoch": controllers.Accordion(epoch=3, every=1, window=1),
    "gravac": controllers.GraVAC(),
    "gravac, fast": controllers.GraVAC(window=5, warmup=3, shadow_every=2, dwell=1, expire=2),
    "gravac, absolute": controllers.GraVAC(epsilon_mode="absolute", epsilon=0.4, window=8, dwell=2),
    "gravac, no warm-up": controllers.GraVAC(warmup=0, step="geometric", window=6, epsilon=0.05, shadow_every=3),
    "literal": controllers.GraVAC(paper_literal=True),
    "literal, fast": controllers.GraVAC(paper_literal=True, window=5, epsilon=0.4, step="geometric"),
    "static": controllers.Static(cf=10),
    "static, dense": controllers.Static(cf=1),
    "goodput": controllers.Goodput(),
    "warmup": controllers.Warmup(every=30),
}

AS_ON_STREAMS = ("accordion, fast", "gravac, fast", "literal, fast", "static", "warmup")
"""Controllers that are checked with decisions that take three steps; the others with two. A nightly run checks all
controllers with both."""


class Late:
    """A controller whose decisions take effect three steps after what they are made from, as on streams."""

    latency = 3

    def __init__(self, controller: Any) -> None:
        self._controller = adapt_to_latency(controller, self.latency)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in AS_ON_STREAMS else []) for name in OURS]
)
def test_obeys(name: str) -> None:
    conformance.check_controller(OURS[name])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in AS_ON_STREAMS else [pytest.mark.long])
        for name in OURS
        if "every epoch" not in name
    ],
)
def test_obeys_where_decisions_take_three_steps(name: str) -> None:
    conformance.check_controller(Late(OURS[name]))  # type: ignore[arg-type]


def test_a_warm_up_is_on_time_at_either_latency() -> None:
    warmup = Warmup(cf=64, first=4, factor=4, every=10)
    for latency in (2, 3):
        controller = adapt_to_latency(warmup, latency)
        forecasts = conformance.forecasts_of(controller, (1.0, 100.0))
        ran = [
            step.applied.candidate.cf for step in conformance.drive(controller, forecasts, conformance.turbulent, 30)
        ]
        assert ran == [4.0] * 10 + [16.0] * 10 + [64.0] * 10


def test_an_epoch_shorter_than_the_latency_is_refused() -> None:
    with pytest.raises(SettingsError, match="epoch: an epoch has 3 steps, but a decision takes 3"):
        adapt_to_latency(Accordion(epoch=3), 3)


def test_every_controller_by_name_is_here() -> None:
    assert {type(controller).name for controller in OURS.values()} == set(CONTROLLERS)


def test_the_made_up_training_takes_gravac_through_all_it_can_do() -> None:
    told = []
    for measure in (conformance.turbulent, conformance.broken):
        named = [OURS[name] for name in ("gravac, fast", "gravac, absolute", "gravac, no warm-up")]
        steadier = OURS["gravac, absolute"](band=5.0, fall=0.99, window=5)
        for controller in (*named, OURS["gravac, fast"](band=0.05, fall=0.99), steadier):
            steps = conformance.drive(controller, conformance.forecasts_of(controller), measure)
            told += [step.decision.reason for step in steps]
    said = "\n".join(told)
    for transition in (
        "sets ε",
        "try any 20x",
        "refused, with all higher CFs",
        "and all higher CFs are not tried",
        "run any 10x: compression throughput",
        "keep any",
        "down to any 10x",
        "fell below ε 0.4: switched to dense",
        "at least until step",
        ", computed without sending, reaches ε",
        " yet: try the CFs again",
        "differs by more than",
    ):
        assert transition in said, f"never happens: {transition}"


class Flawed(Static):
    """Static, to be spoilt."""

    name: ClassVar[str] = "flawed"

    def __init__(self) -> None:
        super().__init__(cf=10)


class Remembers(Flawed):
    """Keeps the best time on the class."""

    seen: ClassVar[list[float]] = []

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        state, decision = super().observe(state, measurement)
        self.seen.append(measurement.seconds)
        return state, replace(decision, shadow=(10.0,) if measurement.seconds == min(self.seen) else ())


class Mutates(Flawed):
    """Its state is changed in place."""

    def start(self, forecasts: Sequence[Forecast]) -> Any:
        first = forecasts[0].candidate
        return {"n": 0, "c": first}, Decision(first, reason="start")

    def observe(self, state: Any, measurement: Measurement) -> Any:
        state["n"] += 1
        return state, Decision(state["c"])

    def dump(self, state: Any) -> dict[str, Any]:
        return {"n": state["n"]}


class Invents(Flawed):
    """Decides what it was not given."""

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        state, decision = super().observe(state, measurement)
        return state, replace(decision, candidate=Candidate("hook", "topk", 11.0))


class ChangesUntold(Flawed):
    """Changes what runs without a reason."""

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        state, decision = super().observe(state, measurement)
        return state, replace(decision, tensors=(("w", decision.candidate),) if measurement.step == 5 else ())


class GivesNoReason(Flawed):
    """Summaries without a reason."""

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        state, decision = super().observe(state, measurement)
        return state, replace(decision, reason="")


class AsksForTooMuch(Flawed):
    """Six shadows."""

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        return (10.0, 20.0, 30.0, 40.0, 50.0, 60.0)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        state, decision = super().start(forecasts)
        return state, replace(decision, shadow=tuple(forecast.candidate.cf for forecast in forecasts[1:]))


class AsksBackwards(AsksForTooMuch):
    """Descending shadows."""

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        state, decision = super().start(forecasts)
        return state, replace(decision, shadow=decision.shadow[1::-1])


class AsksForDense(Flawed):
    """A shadow of dense."""

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        state, decision = super().start(forecasts)
        return state, replace(decision, shadow=(1.0,))


class DumpsNaN(Flawed):
    """NaN in the dump."""

    def dump(self, state: StaticState) -> dict[str, Any]:
        return {**super().dump(state), "best": math.nan}


class DumpsTuples(Flawed):
    """A tuple in the dump."""

    def dump(self, state: StaticState) -> dict[str, Any]:
        return {**super().dump(state), "pair": (1, 2)}


class Forgets(Flawed):
    """Restores as if from the start."""

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        return self.start(forecasts)


class KeepsOldCandidates(Flawed):
    """Restores to what is not given any more."""

    def dump(self, state: StaticState) -> dict[str, Any]:
        return {**super().dump(state), "cf": state.candidate.cf}

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        state, decision = super().restore(plain, forecasts)
        kept = Candidate("hook", "any" if plain["cf"] > 1 else "dense", plain["cf"])
        return replace(state, candidate=kept), replace(decision, candidate=kept)


class RaisesOnNaN(Flawed):
    """Needs a positive energy."""

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        math.log(measurement.energy)
        return super().observe(state, measurement)


class NeedsShadows(Flawed):
    """Needs every shadow it asked for."""

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        state, decision = super().start(forecasts)
        return state, replace(decision, shadow=tuple(forecast.candidate.cf for forecast in forecasts[1:]))

    def observe(self, state: StaticState, measurement: Measurement) -> tuple[StaticState, Decision]:
        if state.candidate.cf == 10:
            assert measurement.shadow
        state, decision = super().observe(state, measurement)
        return state, replace(decision, shadow=(10.0,) if state.candidate.cf == 10 else ())


class NeedsACandidate(Flawed):
    """Needs more than dense."""

    def start(self, forecasts: Sequence[Forecast]) -> tuple[StaticState, Decision]:
        return super().start((forecasts[0], forecasts[1]))


class ProposesAnything(Flawed):
    """Whatever the range."""

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        return (10.0,)


class ProposesBackwards(Flawed):
    """Highest first."""

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        return (cf_range[1], cf_range[0])


FLAWS: tuple[tuple[type[Flawed], Law], ...] = (
    (Remembers, conformance.the_same_measurements_give_the_same_decisions),
    (Mutates, conformance.observing_leaves_the_state_alone),
    (Invents, conformance.only_given_candidates_are_decided),
    (ChangesUntold, conformance.a_change_is_told_with_its_reason),
    (GivesNoReason, conformance.a_change_is_told_with_its_reason),
    (AsksForTooMuch, conformance.shadows_are_few_ascending_and_given),
    (AsksBackwards, conformance.shadows_are_few_ascending_and_given),
    (AsksForDense, conformance.shadows_are_few_ascending_and_given),
    (DumpsNaN, conformance.the_state_dumps_as_plain_values),
    (DumpsTuples, conformance.the_state_dumps_as_plain_values),
    (Forgets, conformance.a_restored_state_goes_on_identically),
    (KeepsOldCandidates, conformance.a_state_restores_with_other_candidates),
    (RaisesOnNaN, conformance.broken_measurements_do_not_raise),
    (NeedsShadows, conformance.broken_measurements_do_not_raise),
    (NeedsACandidate, conformance.dense_alone_is_enough),
    (ProposesAnything, conformance.proposals_are_in_reach),
    (ProposesBackwards, conformance.proposals_are_in_reach),
)


@pytest.mark.parametrize(("flawed", "law"), FLAWS, ids=lambda one: one.__name__)
def test_a_flaw_is_caught(flawed: type[Flawed], law: Law) -> None:
    with pytest.raises((AssertionError, ValueError, IndexError)):
        law(flawed())


def test_every_law_catches_something() -> None:
    assert {law for _, law in FLAWS} == set(conformance.LAWS)


def test_the_controller_in_the_documentation_obeys(tmp_path: Path) -> None:
    (tmp_path / "documented.py").write_text(example("Climb"), encoding="utf-8")
    controller: Controller[Any] = runpy.run_path(str(tmp_path / "documented.py"))["Climb"]()
    conformance.check_controller(controller)
