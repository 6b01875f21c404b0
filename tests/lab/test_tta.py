# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A matrix runs and is resumed; wrong ones are refused; a failed leg leaves the others."""

import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from gravac.cli import main
from gravac.lab.links.network import emulation_obstacle
from gravac.lab.training.run import RunFailed, TrainingSettings
from gravac.lab.training.session import Leg, SessionSpec
from gravac.lab.tta import record
from gravac.lab.tta.display import TtaLive
from gravac.lab.tta.matrix import RunMatrix
from gravac.lab.tta.record import CurvePoint, TrainingRecord, first_reached
from gravac.lab.tta.runner import run_matrix, target_of

HUNG = 250.0
"""Seconds after which a test gives up on what should have happened; no test passes by waiting for so long."""

REASON = emulation_obstacle()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}")


Interrupted = Callable[[list[str]], str]
"""Function that runs the command with some arguments, stops it when a run is measured, and returns its output."""


class Notes:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.made: list[TrainingRecord] = []
        self.plan = (0, 0)
        self.failures: list[str] = []
        self.started: list[str] = []
        self.labels: list[str] = []
        self.codes: tuple[str, Sequence[str]] = ("", ())

    def show_plan(self, record_count: int, existing_count: int) -> None:
        self.plan = (record_count, existing_count)

    def show_commits(self, code: str, existing_codes: Sequence[str]) -> None:
        self.codes = (code, existing_codes)

    def show_start(self, cell_text: str, leg: Leg) -> None:
        self.started.append(leg.method)
        self.labels.append(leg.label)

    def show_event(self, cell_text: str, leg: Leg, event: dict[str, object]) -> None:
        pass

    def show_finished_run(self, run: TrainingRecord) -> None:
        self.made.append(run)

    def show_failed_leg(self, cell_text: str, leg: Leg, error: RunFailed) -> None:
        self.failures.append(leg.method)


def matrix(tmp_path: Path, **changes: object) -> RunMatrix:
    settings: dict[str, object] = {
        "tasks": ("lstm",),
        "links": ("100mbit",),
        "methods": ("fp32", "topk@10", "gravac:topk"),
        "seeds": (0,),
        "budget": 40,
        "scale": 0.1,
        "limit": 2.0,
        "json": tmp_path / "runs.json",
    }
    return RunMatrix(**{**settings, **changes})  # type: ignore[arg-type]


class Scripted:
    """Stands in for ``Run``: reports of each leg what workers would; those of ``to_fail`` are killed once."""

    to_fail: ClassVar[list[str]] = []

    def __init__(self, legs: Sequence[Leg], settings: TrainingSettings, network: object) -> None:
        self.legs = legs

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self) -> Iterator[dict[str, object]]:
        split = {"compute": 0.1, "compress": None, "exchange": None, "exposed": 0.0, "input_wait": 0.0}
        said = {"wire_bytes": 1, "interface_bytes": None, "cpu_seconds": 1.0, "gain": None, "turns": [], "split": split}
        for at, leg in enumerate(self.legs):
            yield {"event": "start", "leg": at, "parameters": 9, "samples_per_step": 8}
            for step in range(0, 21, 5):
                yield {"event": "evaluation", "leg": at, "step": step, "seconds": step / 10, "metric": 3.0 - step / 10}
                if leg.method in self.to_fail:
                    self.to_fail.remove(leg.method)
                    raise RunFailed(f"{leg.method}: worker 1 was killed by signal 9")
            yield {"event": "end", "leg": at, "step": 20, "seconds": 2.0, "step_s": 0.1, **said}


@pytest.mark.long
@needs_namespaces
def test_a_matrix_is_run_written_and_not_run_twice(tmp_path: Path) -> None:
    notes = Notes()
    runs = run_matrix(matrix(tmp_path), notes)
    assert [(run.link, run.method) for run in runs] == [
        ("unthrottled", "fp32"),
        ("100mbit", "fp32"),
        ("100mbit", "topk@10"),
        ("100mbit", "gravac:topk"),
    ]
    assert notes.plan == (4, 0) and notes.failures == []
    assert record.read(tmp_path / "runs.json") == runs
    assert len({run.target for run in runs}) == 1
    for run in runs:
        assert run.step_s > 0 and run.steps > 0 and run.cpu_seconds > 0 and run.split is not None
        assert run.interface_bytes is not None and run.interface_bytes > 0
        if run.tta_s is not None:
            assert run.steps_to_target is not None and 0 < run.steps_to_target <= run.steps
    fp32 = runs[0]
    assert fp32.wire_bytes is not None and fp32.tta_s is not None
    assert 0.9 < fp32.interface_bytes / fp32.wire_bytes < 1.4  # type: ignore[operator]

    again = Notes()
    assert run_matrix(matrix(tmp_path), again) == runs
    assert again.plan == (4, 4) and again.made == [] and again.started == []


def test_seeds_are_added_where_they_differ_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gravac.lab.tta.runner.TrainingRun", Scripted)
    two = matrix(tmp_path, methods=("fp16", "topk@10"), links=("unthrottled",), seeds=(0, 1), paced=True, budget=20)
    runs = run_matrix(two, Notes())
    assert {run.seed for run in runs} == {0, 1}
    steady = {"fp16": (1.0, 1.05), "topk@10": (1.0, 1.2), "fp32": (1.0, 1.0)}
    told = [run.model_copy(update={"tta_s": steady[run.method][run.seed]}) for run in runs]
    record.save(tmp_path / "runs.json", told)

    notes = Notes()
    after = run_matrix(replace(two, more_seeds=2), notes)
    assert after[: len(told)] == told  # none dropped
    assert {(run.method, run.seed) for run in after[len(told) :]} >= {("fp32", 2), ("topk@10", 2)}
    assert not any(run.method == "fp16" for run in notes.made)


@pytest.fixture
def interrupted_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Interrupted:
    def run(arguments: list[str]) -> str:
        show = TtaLive.show_finished_run

        def shown_and_interrupted(live: TtaLive, run: TrainingRecord) -> None:
            show(live, run)
            signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
            patch.setattr(TtaLive, "show_finished_run", shown_and_interrupted)
            main(arguments)
        assert stopped.value.code == 128 + signal.SIGINT
        return capsys.readouterr().out

    return run


@pytest.fixture
def interrupted_elsewhere() -> Interrupted:
    def run(arguments: list[str]) -> str:
        command = [sys.executable, "-u", "-m", "gravac", *arguments]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert running.stdout
        told = ""
        for line in running.stdout:
            told += line
            if ": fp32: " in line and " steps of " in line:
                break
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=HUNG)[1]
        assert running.returncode == 128 + signal.SIGINT and "Traceback" not in said
        return told

    return run


@pytest.mark.usefixtures("forks", "signals")
@pytest.mark.parametrize(
    "interrupted", ["interrupted_here", pytest.param("interrupted_elsewhere", marks=pytest.mark.long)]
)
def test_a_paced_matrix_says_so_and_after_an_interrupt_only_what_was_not_measured_is_run(
    interrupted: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["bench", "tta", "--task", "lstm", "--scale", "0.1", "--paced", "--budget", "20"]
    asked += ["--methods", "topk@10", "--json", str(tmp_path / "runs.json")]
    told = request.getfixturevalue(interrupted)([*asked, "--seeds", "50"])
    assert "paced, no emulated link" in told
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]
    (measured,) = json.loads((tmp_path / "runs.json").read_text())

    assert main([*asked, "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 2 runs are in the result file already" in shown and ": fp32: " not in shown
    assert re.search(r": topk@10: .* steps of .*paced, no emulated link", shown)
    rows = json.loads((tmp_path / "runs.json").read_text())
    assert rows[0] == measured and [row["method"] for row in rows] == ["fp32", "topk@10"]
    assert all(row["stamp"]["matmul_s"] > 0 and row["stamp"]["utc"] for row in rows)
    assert len({row["stamp"]["commit"] for row in rows}) == 1
    assert [row["paced"] for row in rows] == [False, True]
    needed = {
        "task", "link", "workers", "method", "seed", "target", "tta_s", "steps", "samples_per_s", "wire_bytes", "gain",
        "interface_bytes", "val_metric", "paced",
    }  # fmt: skip
    assert all(needed <= set(row) for row in rows)

    kept = (tmp_path / "runs.json").read_text()
    assert main([*asked, "--seeds", "1"]) == 0, "all of it is there: nothing is run, and the command ends well"
    assert "topk@10" in capsys.readouterr().out
    assert (tmp_path / "runs.json").read_text() == kept
    made = {"runs.json", "runs-evaluations.csv", "runs-loss.png", "runs-times.png"}
    assert {path.name for path in tmp_path.iterdir()} == made, "once all runs are there"


def test_a_leg_that_fails_is_told_of_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "to_fail", ["topk@10"])
    monkeypatch.setattr("gravac.lab.tta.runner.TrainingRun", Scripted)
    notes = Notes()
    runs = run_matrix(matrix(tmp_path, paced=True, methods=("fp16", "topk@10", "topkc@10"), budget=20), notes)
    assert notes.failures == ["topk@10"]
    assert [run.method for run in runs] == ["fp32", "fp16", "topkc@10"]
    assert notes.started == ["fp32", "fp16", "topkc@10"], "the leg after it began a session of its own"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tasks": ("mnist",)}, "mnist"),
        ({"links": ("fast",)}, "rate: 'fast'"),
        ({"links": ("1gbit,5s:20mbit",), "paced": True}, "cannot be paced"),
        ({"methods": ("topq@3",)}, "there is no compressor 'topq'"),
        ({"methods": ("torch-powersgd(4)",), "paced": True}, "cannot be paced"),
        ({"methods": ()}, r"methods: \(\) is empty; give at least one"),
        ({"workers": 9}, "workers: 9 is outside 2 to 8"),
        ({"budget": 1}, "budget: 1 is below 2"),
        ({"more_seeds": -1}, "more_seeds: -1 is below 0"),
        ({"limit": 0.0}, "limit: 0 is not above 0"),
        ({"json": Path("nowhere/at/all.json")}, "json: nowhere/at is not a folder"),
    ],
)
def test_a_wrong_matrix_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        matrix(tmp_path, **changes)


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('[{"task": 3}]')
    with pytest.raises(ValueError, match=r"runs\.json: 0\.task"):
        run_matrix(matrix(tmp_path), Notes())
    assert (tmp_path / "runs.json").read_text() == '[{"task": 3}]'


def curve(*metrics: float) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(step=10 * at, seconds=2.0 * at, metric=metric) for at, metric in enumerate(metrics))


def test_a_run_that_diverged_is_written_and_read_again(tmp_path: Path, run: TrainingRecord) -> None:
    curve = (*run.curve, CurvePoint(step=99, seconds=9.0, metric=math.nan))
    record.save(tmp_path / "runs.json", [run, run.model_copy(update={"val_metric": math.nan, "curve": curve})])
    assert json.loads((tmp_path / "runs.json").read_text())[1]["val_metric"] is None
    whole, diverged = record.read(tmp_path / "runs.json")
    assert whole == run
    assert math.isnan(diverged.val_metric) and math.isnan(diverged.curve[-1].metric)
    assert first_reached(diverged.curve, -1e9, higher_is_better=False) is None


def test_target_is_what_dense_has_at_80_percent() -> None:
    assert target_of(curve(5, 4, 3, 2, 1, 0.5), 50) == 1
    assert target_of(curve(5, 4, 3, 2.5, 2, 1.5, 1.0, 0.9, 0.8, 0.7, 0.6), 100) == 0.8


def test_first_reached_is_linear_between_evaluations_for_losses_and_scores() -> None:
    assert first_reached(curve(5, 3, 1), 2, higher_is_better=False) == (3.0, 15.0)
    assert first_reached(curve(1, 3, 5), 4, higher_is_better=True) == (3.0, 15.0)
    assert first_reached(curve(5, 3, 1), 0.5, higher_is_better=False) is None
    assert first_reached(curve(5, 6), 7, higher_is_better=False) == (0.0, 0.0)


def test_a_run_that_recovers_reaches_the_target_at_its_first_finite_evaluation() -> None:
    for lost in (math.nan, math.inf):
        assert first_reached(curve(5, lost, 1), 2, higher_is_better=False) == (4.0, 20.0)


@pytest.fixture
def run() -> TrainingRecord:
    return TrainingRecord(
        task="digits", scale=1, link="unthrottled", workers=2, method="topk@10", adaptive=False, seed=0,
        metric="loss, nats", higher_is_better=False, target=2, tta_s=3.0, steps_to_target=15, seconds=4.0,
        limit_s=None, steps=20, step_s=0.2, samples_per_s=80.0, wire_bytes=1000, interface_bytes=1100,
        cpu_seconds=8.0, gain=0.5, val_metric=1.0, curve=curve(5, 3, 1), turns=(), split=None, paced=False,
    )  # fmt: skip


def test_a_session_travels_as_json() -> None:
    legs = (Leg("fp32", "fp32", steps=3), Leg("topk@10", "a/b", seconds=1.5, target=2.0, every_steps=5))
    spec = SessionSpec("lstm", 0.5, 3, "", 2, "folder", None, None, None, 1e8, "100mbit", legs)
    assert SessionSpec.from_json(spec.to_json()) == spec
