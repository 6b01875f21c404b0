# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A race of methods on links: how nanoGPT's ``train.py`` is changed, what runs print, and how they are compared."""

from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gravac.lab.tasks.text import Text
from gravac.settings import SettingsError
from tests.measure import lines
from tests.measure.programs import nanogpt
from tests.measure.programs.methods import EVERY, FLOAT16, FLOAT32, METHODS, REPORT
from tests.measure.programs.ranks import RunFailed, TaskProgram, curve_and_report
from tests.measure.resuming import Book, run_in

CURVE = [(0, 4.0, 0.0), (50, 3.0, 5.0), (100, 2.0, 11.0)]


@pytest.mark.parametrize("method", METHODS)
def test_every_edit_is_made_where_its_passage_stands_once(method: str) -> None:
    made = [*nanogpt.edits(method, seed=2)]
    program = "\n".join(edit.old for edit in made if edit.old != nanogpt.MODEL)
    text = nanogpt.patched(program + f"\n    model = {nanogpt.MODEL}", made)
    assert "cuda" not in text
    assert "manual_seed(3337 + seed_offset)" in text
    assert "began += time.time() - paused" in text
    assert "model = DDP(model)" in text
    assert (f"attach({method!r}, model, optimizer)" in text) == (method != FLOAT32)


@pytest.mark.parametrize(("program", "count"), [("nothing of it", 0), ("device = 'cuda:0'\n" * 2, 2)])
def test_a_train_py_that_does_not_match_is_refused_in_words(program: str, count: int) -> None:
    edit = nanogpt.Edit("device", "device = 'cuda:0'\n", "device = 'cpu'\n")
    with pytest.raises(SettingsError, match=rf"train\.py: \"device = 'cuda:0'\" occurs {count} times.*3adf61e1"):
        nanogpt.patched(program, [edit])


def test_the_rate_falls_to_a_tenth_and_ranks_make_one_micro_step_each() -> None:
    arguments = {*nanogpt.arguments(208, 3e-3, 400, 480, 12)}
    assert {"--learning_rate=0.003", "--min_lr=0.0003", "--lr_decay_iters=400", "--max_iters=480"} <= arguments
    assert {"--eval_interval=40", "--gradient_accumulation_steps=2"} <= arguments  # nanoGPT divides by the ranks


def test_characters_are_written_as_nanogpt_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = (np.frombuffer(text, dtype=np.uint8) for text in (b"cab", b"bd"))
    monkeypatch.setattr(nanogpt, "library_text", lambda: Text(*codes, files=2))
    nanogpt.write_characters(tmp_path / "data")
    assert np.fromfile(tmp_path / "data" / "train.bin", dtype=np.uint16).tolist() == [2, 0, 1]
    assert np.fromfile(tmp_path / "data" / "val.bin", dtype=np.uint16).tolist() == [1, 3]


def test_what_a_program_prints_is_its_curve_and_its_report() -> None:
    printed = "step 0: train loss 0.0, val loss 4.5, seconds 0.0\nnoise\n"
    printed += f'step 40: train loss nan, val loss -2.25, seconds 8.125\n{REPORT}{{"mode": "hook"}}\n'
    assert curve_and_report(printed, 40, "a run") == ([(0, 4.5, 0.0), (40, -2.25, 8.125)], {"mode": "hook"})
    with pytest.raises(RunFailed, match="a run: no evaluation after step 80; end of the output: step 0"):
        curve_and_report(printed, 80, "a run")


def made_up(method: str, curve: list[tuple[int, float, float]], **more: Any) -> dict[str, Any]:
    return {"program": "glyphs", "link": "20mbit", "seed": 0, "method": method, "curve": curve, **more}


def test_methods_are_compared_by_seconds_to_float16s_last_loss() -> None:
    rows = [
        made_up(FLOAT16, CURVE),
        made_up(EVERY, [(0, 4.0, 0.0), (80, 1.0, 6.0)]),
        made_up("hook", [(0, 4.0, 0.0), (80, 2.5, 20.0)]),
        made_up(FLOAT32, CURVE, step_s=0.2, float16_step_s=0.1),
    ]
    found = {method: pairs for (_, _, method), pairs in lines.ratios(rows).items()}
    assert found[FLOAT16] == [(11.0, 1.0)]
    assert found[EVERY] == [(4.0, pytest.approx(4 / 11))]
    assert found[FLOAT32] == [(22.0, 2.0)]
    assert found["hook"] == [(float("inf"), float("inf"))]
    assert (
        "| glyphs | 20mbit | 22 s (2.00-2.00) | 11 s (1.00-1.00) | 4 s (0.36-0.36) | inf s (inf-inf) |"
        in lines.table(rows)
    )


@pytest.mark.parametrize(
    ("link", "in_full"), [("20mbit", [FLOAT16, EVERY]), ("1gbit,20s:20mbit,40s:1gbit", [FLOAT16, EVERY, FLOAT32])]
)
def test_a_cell_trains_each_method_for_as_long_as_float16_on_each_rate(
    link: str, in_full: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[lines.Line] = []

    def run(line: lines.Line, *_: Any) -> dict[str, Any]:
        made.append(line)
        step_s = 0.1 if "1gbit" in line.link else 1.0
        return {
            **line.identity,
            "made": line.total,
            "curve": [(0, 4.0, 0.0), (2, 3.0, 2 * step_s), (4, 2.0, 4 * step_s)],
        }

    monkeypatch.setattr(lines, "run", run)
    monkeypatch.setattr(lines, "in_turns", lambda runs: [one() for one in runs])
    race = lines.Race(Book(tmp_path / "lines.json"), [TaskProgram("glyphs")], [EVERY], [link], seeds=1, seconds=60.0)
    race.go(minutes=1)
    long = [line for line in made if line.total != lines.TIMED_STEPS]
    assert [line.method for line in long] == in_full
    assert long[0].total == (60 if link == "20mbit" else 200 + 20 + 200)
    assert [row["method"] for row in race.book.rows] == [*dict.fromkeys([*in_full, FLOAT32])]
    count = len(made)
    race.go(minutes=1)
    assert len(made) == count, "what the file has is not run again"


def test_cases_run_until_time_is_up_and_each_has_its_row_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    for seeds, minutes_are_up, ran_all in (([0, 1, 2], True, False), ([1, 2], False, True)):
        with ThreadPool(1) as pool:
            book = Book(path)
            assert run_in(pool, lambda seed: {"seed": seed}, seeds, book, lambda up=minutes_are_up: up) is ran_all
    book = Book(path)
    assert [row["seed"] for row in book.rows] == [0, 1, 2]
    assert book.find(seed=1) and book.find(seed=3) is None
    assert capsys.readouterr().out.splitlines()[-1] == '[2/2, about 0 minutes left] {"seed": 2}'
