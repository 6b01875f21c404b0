# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""JSONL: what is read is what was written, also after a crash."""

import json
import math
import multiprocessing
import platform
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import gravac
from gravac.candidate import Candidate, Dropped, Forecast
from gravac.settings import SettingsError
from gravac.telemetry import DecisionRecord, EndRecord, JSONLSink, Record, RunRecord, StepRecord, read_jsonl
from gravac.telemetry.jsonl import to_json
from tests.telemetry.made_up import make_run, make_step


@pytest.fixture(name="run")
def _run() -> list[Record]:
    """The made-up run."""
    return list(make_run())


def feed(sink: JSONLSink, records: Iterable[Record]) -> None:
    for record in records:
        sink(record)
    sink.close()


def write(path: Path, *records: Record) -> None:
    feed(JSONLSink(path), records)


def refuse(word: str) -> float:
    raise AssertionError(f"{word} is not JSON")


def lines(records: Iterable[Record]) -> list[str]:
    """Records as lines, which are the same also where a number is nan."""
    return [to_json(record) for record in records]


def test_records_come_back_as_they_were_written(tmp_path: Path, run: list[Record]) -> None:
    finite = [r for r in run[2:] if not isinstance(r, EndRecord)]  # the first two and the last hold inf and nan
    write(tmp_path / "deep" / "run.jsonl", *finite)
    assert lines(read_jsonl(tmp_path / "deep" / "run.jsonl")) == lines(finite)


def test_every_line_is_strict_json_with_its_kind(tmp_path: Path, run: list[Record]) -> None:
    write(tmp_path / "run.jsonl", *run)
    lines = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = [json.loads(line, parse_constant=refuse)["kind"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("run", "end")
    assert (kinds.count("step"), kinds.count("decision")) == (600, 29)


def test_numbers_that_are_not_finite_become_null_and_come_back_as_nan(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    bad = replace(make_step(0, gain=None), seconds=math.inf, t_system=math.nan, shadow=((20.0, -math.inf),))
    decision = DecisionRecord(
        3, "topk", 10.0, False, math.nan, math.nan, math.nan, None, None, "", "no gain: not finite"
    )
    write(path, bad, decision, EndRecord(4, {"gain": math.nan, "steps": 4.0}))
    values = [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]
    assert (values[0]["seconds"], values[0]["t_system"], values[0]["shadow"]) == (None, None, [[20.0, None]])
    step, read, end = read_jsonl(path)
    assert isinstance(step, StepRecord)
    assert isinstance(read, DecisionRecord)
    assert isinstance(end, EndRecord)
    assert (read.gain, read.gain_low, read.gain_high) == (None, None, None)
    assert math.isnan(step.seconds)
    assert math.isnan(step.t_system)
    assert step.gain is None
    assert step.t_compression is None
    assert math.isnan(step.shadow[0][1])
    assert (read.t_system, read.reason) == (None, "no gain: not finite")
    assert math.isnan(end.metrics["gain"])


def test_infinite_settings_stay_readable(tmp_path: Path) -> None:
    write(tmp_path / "run.jsonl", RunRecord({"release": math.inf, "window": 20}, 2))
    (run,) = read_jsonl(tmp_path / "run.jsonl")
    assert isinstance(run, RunRecord)
    assert (run.settings, run.world_size) == ({"release": "inf", "window": 20}, 2)


def test_a_run_says_when_where_and_with_which_versions_it_began(tmp_path: Path) -> None:
    path, earliest = tmp_path / "run.jsonl", datetime.now(timezone.utc).replace(microsecond=0)
    write(path, RunRecord({}, 2), make_step(0))
    (run, _) = read_jsonl(path)
    assert isinstance(run, RunRecord)
    begun = datetime.fromisoformat(run.begun)
    assert begun.utcoffset() == timedelta(0)
    assert earliest <= begun <= datetime.now(timezone.utc)
    assert run.host == platform.node()
    assert run.versions == {
        "gravac": gravac.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    write(path, run)
    assert read_jsonl(path)[-1] == run, "a record that is copied from a file stays as it is"


def test_a_file_without_what_newer_versions_add_is_read(tmp_path: Path) -> None:
    candidate = {"mode": "hook", "compressor": "ladder", "cf": 10.24, "every": 1, "delay": 0}
    run: dict[str, Any] = {"kind": "run", "version": 7, "settings": {}, "world_size": 2}
    run["forecasts"] = [{"candidate": candidate, "wire_ratio": 9.5}]
    numbers = dict.fromkeys(("gain", "gain_low", "gain_high", "t_system", "t_compression"))
    decision = {"kind": "decision", "step": 3, "changed": True, "phase": "", "reason": "why", **candidate, **numbers}
    path = tmp_path / "run.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (run, decision, {"kind": "end", "steps": 4})))
    first, read, end = read_jsonl(path)
    assert isinstance(first, RunRecord) and isinstance(end, EndRecord)
    assert (first.begun, first.host, first.versions, end.steps_at) == ("", "", {}, ())
    assert str(first.forecasts[0].candidate) == "ladder 10.24x"
    assert str(read) == "step 3: run ladder 10.24x: why"


numbers = st.floats(1e-3, 1e6)
candidates = st.builds(
    Candidate,
    st.sampled_from(["native", "hook", "outer"]),
    st.sampled_from(["dense", "topk", "ladder"]),
    numbers,
    every=st.integers(1, 100),
    delay=st.integers(0, 100),
    sends=st.sampled_from(["", "4 bits (7.5x fewer bytes)"]),
)
forecasts = st.builds(
    Forecast,
    candidates,
    numbers,
    efficiency=st.floats(0, 1),
    family=st.sampled_from(["", "bfloat16"]),
    by_gain=st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple),
    coding_s=st.none() | numbers,
    exchange_s=st.none() | numbers,
)
dropped = st.builds(
    Dropped, forecasts, st.sampled_from(["same_bytes", "not_fewer_bytes", "too_little_progress"]), forecasts, numbers
)


@given(st.lists(forecasts, max_size=4).map(tuple), st.lists(dropped, max_size=4).map(tuple))
def test_candidates_come_back_as_the_data_they_are(
    tmp_path_factory: pytest.TempPathFactory, admitted: tuple[Forecast, ...], less: tuple[Dropped, ...]
) -> None:
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    run = RunRecord({"window": 20}, 2, admitted, less, tuple(one.candidate.cf for one in admitted))
    write(path, run)
    assert '"version":7' in path.read_text(encoding="utf-8")
    (read,) = read_jsonl(path)
    assert isinstance(read, RunRecord)
    assert replace(read, begun="", host="", versions={}) == run
    assert [str(one.candidate) for one in read.forecasts] == [str(one.candidate) for one in admitted]


def test_a_wire_ratio_that_is_not_finite_comes_back_as_nan(tmp_path: Path) -> None:
    write(
        tmp_path / "run.jsonl", RunRecord({}, 2, (Forecast(Candidate("hook", "topk", 10.0), math.inf, coding_s=0.5),))
    )
    (run,) = read_jsonl(tmp_path / "run.jsonl")
    assert isinstance(run, RunRecord)
    assert math.isnan(run.forecasts[0].wire_ratio)
    assert (run.forecasts[0].coding_s, run.forecasts[0].exchange_s) == (0.5, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"kind":"run","settings":{},"world_size":2}',
            "line 1: .* version: None cannot be read; this gravac reads version 7",
        ),
        (
            '{"kind":"run","version":9,"settings":{},"world_size":2}',
            "line 1: .* version: 9 cannot be read; this gravac reads version 7",
        ),
        ('{"kind":"run","version":7,"settings":{},"world_size":2,"forecasts":["topk 10x"]}', "line 1: not a record"),
        ('{"kind":"run","version":7,"settings":{},"world_size":2,"forecasts":[{"cf":2}]}', "line 1: not a record"),
        (
            '{"kind":"run","version":7,"settings":{},"world_size":2,"dropped":[{"forecast":{"candidate":{"mode":"hook",'
            '"compressor":"topk","cf":2},"wire_ratio":1},"cause":"dislike","other":{"candidate":{"mode":"hook",'
            '"compressor":"dense","cf":1},"wire_ratio":1},"ratio":1}]}',
            "line 1: not a record of gravac: dropped/0/cause: 'dislike': Input should be 'same_bytes', 'not_fewer",
        ),
    ],
)
def test_a_run_that_is_none_of_this_version_is_refused(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(f"{line}\n{to_json(make_step(0))}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_jsonl(path)


@pytest.mark.parametrize("cut", [1, 3, 200])
def test_half_written_last_line_is_left_out(tmp_path: Path, run: list[Record], cut: int) -> None:
    path = tmp_path / "run.jsonl"
    write(path, *run[2:8])
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    whole = run[2 : 8 if cut == 1 else 7]  # without its line's end alone a record is still whole
    assert lines(read_jsonl(path)) == lines(whole)


def test_appending_after_a_crash_keeps_what_came_before_and_after(tmp_path: Path, run: list[Record]) -> None:
    path = tmp_path / "run.jsonl"
    again = RunRecord({"window": 20}, 2, begun="2026-11-29T13:05:09+00:00")
    write(path, *run[2:8])
    path.write_bytes(path.read_bytes()[:-100])
    write(path, again, *run[6:8])
    assert lines(read_jsonl(path)) == lines([*run[2:7], again, *run[6:8]])


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, run: list[Record]) -> None:
    path = tmp_path / "run.jsonl"
    write(path, *run[2:5])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"kind":"st\n' + lines[2])
    with pytest.raises(ValueError, match=r"run\.jsonl, line 2: not a record of gravac"):
        read_jsonl(path)


def test_what_was_written_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    sink = JSONLSink(tmp_path / "run.jsonl")
    sink(make_step(0))
    assert lines(read_jsonl(tmp_path / "run.jsonl")) == lines([make_step(0)])
    sink.close()


def test_path_that_cannot_be_written_names_the_path_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"path: cannot write to '.*file/run\.jsonl' \(.*\); give a file"):
        JSONLSink(tmp_path / "file" / "run.jsonl")
    with pytest.raises(SettingsError, match="path: cannot write"):
        JSONLSink(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk_warns_once_and_never_raises() -> None:
    sink = JSONLSink("/dev/full")
    with pytest.warns(RuntimeWarning, match=r"JSONLSink\('/dev/full'\).*No space left.*training continues") as warned:
        feed(sink, map(make_step, range(50)))
    assert len(warned) == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_warnings_as_errors_do_not_raise_either(capsys: pytest.CaptureFixture[str]) -> None:
    sink = JSONLSink("/dev/full")
    sink(make_step(0))
    sink.close()
    assert "training continues" in capsys.readouterr().err


def test_closing_twice_and_records_after_close_do_nothing(tmp_path: Path) -> None:
    sink = JSONLSink(tmp_path / "run.jsonl")
    sink.close()
    sink.close()
    sink(make_step(0))
    assert (tmp_path / "run.jsonl").read_bytes() == b""


def test_two_runs_that_write_to_one_log_dir_are_told(tmp_path: Path) -> None:
    first = JSONLSink(tmp_path / "gravac.jsonl")
    with pytest.warns(UserWarning, match=r"another run is writing to .*gravac.jsonl.* a log_dir of its own"):
        JSONLSink(tmp_path / "gravac.jsonl").close()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()  # has the open file, as a data loader's worker has
    try:
        first.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            JSONLSink(tmp_path / "gravac.jsonl").close()  # a run that is resumed
    finally:
        child.kill()
        child.join()
