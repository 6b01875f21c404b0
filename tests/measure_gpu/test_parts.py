# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A part that fails is told of and the others go on; rows are kept as they come; without a GPU one line says so."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.measure.gpu import __main__ as command
from tests.measure.gpu.kernels import tally
from tests.measure.gpu.parts import HERE, PARTS, ROOT, Part, Row, at_most, attempts, run_all, summary


def fake(told: str, seconds: float = 60.0, without: tuple[str, ...] = ()) -> Part:
    return Part(told, "tests.measure_gpu.fakes", seconds, without, {"FAKE_PART": told})


def test_what_fails_is_a_row_and_the_others_go_on() -> None:
    kept: list[list[Row]] = []
    parts = [fake("raises"), fake("hangs", 8), fake("dies"), fake("ends", without=("triton",))]
    rows = run_all(parts, 120, lambda so_far: kept.append([*so_far]))
    assert kept[-1] == rows
    assert [len(one) for one in kept] == [3, 6, 9, 12]
    failed = {row["part"]: row["failed"] for row in rows if "failed" in row}
    assert set(failed) == {"raises", "hangs", "dies"}
    assert failed["raises"].startswith("exit status 1\n") and failed["raises"].endswith("RuntimeError: out of luck")
    assert failed["hangs"].startswith("not done after 8 s")
    assert failed["dies"].startswith("exit status 7")
    firsts = {row["part"]: row for row in rows if row.get("case") == "first"}
    assert set(firsts) == {"raises", "hangs", "dies", "ends"}
    assert [part for part, row in firsts.items() if row["blocked"]] == ["ends"]
    lines = summary(rows)
    assert lines[0] == "4 of 5 aims met, 3 failures"
    assert lines[1] == "missed: ends, second: 2, at most 1 wanted"
    assert "failed: raises: RuntimeError: out of luck" in lines


def test_parts_that_time_does_not_reach_fail() -> None:
    (row,) = run_all([fake("ends")], -1, lambda rows: None)
    assert row == {"part": "ends", "failed": "no time was left"}


def test_a_case_that_raises_leaves_the_others_be() -> None:
    rows = list(attempts({"bad": lambda: {"value": 1 / 0}, "good": lambda: at_most(1.0, 2.0)}))
    assert rows[0]["case"] == "bad" and rows[0]["failed"].endswith("ZeroDivisionError: division by zero")
    assert rows[1] == {"case": "good", "value": 1.0, "at_most": 2.0, "met": True}


def test_every_part_has_a_name_of_its_own_and_a_module() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert all(find_spec(part.module) for part in PARTS)


def test_what_a_bare_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("torch", "no_such_module", "nor_this"))
    assert command.unfit().startswith("cannot import no_such_module, nor_this: put the folder")


def test_parts_need_no_more_than_is_asked_for() -> None:
    absent = ["tensorboard", "rich", "matplotlib", "PIL", "sklearn", "pytest", "hypothesis", "triton"]
    modules = sorted({part.module for part in PARTS} | {f"{HERE}.child", f"{HERE}.__main__"})
    script = f"import sys; sys.modules.update(dict.fromkeys({absent})); import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.measure.gpu", "--json", str(tmp_path / "gpu.json")]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stdout == "" and len(ran.stderr.splitlines()) == 1
    assert ran.stderr.startswith("measure-gpu: needs an NVIDIA GPU, and torch ")
    assert not any(tmp_path.iterdir())


def test_pytests_last_line_is_counted() -> None:
    assert tally("2 failed, 40 passed, 1 skipped in 3.20s") == {"failed": 2, "passed": 40, "skipped": 1}
    assert tally("") == {}
