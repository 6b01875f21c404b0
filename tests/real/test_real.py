# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the patches touch, what the page shows of them, and what is found in a run; without clones."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac.settings import SettingsError
from tests.real.__main__ import Run, faults
from tests.real.programs import EVERY, HERE, PROGRAMS, NanoGPT, Program
from tests.real.witness import digest_of_state

PAGE = HERE.parents[1] / "docs" / "how-to" / "real-programs.md"

GRAVAC = re.compile(r"gravac|compressor")
DEVICE = re.compile(
    r"device|accelerator|backend|cuda|cpu|gpu|DDP\(|init_process_group|local_rank|LOCAL_RANK|sys\.exit", re.IGNORECASE
)
ONE_RUN = Run([{"steps": 81, "shared": {"0": "a", "10": "b"}, "end": "c"}] * 2, "", 1.0)


def changed(program: Program) -> tuple[list[str], list[str]]:
    """Return the lines that a patch adds, and those that it takes away."""
    lines = (HERE / program.patch).read_text(encoding="utf-8").splitlines()
    added, removed = (
        [line[1:] for line in lines if re.match(rf"{sign}(?!{sign * 2} )", line)] for sign in (r"\+", "-")
    )
    return added, removed


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_patch_touches_devices_and_gravacs_lines_and_nothing_else(program: Program) -> None:
    added, removed = changed(program)
    assert [line for line in added if not GRAVAC.search(line) and not DEVICE.search(line)] == []
    assert [line for line in removed if not DEVICE.search(line)] == []
    assert sum(EVERY in line for line in added) == 1


def test_the_page_shows_every_line_of_gravac_that_the_patches_add() -> None:
    blocks = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == len(PROGRAMS)
    for block, program in zip(blocks, PROGRAMS, strict=True):
        shown = sorted(line[1:] for line in block.splitlines() if line.startswith("+"))
        assert shown == sorted(line for line in changed(program)[0] if GRAVAC.search(line))
        assert program.commit in PAGE.read_text(encoding="utf-8")


def test_a_run_whose_ranks_agree_has_no_faults() -> None:
    assert faults(PROGRAMS[0], ONE_RUN, resumed=False) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"shared": {"0": "a", "10": "x"}}, "what rank 1 shares"),
        ({"end": "x"}, "rank 1 ends with other weights"),
    ],
)
def test_ranks_that_differ_are_found(other: dict[str, Any], words: str) -> None:
    first = ONE_RUN.reports[0]
    (fault,) = faults(PROGRAMS[0], replace(ONE_RUN, reports=[first, {**first, **other}]), resumed=False)
    assert words in fault


def test_a_clone_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no .*nanoGPT; git clone https://github\.com/karpathy/nanoGPT"):
        NanoGPT().copy(tmp_path, tmp_path / "copy")


def test_a_clone_of_another_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(self: Program, sources: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "train.py").write_text("print('another')\n", encoding="utf-8")

    monkeypatch.setattr(NanoGPT, "copy", copy)
    with pytest.raises(SettingsError, match=r"nanogpt\.patch does not fit nanoGPT.* use commit ce6195e92c58"):
        NanoGPT().set_up(tmp_path, tmp_path / "program", EVERY)


def test_losses_are_those_of_evaluations_in_order() -> None:
    printed = {
        "nanoGPT": "step 0: train loss 4.1, val loss 4.2\niter 0: loss 4.1\nstep 20: train loss 3.0, val loss 3.1\n",
        "minGPT-ddp": "[RANK0] Epoch 1 | Iter 0 | Train Loss 4.2\n[RANK1] Epoch 1 | Iter 0 | Eval Loss 9.9\n"
        "[RANK0] Epoch 1 | Iter 0 | Eval Loss 3.1\n",
    }
    assert {program.name: program.losses(printed[program.name]) for program in PROGRAMS} == {
        name: [4.2, 3.1] for name in printed
    }


def test_a_digest_knows_names_and_bits_and_no_compiled_prefix() -> None:
    weights = {"a": torch.tensor([1.0]), "b": torch.tensor(2, dtype=torch.int32)}
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in weights.items()}
    assert digest_of_state(weights) == digest_of_state(compiled)
    assert digest_of_state(weights) != digest_of_state({**weights, "a": torch.tensor([-1.0])})
    assert digest_of_state(weights) != digest_of_state({"c": weights["a"], "b": weights["b"]})
