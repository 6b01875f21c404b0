# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Admission live, replayed, and replayed from a record of version 1, which had candidates in words: the same."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from gravac import Policy, ladder, powersgd, quantize
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.candidate import Candidate, Dropped, Forecast
from gravac.controllers import Goodput, GraVAC, Static
from gravac.exchange.link_probe import LinkProbe
from gravac.replay import admit_recorded, read_trace, replay
from gravac.replay.old_records import run_of_words
from gravac.settings import SettingsError
from gravac.stepping.admission import Admission, admit
from gravac.telemetry import RunRecord
from tests.test_replay import record_run, topk_policy

pytestmark = pytest.mark.timeout(60)

OLD = (
    '{"kind":"run","settings":{"base":"topk","window":20},"world_size":3,"candidates":['
    '"dense 1x (predicted wire ratio 1.00, worth 1, coding 0 ms, exchange 12.5 ms)",'
    '"dense 2x (predicted wire ratio 2.00, worth 1)","topk 10x (predicted wire ratio 2.50)",'
    '"ladder 3.93846x (predicted wire ratio 3.88, worth 0.9731, coding 4.02 ms, exchange 3.22 ms)","who knows"],'
    '"dropped":["topk 4x: would send 2.00 times the bytes of dense 2x over 3 ranks",'
    '"topk 12x: would send what topk 10x does","topk 3x: would send what nobody does","who knows"]}'
)
"""A line as it was written before the version stood in it."""

POLICIES = [
    topk_policy(cf_range=(2, 1000)),
    topk_policy(cf_range=(2, 1000), controller=GraVAC(step="geometric"), sixteen_bit=False),
    topk_policy(controller=Static(cf=10)),
    topk_policy(dense="bfloat16"),
    Policy(base=powersgd, controller=Goodput(), cf_range=(8, 4096)),
    Policy(base=quantize, controller=Goodput(), cf_range=(2, 1000)),
    Policy(base=ladder, controller=Goodput(), cf_range=(2, 1000)),
]

SHAPES = st.lists(
    st.one_of(st.tuples(st.integers(1, 900)), st.tuples(st.integers(16, 900), st.integers(16, 900))),
    min_size=1,
    max_size=6,
)


def candidate_then(forecast: Forecast) -> str:
    """A candidate in the words of version 1."""
    words = f"{forecast.candidate} (predicted wire ratio {forecast.wire_ratio:.2f}, worth {forecast.efficiency:g}"
    if forecast.coding_s is not None and forecast.exchange_s is not None:
        words += f", coding {1e3 * forecast.coding_s:.4g} ms, exchange {1e3 * forecast.exchange_s:.4g} ms"
    return words + ")"


def dropped_then(dropped: Dropped, world_size: int) -> str:
    """A dropped candidate in the words of version 1."""
    one, other = dropped.forecast.candidate, dropped.other.candidate
    if dropped.cause == "same_bytes":
        return f"{one}: would send what {other} does"
    return f"{one}: would send {dropped.ratio:.2f} times the bytes of {other} over {world_size} ranks"


def words_of(run: RunRecord) -> dict[str, Any]:
    """A run's line of version 1."""
    candidates = [candidate_then(one) for one in run.forecasts]
    dropped = [dropped_then(one, run.world_size) for one in run.dropped]
    return {"settings": run.settings, "world_size": run.world_size, "candidates": candidates, "dropped": dropped}


def names(admission: Admission) -> list[str]:
    return [str(one.candidate) for one in admission.forecasts]


def live(policy: Policy, shapes: list[tuple[int, ...]], world: int, link: LinkProbe | None) -> Admission:
    averager = Averager(policy.base, policy.dense_format, policy.error_feedback, policy.dense_below, Feedback())
    averager.world = world
    return admit(policy, averager, [(shape, torch.float32) for shape in shapes], link)


def test_a_line_of_before_is_read_as_data(tmp_path: Path) -> None:
    run = run_of_words(json.loads(OLD))
    dense, half, low, rung = run.forecasts
    assert (run.settings, run.world_size) == ({"base": "topk", "window": 20}, 3)
    assert dense == Forecast(Candidate("hook", "dense", 1.0), 1.0, coding_s=0.0, exchange_s=0.0125)
    assert half == Forecast(Candidate("hook", "dense", 2.0), 2.0)
    assert (low.candidate, low.wire_ratio, math.isnan(low.efficiency)) == (Candidate("hook", "topk", 10.0), 2.5, True)
    assert (rung.candidate, rung.wire_ratio, rung.efficiency) == (Candidate("hook", "ladder", 3.93846), 3.88, 0.9731)
    assert (rung.coding_s, rung.exchange_s) == pytest.approx((4.02e-3, 3.22e-3))
    more, same = run.dropped
    assert (str(more.forecast.candidate), more.cause, more.other, more.ratio) == (
        "topk 4x",
        "not_fewer_bytes",
        half,
        2.0,
    )
    assert (str(same.forecast.candidate), same.cause, same.other, same.ratio) == ("topk 12x", "same_bytes", low, 1.0)
    assert (more.forecast.wire_ratio, same.forecast.wire_ratio) == (1.0, 2.5)


@pytest.mark.parametrize("wrong", [{}, {"settings": {}, "world_size": 2, "candidates": [1]}, {"candidates": None}])
def test_a_line_that_is_no_run_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "gravac.jsonl"
    path.write_text(json.dumps({"kind": "run", **wrong}) + "\n{}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="line 1: not a record of gravac"):
        read_trace(path)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(POLICIES), SHAPES, st.integers(2, 40), st.booleans())
def test_a_replay_admits_what_the_run_did(
    policy: Policy, shapes: list[tuple[int, ...]], world: int, probed: bool
) -> None:
    link = LinkProbe(1e-4, 12.5e6, 5e9) if probed else None
    admission = live(policy, shapes, world, link)
    run = RunRecord(policy.plain(), world, *admission)
    again = admit_recorded(run, policy)
    assert again == admission
    assert set(names(admit_recorded(run_of_words(words_of(run)), policy))) == set(names(admission))


@pytest.mark.parametrize(
    "policy",
    [topk_policy(controller=GraVAC(dwell=2)), topk_policy(controller=Goodput(window=6)), POLICIES[1]],
    ids=["gravac", "goodput", "others"],
)
def test_a_record_of_before_replays_to_the_same_decisions(policy: Policy, tmp_path: Path) -> None:
    now, before = tmp_path / "now.jsonl", tmp_path / "before.jsonl"
    record_run(now, topk_policy(controller=GraVAC(dwell=2)))
    lines = now.read_text(encoding="utf-8").splitlines(keepends=True)
    run = json.dumps({"kind": "run", **words_of(read_trace(now).run)})
    before.write_text("".join([run + "\n", *lines[1:]]), encoding="utf-8")
    a, b = (replay(read_trace(path), policy) for path in (now, before))
    assert a.replayed == b.replayed
    assert (a.would, a.estimated, a.same) == (b.would, b.estimated, b.same)
    assert names(Admission(a.forecasts)) == names(Admission(b.forecasts))


def test_what_sends_the_same_is_not_admitted_in_a_replay_either() -> None:
    policy = Policy(base=powersgd, controller=Goodput(), cf_range=(64, 4096))
    admission = live(policy, [(512, 512), (512,)], 2, None)
    assert {one.cause for one in admission.dropped} == {"same_bytes"}
    now = RunRecord({}, 2, *admission)
    for run in (now, run_of_words(words_of(now))):
        candidates = names(admit_recorded(run, policy))
        assert candidates == ["dense 1x", "dense 2x", "powersgd 64x", "powersgd 128x", "powersgd 256x"]


def test_an_unknown_ratio_in_a_record_is_estimated() -> None:
    dense = Forecast(Candidate("hook", "dense", 1.0), 1.0)
    known, unknown = (Forecast(Candidate("hook", "topk", cf), ratio) for cf, ratio in ((10.0, 5.0), (20.0, math.nan)))
    dropped = Dropped(replace(unknown, efficiency=math.nan), "same_bytes", dense, math.nan)
    forecasts, _ = admit_recorded(RunRecord({}, 2, (dense, known), (dropped,)), topk_policy(cf_range=(10, 40)))
    ratios = {one.candidate.cf: one.wire_ratio for one in forecasts if not one.candidate.dense}
    assert ratios == {10: 5, 20: 10, 40: 20}
    assert all(math.isfinite(one.efficiency) for one in forecasts)
