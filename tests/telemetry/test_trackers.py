# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trackers: the tags and means of TensorBoard, steps that never go back, and training that never dies of them."""

import csv
import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from gravac.settings import SettingsError
from gravac.telemetry import CSVSink, Record, TrackerSink, mlflow_sink, page, wandb_sink
from tests.telemetry.made_up import CF_FROM, cf_at, make_run, make_step

Logged = list[tuple[int, dict[str, float]]]


@pytest.fixture(name="run")
def _run() -> list[Record]:
    """The made-up run."""
    return list(make_run())


def feed(sink: TrackerSink | CSVSink, run: list[Record]) -> None:
    for record in run:
        sink(record)
    sink.close()
    sink.close()


def tracked(run: list[Record], every: int = 10) -> tuple[Logged, dict[str, Any]]:
    logged: Logged = []
    settings: dict[str, Any] = {}
    feed(TrackerSink(lambda values, step: logged.append((step, values)), settings.update, every), run)
    return logged, settings


@pytest.mark.parametrize("every", [1, 7, 10, 1000])
def test_the_cf_is_a_staircase_and_steps_never_go_back(run: list[Record], every: int) -> None:
    logged, settings = tracked(run, every)
    steps = [step for step, _ in logged]
    assert steps == sorted(steps) and steps[-1] == 599
    points = [(step, values[page.CF]) for step, values in logged if page.CF in values]
    assert all(cf == cf_at(step) for step, cf in points)
    assert set(CF_FROM) <= {step for step, _ in points}, "the first step of each CF has a point"
    assert all(math.isfinite(value) for _, values in logged for value in values.values())
    assert settings["controller"] == "gravac" and settings["world_size"] == 2


def test_totals_come_last(run: list[Record]) -> None:
    logged, _ = tracked(run)
    assert all(tag.startswith(page.END_PREFIX) for tag in logged[-1][1])
    assert not any(tag.startswith(page.END_PREFIX) for _, values in logged[:-1] for tag in values)


def test_a_tracker_that_fails_is_left_alone() -> None:
    calls = []

    def fails(values: dict[str, float], step: int) -> None:
        calls.append(step)
        raise OSError("no network")

    sink = TrackerSink(fails, every=1)
    with pytest.warns(RuntimeWarning, match="no network; telemetry stops here"):
        sink(make_step(0))
    sink(make_step(1))
    sink.close()
    assert calls == [0]


def test_csv_has_a_column_for_each_tag_and_a_row_for_each_point(tmp_path: Path, run: list[Record]) -> None:
    feed(CSVSink(tmp_path / "deep" / "run.csv"), run)
    with (tmp_path / "deep" / "run.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    logged = [(step, values) for step, values in tracked(run)[0] if page.CF in values]
    assert [int(row["step"]) for row in rows] == [step for step, _ in logged]
    for row, (_, values) in zip(rows, logged, strict=True):
        assert {tag: float(text) for tag, text in row.items() if text and tag != "step"} == values


def test_a_run_of_wandb_gets_steps_of_its_own(run: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    class Run:
        """What is used of wandb's run."""

        def __init__(self) -> None:
            self.logged: list[dict[str, float]] = []
            self.config: dict[str, Any] = {}
            self.metrics: list[tuple[str, str | None]] = []

        def define_metric(self, name: str, step_metric: str | None = None) -> None:
            self.metrics.append((name, step_metric))

        def log(self, values: dict[str, float]) -> None:
            self.logged.append(values)

    made = Run()
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=made))  # type: ignore[arg-type]
    feed(wandb_sink(), run)
    assert made.metrics == [("gravac/step", None), ("gravac/*", "gravac/step")]
    assert made.config["controller"] == "gravac"
    assert [values["gravac/step"] for values in made.logged] == [step for step, _ in tracked(run)[0]]
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(run=None))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"wandb.init"):
        wandb_sink()


@pytest.mark.parametrize("make", [wandb_sink, mlflow_sink])
def test_a_tracker_that_is_not_installed_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = make.__name__.removesuffix("_sink")
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=f"pip install {name}"):
        make()


def test_mlflow_keeps_a_run_in_a_folder(run: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database, its default, needs more than mlflow-skinny
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())  # a folder that is there already gets no experiment
    with mlflow.start_run() as started:
        feed(mlflow_sink(), run)
    kept = mlflow.get_run(started.info.run_id).data
    assert kept.params["gravac/controller"] == "gravac" and kept.metrics["gravac/cf"] == 40.0


def test_wandb_keeps_a_run_offline(run: list[Record], tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=tmp_path, project="gravac") as started:
        feed(wandb_sink(started), run)
        assert started.summary["gravac/cf"] == 40.0


@pytest.mark.parametrize("every", [0, -1])
def test_wrong_settings_are_refused(every: int, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"every: {every}"):
        TrackerSink(lambda values, step: None, every=every)
    with pytest.raises(SettingsError, match=f"every: {every}"):
        CSVSink(tmp_path / "a.csv", every=every)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="path: cannot write"):
        CSVSink(tmp_path / "file" / "a.csv")
