# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ``gravac bench tta`` writes beside its records: a tidy CSV, and two plots. Runs are made up."""

import csv
import math
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from rich.console import Console

from gravac.lab.links.link import PACED
from gravac.lab.provenance import UNRECORDED
from gravac.lab.tta import display, plot
from gravac.lab.tta.matrix import RunMatrix
from gravac.lab.tta.record import RUN_COLUMNS, CurvePoint, TrainingRecord, write_csv
from tests.lab.made_up_runs import made_up


def curve(seconds_per_step: float, *metrics: float) -> tuple[CurvePoint, ...]:
    return tuple(
        CurvePoint(step=10 * at, seconds=10 * at * seconds_per_step, metric=metric) for at, metric in enumerate(metrics)
    )


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, in order."""
    saved: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: object, **options: object) -> None:
        saved.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes if axes.axison]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_csv_has_a_row_for_each_evaluation(tmp_path: Path) -> None:
    runs = [made_up("topk@10", mesh="2x2"), made_up(tta_s=None, curve=curve(1.0, 4.0, math.nan))]
    write_csv(tmp_path / "x.csv", runs)
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*RUN_COLUMNS, "code", "step", "seconds", "value"]
    assert len(rows) == sum(len(run.curve) for run in runs)
    first, last = rows[0], rows[-1]
    assert (first["method"], first["mesh"], first["tta_s"], first["code"]) == ("topk@10", "2x2", "20.0", UNRECORDED)
    assert (first["step"], float(first["seconds"]), float(first["value"])) == ("0", 0.0, 4.0)
    assert (last["mesh"], last["tta_s"], last["step"]) == ("", "", "10") and math.isnan(float(last["value"]))


def test_losses_have_a_panel_for_each_task_and_link_slow_links_first(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [
        made_up(method, seed, task=task, link=link)
        for task, link in (("charlm", "unthrottled"), ("charlm", "20mbit"), ("denoise", "20mbit"))
        for method in ("fp16", "gravac:topk")
        for seed in range(2)
    ]
    plot.draw_losses(runs, tmp_path / "loss.png")
    (figure,) = figures
    assert titles(figure) == ["charlm over 20mbit", "charlm over unthrottled", "denoise over 20mbit"]
    assert labels(figure) == ["gravac:topk", "fp16", "target"]
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    target, *curves = figure.axes[0].lines
    assert len(curves) == 2 * (2 + 1 + 1), "of each method: two seeds, their median, and a dot"
    assert list(target.get_ydata()) == [1.75, 1.75]


def test_what_never_reaches_the_target_does_not_stretch_the_axes(tmp_path: Path, figures: list[Figure]) -> None:
    good = made_up("gravac:topk", seconds=10.0, tta_s=8.0, curve=curve(0.5, 4.0, 2.0, 1.5))
    bad = made_up("topk@1000", seconds=600.0, tta_s=None, curve=curve(30.0, 4.0, 9e9, math.nan))
    plot.draw_losses([good, bad], tmp_path / "loss.png")
    axes = figures[0].axes[0]
    assert axes.get_xlim() == pytest.approx((0, 10.5))
    assert axes.get_ylim() == pytest.approx((1.5 - 0.025, 2.0 + 0.025))


def test_runs_without_an_evaluation_or_a_second_are_drawn_as_nothing(tmp_path: Path) -> None:
    runs = [made_up(tta_s=None, curve=(), steps=0, seconds=0.0), made_up("fp32", seconds=0.0, curve=curve(0.0, 4.0))]
    plot.draw_losses(runs, tmp_path / "loss.png")
    plot.draw_times(runs, tmp_path / "times.png")


def test_a_median_over_seeds_ends_with_the_shortest_run() -> None:
    seconds, metrics = plot.median_curve(
        [made_up(curve=curve(1.0, 4.0, 3.0, 2.0)), made_up(curve=curve(3.0, 6.0, 5.0)), made_up(curve=curve(2.0, 5, 4))]
    )
    assert seconds.tolist() == [0.0, 20.0] and metrics.tolist() == [5.0, 4.0]


def test_times_are_medians_and_bounds_are_hollow(tmp_path: Path, figures: list[Figure]) -> None:
    runs = [made_up(seed=seed, tta_s=tta) for seed, tta in enumerate((10.0, 12.0, None))]
    runs += [made_up("gravac:topk", seed, tta_s=tta) for seed, tta in enumerate((6.0, None))]
    plot.draw_times(runs, tmp_path / "times.png")
    (figure,) = figures
    marks = {
        line.get_ydata()[0]: line.get_markerfacecolor() for line in figure.axes[0].lines if line.get_marker() == "o"
    }
    assert marks[12.0] != "white", "two of three reached the target"
    assert marks[15.0] == "white", "one of two: the other trained for 24 s without it"
    assert titles(figure) == ["Time to the target: charlm"] and "longer: not reached" in labels(figure)


def test_looks_differ_and_adaptive_ones_are_thick() -> None:
    methods = ["fp32", "fp16", *(f"topk@{cf}" for cf in range(12)), "gravac:topk", "gravac:ladder"]
    looks = plot.looks_of([made_up(method) for method in methods])
    assert len({(look["color"], look["linestyle"]) for look in looks.values()}) == len(methods)
    assert looks["gravac:topk"]["linewidth"] > looks["fp16"]["linewidth"]


def test_paced_runs_are_marked(tmp_path: Path, figures: list[Figure]) -> None:
    for draw in (plot.draw_losses, plot.draw_times):
        draw([made_up(paced=True)], tmp_path / "x.png")
        draw([made_up()], tmp_path / "x.png")
    assert [PACED in title for figure in figures for title in titles(figure)] == [True, False] * 2


def test_table_and_plots_have_the_runs_of_the_matrix_and_the_csv_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: list[Figure]
) -> None:
    runs: list[TrainingRecord] = [
        made_up("topk@10"), made_up("topk@20"), made_up("topk@10", mesh="2x2", workers=4), made_up("topk@10", scale=2.0)
    ]  # fmt: skip
    monkeypatch.setattr(display, "run_matrix", lambda matrix, watcher: runs)
    path = tmp_path / "runs.json"
    matrix = RunMatrix(("charlm",), ("100mbit",), ("topk@10",), paced=True, json=path)
    console = Console(width=200, record=True)
    assert display.run_tta(matrix, console) == 0
    said = console.export_text()
    assert said.count("topk@10") == 1 and "topk@20" not in said
    assert [labels(figure) for figure in figures] == [["topk@10", "target"], ["topk@10"]]
    written = ["runs-evaluations.csv", "runs-loss.png", "runs-times.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert all(name in said for name in written)
    assert len((tmp_path / "runs-evaluations.csv").read_text().splitlines()) == 1 + sum(len(run.curve) for run in runs)
