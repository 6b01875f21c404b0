# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs are compared at equal time and at equal steps, and the verdict follows the numbers, losses included."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console

from gravac.lab.demo.decisions import describe_change, describe_longest_running
from gravac.lab.demo.display import show_result
from gravac.lab.demo.outcome import Comparison, DemoOutcome
from gravac.lab.demo.plot import draw, draw_as_text, spread_apart
from gravac.lab.json_file import write_json
from gravac.lab.tta.record import CurvePoint

pytestmark = pytest.mark.timeout(30)


def change(step: int, mode: str, compressor: str, cf: float, every: int = 1) -> dict[str, Any]:
    named = {"mode": mode, "compressor": compressor, "cf": cf, "every": every, "delay": 0}
    return {"step": step, **named, "reason": "start"}


def outcome(method: str, steps: int, final: float, wire_bytes: int = 1000) -> DemoOutcome:
    """Ten seconds in which the loss falls linearly from 5 to ``final``."""
    return DemoOutcome(
        method=method,
        steps=steps,
        seconds=10.0,
        samples_per_s=steps * 16 / 10,
        wire_bytes=wire_bytes,
        curve=(CurvePoint(step=0, seconds=0.0, metric=5.0), CurvePoint(step=steps, seconds=10.0, metric=final)),
        cf_path=(change(0, "hook", "ladder", 7.76),),
    )


def comparison(adaptive: float, apart: float = 2.5) -> Comparison:
    return Comparison(
        (
            outcome("dense-fp32", 10, 4.0, 4000),
            outcome("dense-fp16", 20, 3.0, 4000),
            outcome("adaptive", 40, adaptive, 1600),
            outcome("adaptive-100", 80, apart, 800),
        )
    )


def test_losses_at_equal_time_and_equal_steps_lie_between_evaluations() -> None:
    run = outcome("adaptive", 40, 1.0)
    assert run.loss_at_time(5.0) == pytest.approx(3.0)
    assert run.loss_at_step(10) == pytest.approx(4.0)
    assert run.loss_at_step(99) == 1.0
    assert comparison(1.0).equal_steps == 10


def test_time_to_a_loss_is_its_first_crossing_or_none() -> None:
    run = outcome("adaptive", 40, 1.0)
    assert run.time_to_loss(3.0) == pytest.approx(5.0)
    assert run.time_to_loss(0.5) is None


def test_wire_ratio_is_bytes_a_step_of_dense_float32_over_its_own() -> None:
    runs = comparison(1.0)
    assert [runs.wire_ratio(run) for run in runs.outcomes] == [1.0, 2.0, 10.0, 40.0]


@pytest.mark.parametrize(("adaptive", "words"), [(2.0, "won"), (3.5, "LOST"), (3.005, "draw")])
def test_verdict_says_who_won(adaptive: float, words: str) -> None:
    assert words in comparison(adaptive).verdict()


def test_verdict_of_a_win_says_how_much_faster_than_16_bit() -> None:
    assert "2.0 times as fast" in comparison(1.0).verdict()


@pytest.mark.parametrize("paced", [True, False])
def test_result_says_paced_when_it_is_and_only_then(paced: bool) -> None:
    console = Console(record=True, width=80, force_terminal=False)
    with console.capture() as captured:
        show_result(console, comparison(3.5), rate=1e8, workers=2, paced=paced, log_dir=Path("runs/x"))
    shown = captured.get()
    assert ("paced, no emulated link" in shown) == paced
    assert "4 bits (7.8x fewer bytes): start" in shown
    for expected in (
        "float16",
        "every=(1, 100)",
        "gravac LOST",
        "(steps: 100% by gravac's hook)",
        "loss.png",
        "not reached",
        "tensorboard --logdir runs/x",
        "100 Mbit/s",
    ):
        assert expected in shown


@pytest.mark.parametrize(("apart", "words"), [(2.0, "won"), (3.5, "LOST"), (2.505, "a draw")])
def test_verdict_of_outer_steps_compares_with_an_exchange_in_each_step(apart: float, words: str) -> None:
    assert words in comparison(2.5, apart).verdict_of_outer_steps()


def test_shares_by_mode_and_what_ran_mostly_follow_the_changes() -> None:
    path = (change(0, "native", "dense", 2.0), change(8, "hook", "ladder", 28.444444444444443))
    run = replace(outcome("adaptive-100", 80, 2.0), cf_path=(*path, change(20, "outer", "ladder", 32.0, every=10)))
    assert run.fraction_by_mode() == {"native": 0.1, "hook": 0.15, "outer": 0.75}
    assert describe_longest_running(run) == "low rank 16 (32x fewer bytes) every 10 steps"
    assert describe_change(path[0]) == "  step     0  native float16: start"
    recorded = {**path[1], "sends": "1 bit (26x fewer bytes)"}
    assert describe_change(recorded) == "  step     8  1 bit (26x fewer bytes): start", "as the run's log names it"


@given(
    st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=6),
    st.floats(0.01, 1.5),
)
def test_names_never_touch_keep_their_order_and_stay_within(places: list[float], apart: float) -> None:
    moved = spread_apart(places, apart, (0, 10))
    assert all(-1e-9 <= place <= 10 + 1e-9 for place in moved)
    order = sorted(range(len(places)), key=lambda at: places[at])
    for lower, upper in itertools.pairwise(order):
        assert moved[upper] - moved[lower] >= apart - 1e-9


def test_names_that_do_not_touch_stay_where_they_are() -> None:
    assert spread_apart([7, 1, 4], 2, (0, 10)) == [7, 1, 4]


@given(st.floats(0.5, 4.9), st.floats(0.5, 4.9))
def test_the_terminals_plot_has_80_columns_and_every_name_and_mark(adaptive: float, apart: float) -> None:
    lines = draw_as_text(comparison(adaptive, apart)).splitlines()
    assert max(map(len, lines)) <= 80
    names = "\n".join(lines)
    for words in (
        ". float32 4.000",
        "o float16 3.000",
        f"+ gravac {adaptive:.3f}",
        f"# gravac, every=(1, 100) {apart:.3f}",
    ):
        assert words in names
    assert lines[0] == "validation loss, nats" and lines[-1].endswith("seconds of training")


@given(st.floats(0.5, 4.9), st.floats(0.5, 4.9))
@settings(max_examples=10)
def test_the_pictures_curve_of_gravac_is_named_and_no_text_covers_another_or_a_curve(
    adaptive: float, apart: float
) -> None:
    pictures: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, *_, **__: pictures.append(figure))
        draw(comparison(adaptive, apart), "A transformer, 2 workers at 50 Mbit/s", Path("loss.png"))
    (picture,) = pictures
    picture.draw_without_rendering()
    (axes,), (legend,) = picture.axes, picture.legends
    assert f"gravac  {adaptive:.2f}" in [text.get_text() for text in axes.texts]
    assert any(text.get_text().startswith("gravac: ") for text in legend.get_texts())
    boxes = [text.get_window_extent() for text in axes.texts] + [legend.get_window_extent()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    for box in boxes:
        assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1 and picture.bbox.y0 <= box.y0


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_json(file, {"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_json_has_the_mode_that_the_umask_leaves_or_that_the_file_had(tmp_path: Path) -> None:
    file, before = tmp_path / "result.json", os.umask(0o077)
    try:
        write_json(file, {})
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o640)
        write_json(file, {"a": 1})
        assert file.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_json_has_exactly_the_documented_keys() -> None:
    content = comparison(1.0).to_json(rate=1e8, workers=2, paced=True, log_dir=Path("runs/x"))
    assert list(content) == ["rate", "workers", "paced", "log_dir", "runs"]
    keys = ["method", "steps", "seconds", "samples_per_s", "wire_bytes", "wire_ratio", "val_loss", "curve", "cf_path"]
    assert all(list(run) == keys for run in content["runs"])
