# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a directory holds, what is left alone, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, SettingsError, checkpoint, randomk, topk
from gravac.exchange.lockstep import Lockstep
from tests.checkpoint.test_kill import holding


def test_a_directory_holds_the_last_checkpoint_and_what_others_put_there(tmp_path: Path) -> None:
    (tmp_path / "step1").mkdir()
    (tmp_path / "model.pt").touch()
    for step in (1, 1, 2):
        checkpoint.save(tmp_path, holding(step))
    manifest = json.loads((tmp_path / "gravac.json").read_text())
    assert {field: manifest[field] for field in ("version", "world", "step")} == {"version": 1, "world": 1, "step": 2}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(["gravac.json", manifest["folder"], "model.pt", "step1"])
    assert [path.name for path in (tmp_path / manifest["folder"]).iterdir()] == ["rank0.pt"]


def test_a_folder_with_somebody_elses_file_is_not_removed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    (earlier,) = tmp_path.glob("gravac-step1-*")
    (earlier / "notes").touch()
    checkpoint.save(tmp_path, holding(2))
    assert [path.name for path in earlier.iterdir()] == ["notes"]


def test_a_part_of_a_larger_tensor_is_written_alone(tmp_path: Path) -> None:
    compressor = holding(1)
    compressor._averager.feedback.residual["w"] = torch.zeros(1_000_000)[:8]
    checkpoint.save(tmp_path, compressor)
    (file,) = tmp_path.glob("*/rank0.pt")
    assert file.stat().st_size < 100_000


def test_what_was_loaded_needs_its_files_no_longer(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    compressor = AdaptiveCompressor(topk)
    checkpoint.load(tmp_path, compressor)
    (file,) = tmp_path.glob("*/rank0.pt")
    file.write_bytes(bytes(file.stat().st_size))
    assert torch.equal(compressor.state_dict()["residual"]["w"], torch.ones(8))


def spoil(directory: Path, how: str) -> None:
    manifest = directory / "gravac.json"
    (file,) = directory.glob("*/rank0.pt")
    if how == "no manifest":
        manifest.unlink()
    elif how == "broken manifest":
        manifest.write_text("{")
    elif how == "later version":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 9}))
    elif how == "no file":
        file.unlink()
    elif how == "broken file":
        file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no manifest", r"directory: .* holds no checkpoint \(gravac.json is missing\); give the one that"),
        ("broken manifest", r"directory: .*gravac.json cannot be read"),
        ("later version", r"version: .*gravac.json has 9, this gravac reads 1"),
        ("no file", r"directory: .*rank0.pt is missing, the state of rank 0 of 1"),
        ("broken file", r"directory: .*rank0.pt cannot be read"),
    ],
)
def test_what_cannot_be_loaded_is_named(how: str, said: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    spoil(tmp_path, how)
    with pytest.raises(SettingsError, match=said):
        checkpoint.load(tmp_path, AdaptiveCompressor(topk))


def test_another_compressor_and_an_unknown_mode_are_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    with pytest.raises(SettingsError, match="base: the state was made with 'topk', this compressor has 'randomk'"):
        checkpoint.load(tmp_path, AdaptiveCompressor(randomk))
    wrong: Any = "sum"
    for refused in (
        lambda: checkpoint.load(tmp_path, AdaptiveCompressor(topk), wrong),
        lambda: checkpoint.load_gathered({}, AdaptiveCompressor(topk), wrong),
        lambda: checkpoint.Stateful(AdaptiveCompressor(topk), on_resize=wrong),
    ):
        with pytest.raises(SettingsError, match="on_resize: 'sum' is not known; use 'mean'"):
            refused()


def test_what_was_not_gathered_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(SettingsError, match="gathered: None holds no states; every rank is given"):
        checkpoint.load_gathered(nothing, AdaptiveCompressor(topk))
    with pytest.raises(SettingsError, match="version: what was gathered has None, this gravac reads 1"):
        checkpoint.load_gathered({}, AdaptiveCompressor(topk))


def test_ranks_in_memory_are_not_saved_as_if_they_were_one(tmp_path: Path) -> None:
    compressor = AdaptiveCompressor(topk)
    compressor.door({"w": torch.zeros(8)}, executor=Lockstep(2).executors[1])
    for refused in (lambda: checkpoint.save(tmp_path, compressor), lambda: checkpoint.gather(compressor)):
        with pytest.raises(SettingsError, match="process_group: the compressor averages over 2 ranks, and its"):
            refused()
