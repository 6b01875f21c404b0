# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How nanoGPT's ``train.py`` is changed, and how its runs are read; without a clone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gravac.lab.tasks.text import Text
from gravac.settings import SettingsError
from tests.lab.test_figures import STAMP as MEASURED_WITH
from tests.measure import nanogpt, tables_of_outer
from tests.measure.nanogpt import DEFAULTS, METHODS, Configuration, edits, efficiency, patched, steps_to, two_rates
from tests.measure.results import STAMP

CURVE = [[0, 4.0, 4.0], [100, 3.0, 3.0], [200, 1.9, 2.0], [300, 1.9, 2.1], [400, 1.0, 1.0]]


def made_up(method: str, rate: float, seed: int, loss: float, **more: Any) -> dict[str, Any]:
    """A run of 400 steps whose last evaluation has this loss."""
    return {
        "method": method, "call": "", "learning_rate": rate, "seed": seed, "steps": 400, "ranks": 2,
        "validation_loss": loss, "training_loss": loss - 0.1, "curve": [*CURVE[:-1], [400, loss - 0.1, loss]],
        "parameters": 1_256_000, "vocabulary": 97, "training_characters": 7_000_000, "validation_characters": 600_000,
        "files": 500, "text_sha256": "0123", "arguments": f"--learning_rate={rate}", "nanogpt": "3adf61e154",
        STAMP: MEASURED_WITH, **more,
    }  # fmt: skip


@pytest.mark.parametrize("method", [*METHODS, *DEFAULTS], ids=lambda method: method.name)
def test_every_edit_is_made_where_its_passage_stands_once(method: nanogpt.Method) -> None:
    made = edits(method, seed=2)
    program = "\n".join(edit.old for edit in made if edit.old != nanogpt.MODEL)
    program += f"\n    model = {nanogpt.MODEL}"
    text = patched(program, made)
    assert "cuda" not in text
    assert "manual_seed(3337 + seed_offset)" in text
    assert method.call in text
    assert "model = DDP(model)" in text
    assert ("compressor.attach(model, optimizer)" in text) == (method.kind != nanogpt.NATIVE)


@pytest.mark.parametrize(("program", "count"), [("nothing of it", 0), ("device = 'cuda:0'\n" * 2, 2)])
def test_a_train_py_that_does_not_match_is_refused_in_words(program: str, count: int) -> None:
    edit = nanogpt.Edit("device", "device = 'cuda:0'\n", "device = 'cpu'\n")
    with pytest.raises(SettingsError, match=rf"train\.py: \"device = 'cuda:0'\" occurs {count} times.*3adf61e1"):
        patched(program, [edit])


def test_steps_to_a_loss_are_linear_between_evaluations_and_of_the_first_time() -> None:
    assert steps_to(CURVE, 3.0) == 100
    assert steps_to(CURVE, 2.75) == 125
    assert steps_to(CURVE, 2.05) == 195  # and not between 300 and 400, where it is reached again
    assert steps_to(CURVE, 5.0) == 0
    assert steps_to(CURVE, 0.9) is None


def test_efficiency_is_natives_steps_to_the_methods_final_loss_over_the_steps() -> None:
    native = made_up("native", 3e-3, 0, 1.0)
    assert efficiency(made_up("outer", 3e-3, 0, 1.55), native) == pytest.approx(0.875)  # 350 of 400
    assert efficiency(native, native) == 1
    assert efficiency(made_up("outer", 3e-3, 0, 0.99), native) is None


def test_the_two_rates_are_natives_best_with_the_first_seed_and_a_third_of_it() -> None:
    tried = [made_up("native", rate, 0, loss) for rate, loss in ((3e-3, 1.0), (1e-3, 1.1), (9e-3, 1.2))]
    others = [made_up("native", 1e-3, 1, 0.5), made_up("hook, 2 bits", 9e-3, 0, 0.6)]
    assert two_rates([*tried, *others]) == (3e-3, 1e-3)


def test_the_table_has_losses_and_efficiency_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [made_up("native", rate, 0, loss) for rate, loss in ((3e-3, 1.0), (1e-3, 1.1), (9e-3, 1.2))]
    rows += [made_up("native", 3e-3, 1, 1.0)]
    call = {"call": "AdaptiveCompressor(...)", "wire_ratio": 10.0}
    rows += [made_up(METHODS[3].name, 3e-3, seed, loss, **call) for seed, loss in ((1, 0.9), (0, 1.55))]
    monkeypatch.setattr(tables_of_outer, "rows", lambda name: rows)
    _, _, *lines = tables_of_outer.nanogpt().splitlines()
    assert lines == [
        "| 0.003 | native | 1 | 1.000 1.000 | 0.900 0.900 |  |",
        "| 0.003 | outer, every 10 steps, rate 1 | 10 | 1.550 0.900 | 1.450 0.800 | 0.88 over 1 |",
        "| 0.001 | native | 1 | 1.100 | 1.000 |  |",
        "| 0.009 | native | 1 | 1.200 | 1.100 |  |",
    ]
    configuration = tables_of_outer.nanogpt_configuration()
    assert "| model | 1,256,000 parameters, float32 |" in configuration
    assert "| seeds | 0, 1 |" in configuration
    assert "| outer, every 10 steps, rate 1 | `AdaptiveCompressor(...)` |" in configuration


def test_the_rate_falls_to_a_tenth_and_ranks_make_one_micro_step_each() -> None:
    arguments = Configuration(max_iters=1200).arguments(3e-3)
    assert {"--learning_rate=0.003", "--min_lr=0.0003", "--lr_decay_iters=1200", "--dtype=float32"} <= {*arguments}
    assert "--gradient_accumulation_steps=2" in arguments  # nanoGPT divides by the number of ranks


def test_characters_are_written_as_nanogpt_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = (np.frombuffer(text, dtype=np.uint8) for text in (b"cab", b"bd"))
    monkeypatch.setattr(nanogpt, "library_text", lambda: Text(*codes, files=2))
    about = nanogpt.write_characters(tmp_path / "data")
    assert (about["vocabulary"], about["training_characters"], about["validation_characters"]) == (4, 3, 2)
    assert np.fromfile(tmp_path / "data" / "train.bin", dtype=np.uint16).tolist() == [2, 0, 1]
    assert np.fromfile(tmp_path / "data" / "val.bin", dtype=np.uint16).tolist() == [1, 3]
