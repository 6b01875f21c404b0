# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""TensorBoard: what its own reader finds in the files."""

import importlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gravac.settings import SettingsError
from gravac.telemetry import DecisionRecord, EndRecord, Record, RunRecord, StepRecord, TensorBoardSink
from tests.telemetry.made_up import make_run, make_step

# TensorBoard has no type hints: modules as plain values
reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
layout_pb2 = importlib.import_module("tensorboard.plugins.custom_scalar.layout_pb2")
plugin_data_pb2 = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")

Curve = list[tuple[int, Any]]


@pytest.fixture(name="run")
def _run() -> list[Record]:
    """The made-up run."""
    return list(make_run())


def feed(sink: TensorBoardSink, records: Iterable[Record]) -> None:
    for record in records:
        sink(record)
    sink.close()


def write(log_dir: Path, records: Iterable[Record], every: int = 10) -> Any:
    """Feed a sink, close it, and open what it wrote with TensorBoard's reader."""
    feed(TensorBoardSink(log_dir, every), records)
    events = reader.EventAccumulator(str(log_dir), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def curve(events: Any, tag: str) -> Curve:
    return [(event.step, event.value) for event in events.Scalars(tag)]


def texts(events: Any, tag: str) -> list[tuple[int, str]]:
    return [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(f"{tag}/text_summary")]


@pytest.fixture
def events(tmp_path: Path, run: list[Record]) -> Any:
    """The made-up run as TensorBoard reads it."""
    return write(tmp_path, run)


def test_cf_is_a_true_staircase(events: Any, run: list[Record]) -> None:
    steps = {record.step: record.cf for record in run if isinstance(record, StepRecord)}
    points = curve(events, "gravac/cf")
    assert all(steps[step] == cf for step, cf in points)
    for (before, cf), (after, other) in itertools.pairwise(points):
        assert cf == other or after == before + 1, "a change is drawn between two neighbouring steps"
    assert {60, 140, 260, 420} <= {step for step, _ in points}
    assert (points[0], points[-1]) == ((0, 10.0), (599, 40.0))
    for (step, log), (same, cf) in zip(curve(events, "gravac/cf_log10"), points, strict=True):
        assert step == same
        assert log == pytest.approx(math.log10(cf))


def test_other_scalars_come_every_tenth_step(events: Any) -> None:
    assert [step for step, _ in curve(events, "gravac/t_system")] == list(range(9, 600, 10))
    assert len(curve(events, "gravac/wire_bytes")) == 60 + 5  # and where the CF changes


def test_a_point_is_the_mean_of_its_steps(tmp_path: Path) -> None:
    records = [make_step(step, seconds=0.1 * (1 + step % 2), gain=0.5 + 0.1 * (step % 2)) for step in range(20)]
    records = [replace(record, wire_bytes=1000 * (1 + record.step % 2)) for record in records]
    events = write(tmp_path, records)
    assert curve(events, "gravac/seconds/step") == [(9, pytest.approx(0.15)), (19, pytest.approx(0.15))]
    assert curve(events, "gravac/wire_bytes")[-1] == (19, pytest.approx(1500))
    assert curve(events, "gravac/wire_ratio")[-1] == (19, pytest.approx(6_400_000 / 1500))
    assert curve(events, "gravac/t_system")[-1] == (19, pytest.approx(64 / 0.15))
    assert curve(events, "gravac/gain_of_steps")[-1] == (19, pytest.approx(0.55))
    assert curve(events, "gravac/t_compression")[-1] == (19, pytest.approx(64 / 0.15 * 0.55))
    assert curve(events, "gravac/wire_gigabytes")[-1] == (19, pytest.approx(20 * 1500 / 1e9))
    assert curve(events, "gravac/dense_wire_gigabytes")[-1] == (19, pytest.approx(20 * 6.4e6 / 1e9))


def test_no_point_mixes_two_cfs(tmp_path: Path) -> None:
    events = write(tmp_path, [make_step(step, cf=10.0 if step < 13 else 20.0) for step in range(30)])
    achieved = curve(events, "gravac/achieved_cf")
    assert [step for step, _ in achieved] == [0, 9, 12, 13, 22, 29]
    assert [value for _, value in achieved] == pytest.approx([9.8] * 3 + [19.6] * 3)


def test_what_is_not_known_or_not_finite_is_left_out(tmp_path: Path) -> None:
    first = make_step(0, gain=None, seconds=math.nan)
    events = write(tmp_path, [first, *(make_step(step, gain=None) for step in range(1, 10))])
    assert curve(events, "gravac/seconds/step") == [(9, pytest.approx(0.1))]
    assert curve(events, "gravac/t_system") == [(9, pytest.approx(640))]
    assert not {"gravac/gain_of_steps", "gravac/t_compression"} & set(events.Tags()["scalars"])


def test_gain_has_its_windows_band(events: Any, run: list[Record]) -> None:
    decisions = [record for record in run if isinstance(record, DecisionRecord)]
    for tag in ("gain", "gain_low", "gain_high"):
        expected = [(record.step, pytest.approx(getattr(record, tag))) for record in decisions]
        assert curve(events, f"gravac/{tag}") == expected


def test_decision_without_a_window_has_no_band_but_a_text(tmp_path: Path) -> None:
    decision = DecisionRecord(2, "topk", 10.0, False, 0.5, math.nan, math.nan, None, None, "", "trigger")
    events = write(tmp_path, [make_step(0), decision])
    assert "gravac/gain" not in events.Tags()["scalars"]
    assert texts(events, "gravac/decision") == [(2, "topk 10x: trigger — gain 0.500")]


def test_the_first_decision_has_a_text_but_no_gain_since_none_was_measured_yet(tmp_path: Path) -> None:
    first = DecisionRecord(0, "topk", 10.0, True, None, None, None, None, None, "", "start", sends="topk 10x")
    events = write(tmp_path, [first, make_step(0)])
    assert "gravac/gain" not in events.Tags()["scalars"]
    assert texts(events, "gravac/decision") == [(0, "**topk 10x**: start")]
    assert "| step 0: topk 10x | start |  |" in texts(events, "gravac/changes")[0][1]


def test_every_decision_is_told_with_its_reason(events: Any, run: list[Record]) -> None:
    decisions = [record for record in run if isinstance(record, DecisionRecord)]
    told = texts(events, "gravac/decision")
    assert [step for step, _ in told] == [record.step for record in decisions]
    assert all(record.reason in text for record, (_, text) in zip(decisions, told, strict=True))
    change = "**topk 10x (5.6x fewer bytes) → topk 20x (11x fewer bytes)**"
    assert told[2][1].startswith(f"{change} (explore): gain 0.92, above ε 0.70: try the next — gain 0.92")
    ((step, table),) = texts(events, "gravac/changes")
    assert step == 599
    assert table.startswith("4 of 29 decisions changed the candidate that runs\n\n| change |")
    assert table.count("\n| step ") == 4
    assert "| step 420: topk 160x (89x fewer bytes) → topk 40x (22x fewer bytes) | gain" in table


def test_run_is_told_with_its_candidates_and_the_dropped_ones(events: Any) -> None:
    ((step, text),) = texts(events, "gravac/run")
    assert step == 0
    assert "**2 ranks**" in text
    assert "**Candidates**\n\n- dense float32 (predicted wire ratio 1.00, efficiency 1, CF 1)\n- topk 10x (5.6x" in text
    assert "- topk 160x (89x fewer bytes) (predicted wire ratio 88.89, efficiency 0.9, CF 160)" in text
    assert "**Dropped**\n\n- topk 2x: would send 1.11 times the bytes of dense float32 over 2 ranks\n" in text
    assert "- topk 320x: would send the same bytes as topk 160x" in text
    assert "| controller.window | 20 |" in text


def test_layout_shows_only_tags_that_are_written(events: Any) -> None:
    (event,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    charts = [chart for category in layout.category for chart in category.chart]
    titles = [chart.title for chart in charts]
    assert titles[:4] == [
        "Wire ratio: how many times fewer bytes than dense float32",
        "Compression factor, each method's own measure (1 is dense; the tab Text names the methods)",
        "Compression factor, log10 (0 is dense)",
        "Gain of each window, and of its lowest and highest step",
    ]
    assert {"Throughput, samples/s", "Time of a step, seconds", "Bytes a step, of one rank"} < set(titles)
    shown = {tag.removesuffix("$") for chart in charts for tag in chart.multiline.tag}
    shown |= {tag for chart in charts for band in chart.margin.series for tag in (band.value, band.lower, band.upper)}
    assert shown == {tag for tag in events.Tags()["scalars"] if not tag.startswith("gravac_end/")}


def test_hyperparameters_stand_beside_the_totals(events: Any, tmp_path: Path) -> None:
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["controller.epsilon"].number_value == 0.7
    assert settings["controller.paper_literal"].bool_value is False
    assert settings["release"].string_value == "inf"
    assert settings["world_size"].number_value == 2
    assert curve(events, "gravac_end/wire_ratio") == [(600, pytest.approx(17.9))]
    assert "gravac_end/tta" not in events.Tags()["scalars"], "nan is left out"
    assert all(path.is_file() for path in tmp_path.iterdir()), "no sub-run"


def test_interrupted_run_keeps_its_last_steps_and_changes(tmp_path: Path, run: list[Record]) -> None:
    events = write(tmp_path, run[:70])  # closed without an end
    last = max(record.step for record in run[:70] if isinstance(record, StepRecord))
    assert last % 10 != 9
    assert curve(events, "gravac/cf")[-1] == (last, 20.0)
    assert "topk 10x (5.6x fewer bytes) → topk 20x" in texts(events, "gravac/changes")[0][1]


def test_log_dir_that_cannot_be_written_names_the_path_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"log_dir: cannot write to '.*file/run' \(.*\); give a folder"):
        TensorBoardSink(tmp_path / "file" / "run")
    with pytest.raises(SettingsError, match="every: 0 steps per point is below 1"):
        TensorBoardSink(tmp_path, every=0)


def test_failing_writer_warns_once_and_never_raises(tmp_path: Path, run: list[Record]) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sink = TensorBoardSink(tmp_path)
    sink._writer.file_writer.add_summary = fail
    with pytest.warns(RuntimeWarning, match=r"TensorBoardSink\(.*No space left.*training continues") as warned:
        feed(sink, run)
    assert len(warned) == 1


def test_log_dir_lost_while_training_does_not_raise_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)  # TensorBoard's thread dies aloud
    lost = tmp_path / "run"
    sink = TensorBoardSink(lost, every=1)
    while not lost.is_file():  # its thread may be writing the first records
        shutil.rmtree(lost, ignore_errors=True)
        with suppress(FileExistsError):
            lost.touch(exist_ok=False)  # what TensorBoard's thread writes from now on fails
    with pytest.warns(RuntimeWarning, match="training continues"):
        feed(sink, map(make_step, range(1000)))


def test_closing_twice_and_records_after_close_do_nothing(tmp_path: Path, run: list[Record]) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.close()
    sink.close()
    before = {path: path.stat().st_size for path in tmp_path.iterdir()}
    sink(run[0])
    sink(EndRecord(1))
    assert {path: path.stat().st_size for path in tmp_path.iterdir()} == before


def test_run_without_decisions_has_no_table_of_changes(tmp_path: Path) -> None:
    events = write(tmp_path, [make_step(0), EndRecord(1)])
    assert "gravac/changes/text_summary" not in events.Tags()["tensors"]


def test_end_without_a_run_is_written_all_the_same(tmp_path: Path) -> None:
    events = write(tmp_path, [EndRecord(3, {"steps": 3.0})])
    assert curve(events, "gravac_end/steps") == [(3, 3.0)]


def test_nothing_is_written_or_imported_when_no_sink_is_made(tmp_path: Path) -> None:
    code = (
        "import sys, gravac.telemetry; assert not [m for m in sys.modules if m.startswith('tensorboard')], sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=150)
    assert not list(tmp_path.iterdir())


def test_run_record_without_candidates_is_told(tmp_path: Path) -> None:
    events = write(tmp_path, [RunRecord({}, 4)])
    assert texts(events, "gravac/run") == [(0, "**4 ranks**")]
