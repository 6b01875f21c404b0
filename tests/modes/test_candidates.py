# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which native, hook and outer candidates a run may choose from."""

from typing import Any

import pytest
import torch

from gravac import Accordion, Goodput, GraVAC, SettingsError, Static, Warmup
from gravac.candidate import Candidate, Forecast
from gravac.compressors import ladder, powersgd, quantize, topk
from gravac.engine.admission import LEAST_HOOK_EFFICIENCY, Admission, averager_of
from gravac.engine.run_state import RunState
from gravac.exchange.link_probe import LinkProbe
from gravac.modes.candidates import RunAdmission
from gravac.policy import Policy
from gravac.telemetry.descriptions import describe_dropped

FORMS = [((512, 512), torch.float32)] * 4
NATIVE, NATIVE16 = Candidate("native", "dense", 1.0), Candidate("native", "dense", 2.0)


def admitted(
    compute_s: float | None = None, at: tuple[float, ...] = (1.0, 2.0), **settings: Any
) -> tuple[dict[Candidate, Forecast], Admission]:
    """Forecasts by candidate, and all that was admitted, of two ranks on a slow link."""
    policy = Policy(**{"base": ladder, "controller": Goodput(), **settings})
    averager = averager_of(policy)
    averager.world = 2
    link = LinkProbe(latency=1e-4, bandwidth=2e7, copy_bytes_per_s=5e9)
    admit = RunAdmission(policy, averager, link, native_cfs=at, leaving_bytes=10_000_000)
    state = RunState(world=2, compute_s=compute_s)
    admission = admit(state, FORMS)
    forecasts = {forecast.candidate: forecast for forecast in admission.forecasts}
    assert state.candidates == [*forecasts]
    return forecasts, admission


def test_native_takes_the_place_of_the_hooks_float32_and_stands_beside_its_16_bit() -> None:
    forecasts, _ = admitted()
    first, second, third = [*forecasts][:3]
    assert (first, third) == (NATIVE, NATIVE16)
    assert (second.mode, second.cf) == ("hook", 2.0)
    assert Candidate("hook", "dense", 1.0) not in forecasts
    assert (forecasts[NATIVE].family, forecasts[NATIVE].coding_s) == ("native", 0.0)
    assert forecasts[NATIVE16].efficiency == forecasts[second].efficiency
    assert forecasts[NATIVE].exchange_s > 0


@pytest.mark.parametrize(
    ("native", "settings"),
    [
        ((), {}),
        ((1.0, 2.0), {"native": False}),
        ((1.0, 2.0), {"every": 10}),
        ((1.0, 2.0), {"controller": Static(cf=8)}),
        ((1.0, 2.0), {"controller": GraVAC(paper_literal=True)}),
    ],
)
def test_no_native_candidate_where_it_may_not_be(native: tuple[float, ...], settings: dict[str, Any]) -> None:
    forecasts, _ = admitted(0.1, native, **settings)
    assert "native" not in {candidate.mode for candidate in forecasts}


def test_without_16_bit_there_is_no_native_float16() -> None:
    assert NATIVE16 not in admitted(sixteen_bit=False)[0]
    assert NATIVE16 not in admitted(at=(1.0,))[0]


def test_outer_steps_wait_for_what_compute_takes() -> None:
    forecasts, admission = admitted(every=(1, 100))
    assert admission.lacks_compute_time
    assert {candidate.mode for candidate in forecasts} == {"native", "hook"}
    later, admission = admitted(0.1, every=(1, 100))
    assert not admission.lacks_compute_time
    assert [*later][: len(forecasts)] == [*forecasts]
    assert {candidate.mode for candidate in [*later][len(forecasts) :]} == {"outer"}


def test_outer_steps_beside_others_have_a_price_and_are_believed_the_same() -> None:
    beside, alone = admitted(0.1, every=(1, 10))[0], admitted(0.1, every=(2, 10))[0]
    common = [candidate for candidate in beside if candidate in alone]
    assert {candidate.every for candidate in common} >= {2, 10}
    for candidate in common:
        assert beside[candidate].efficiency == alone[candidate].efficiency
        assert beside[candidate].deviation == alone[candidate].deviation > 0
        assert beside[candidate].leaving_s == pytest.approx(2 * 1e-4 + 8e7 / 2e7, rel=0.01)
        assert alone[candidate].leaving_s is None


@pytest.mark.parametrize("least", [0.5, 0.9, 0.98, 1.0])
def test_only_candidates_that_surely_make_enough_progress_are_admitted(least: float) -> None:
    every, enough = admitted(0.1, every=(1, 10))[0], admitted(0.1, every=(1, 10), least_efficiency=least)[0]
    for candidate, forecast in every.items():
        kept = (candidate.dense and candidate.mode != "outer") or forecast.least_efficiency >= least
        assert (candidate in enough) == kept
    assert NATIVE in enough and NATIVE16 in enough
    assert least < 1 or {candidate.dense for candidate in enough} == {True}


def test_what_makes_too_little_progress_is_told_with_the_figures() -> None:
    dropped = admitted(least_efficiency=0.98)[1].dropped
    too_little = [one for one in dropped if one.cause == "too_little_progress"]
    assert too_little and all(one.ratio < 1 for one in too_little)
    for one in too_little:
        words = describe_dropped(one, 2)
        bound = f"{one.forecast.least_efficiency:.2g}"
        assert words.endswith(f": lower bound of efficiency {bound}, below least_efficiency 0.98")
    assert not any(one.cause == "too_little_progress" for one in admitted(base=topk)[1].dropped)


@pytest.mark.parametrize("base", [ladder, "ladder"], ids=["object", "name"])
def test_goodput_over_the_ladder_takes_no_hook_step_of_little_progress_by_itself(base: Any) -> None:
    forecasts, admission = admitted(0.1, base=base, every=(1, 10))
    hook = [forecast for candidate, forecast in forecasts.items() if candidate.mode == "hook"]
    assert min(forecast.least_efficiency for forecast in hook) >= LEAST_HOOK_EFFICIENCY
    assert {"low rank 4", "1 bit"} <= {forecast.method for forecast in hook}
    dropped = {one.forecast.method for one in admission.dropped if one.cause == "too_little_progress"}
    assert {"low rank 2", "low rank 1"} <= dropped
    # outer steps stay as they were
    outer = {candidate for candidate in forecasts if candidate.mode == "outer"}
    assert outer == {c for c in admitted(0.1, every=(1, 10), least_efficiency=1e-9)[0] if c.mode == "outer"}


@pytest.mark.parametrize(
    "settings",
    [
        {"base": topk, "cf_range": (10, 1000)},  # AdaptiveCompressor(topk, cf_range=(10, 1000))
        {"base": powersgd},
        {"base": ladder(quantize, powersgd(2))},
        {"least_efficiency": 0.01},
        *({"controller": controller} for controller in (GraVAC(), Static(cf=256), Accordion(), Warmup())),
    ],
    ids=str,
)
def test_what_the_user_named_is_admitted_at_any_efficiency(settings: dict[str, Any]) -> None:
    forecasts, admission = admitted(**settings)
    dropped = [one for one in admission.dropped if one.cause == "too_little_progress"]
    assert all(one.forecast.least_efficiency < settings.get("least_efficiency", 0) for one in dropped)
    assert min(forecast.least_efficiency for forecast in forecasts.values()) < LEAST_HOOK_EFFICIENCY
    if settings.get("base") is topk:
        compressed = [candidate.cf for candidate in forecasts if candidate.compressor == "topk"]
        assert (min(compressed), max(compressed)) == (10, 1000)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"least_efficiency": 0.0}, "least_efficiency"),
        ({"least_efficiency": 1.1}, "least_efficiency"),
        ({"least_efficiency": "most"}, "least_efficiency"),
        ({"least_efficiency": 0.9, "controller": Static(cf=8)}, "static runs its candidates at any efficiency; leave"),
        ({"least_efficiency": 0.9, "every": (5, 10)}, r"every=5 leaves no candidate .* use every=\(1, 10\)"),
    ],
)
def test_least_efficiency_is_refused_where_it_leaves_no_choice(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        Policy(**{"base": ladder, "controller": Goodput(), **settings})
