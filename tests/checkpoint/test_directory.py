# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a directory holds, what is left alone, and what is refused."""

import errno
import io
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac import AdaptiveCompressor, SettingsError, checkpoint, merge_states, randomk, topk
from gravac.checkpoint import directory
from gravac.exchange.lockstep import Lockstep
from tests.checkpoint.mutations import flipped_bytes, same, spoilt
from tests.checkpoint.test_kill import holding


def test_a_directory_holds_the_last_checkpoint_and_what_others_put_there(tmp_path: Path) -> None:
    (tmp_path / "step1").mkdir()
    (tmp_path / "model.pt").touch()
    for step in (1, 1, 2):
        checkpoint.save(tmp_path, holding(step))
    manifest = json.loads((tmp_path / "gravac.json").read_text())
    assert {field: manifest[field] for field in ("version", "world", "step")} == {"version": 2, "world": 1, "step": 2}
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
    compressor._engine.averager.residuals.by_name["w"] = torch.zeros(1_000_000)[:8]
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


def fields_of(manifest: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(manifest.read_text())
    del fields["checksum"]
    return fields


def spoil(folder: Path, how: str) -> None:
    manifest = folder / "gravac.json"
    (file,) = folder.glob("*/rank0.pt")

    def change(**fields: Any) -> None:
        manifest.write_bytes(directory._manifest_bytes({**fields_of(manifest), **fields}))

    def replace(content: bytes) -> None:
        file.write_bytes(content)
        change(sha256=[directory._sha256(file)])

    if how == "no manifest":
        manifest.unlink()
    elif how == "broken manifest":
        manifest.write_text("{")
    elif how == "deep manifest":
        manifest.write_text("[" * 100_000)
    elif how == "other spaces":
        manifest.write_text(json.dumps(json.loads(manifest.read_text())))
    elif how == "earlier version":
        manifest.write_text(json.dumps({**fields_of(manifest), "version": 1}))
    elif how == "later version":
        change(version=9)
    elif how == "folder elsewhere":
        change(folder="../gravac-step1-00000000")
    elif how == "negative step":
        change(step=-5)
    elif how == "unknown entry":
        change(more=1)
    elif how == "too few checksums":
        change(sha256=[])
    elif how == "manifest of a list":
        manifest.write_text("[]")
    elif how == "no file":
        file.unlink()
    elif how == "broken file":
        file.write_bytes(file.read_bytes()[:100])
    elif how == "no state":
        replace(b"x")
    elif how == "another state":
        state = torch.load(file, weights_only=True)
        torch.save({**state, "step": -1}, file)
        replace(file.read_bytes())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no manifest", r"directory: .* holds no checkpoint \(gravac.json is missing\); give the directory that"),
        ("broken manifest", r"directory: .*gravac.json cannot be read"),
        ("deep manifest", r"directory: .*gravac.json cannot be read"),
        ("other spaces", r"directory: .*gravac.json is damaged: its content has another checksum"),
        ("earlier version", r"version: .*gravac.json has version 1, but this gravac reads version 2"),
        ("later version", r"version: .*gravac.json has version 9, but this gravac reads version 2"),
        ("folder elsewhere", r"gravac\.json/folder: is '\.\./gravac-step1-00000000';"),
        ("negative step", r"gravac\.json/step: is -5; it should be greater"),
        ("unknown entry", r"gravac\.json/more: this run expects no such entry"),
        ("too few checksums", r"gravac\.json/sha256: has 0 checksums; it should have 1;"),
        ("manifest of a list", r"directory: .*gravac\.json holds \[\], which is not a manifest"),
        ("no file", r"directory: the file .*rank0.pt with the state of rank 0 of 1 is missing"),
        (
            "broken file",
            r"directory: .*rank0.pt is damaged, or is of another checkpoint: its SHA-256 is .* copy the file",
        ),
        ("no state", r"directory: .*rank0.pt cannot be read"),
        ("another state", r"step: is -1; .*; the state is in .*rank0.pt"),
    ],
)
def test_what_cannot_be_loaded_is_named(how: str, said: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    spoil(tmp_path, how)
    with pytest.raises(SettingsError, match=said):
        checkpoint.load(tmp_path, AdaptiveCompressor(topk))


@pytest.mark.parametrize("name", ["gravac.json", "*/rank0.pt"])
def test_a_change_of_any_byte_is_refused(name: str, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    compressor = AdaptiveCompressor(topk)
    (file,) = tmp_path.glob(name)
    for _ in flipped_bytes(file, seed=1):
        with pytest.raises(SettingsError, match=file.name):
            checkpoint.load(tmp_path, compressor)
    assert compressor.state_dict()["step"] == 0
    checkpoint.load(tmp_path, compressor)


class FullDisk(io.FileIO):
    """A file on a disk that has room for some bytes."""

    room = 0

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content) or 0


def test_a_disk_that_is_full_in_the_middle_of_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, holding(1))
    (file,) = tmp_path.glob("*/rank0.pt")
    size, open_file = file.stat().st_size, Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, mode: FullDisk(path, mode) if mode == "wb" else open_file(path, mode)
    )
    for FullDisk.room in (0, 10, size // 4, size // 2, size - 1):
        with pytest.raises(RuntimeError, match=r"rank0.pt: could not be written, .*: OSError: .* No space left on dev"):
            checkpoint.save(tmp_path, holding(2))
    compressor = AdaptiveCompressor(topk)
    checkpoint.load(tmp_path, compressor)
    assert compressor.state_dict()["step"] == 1


def test_another_compressor_and_an_unknown_mode_are_refused(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, holding(1))
    with pytest.raises(SettingsError, match="base: the state was made with 'topk', but this compressor has 'randomk'"):
        checkpoint.load(tmp_path, AdaptiveCompressor(randomk))
    wrong: Any = "sum"
    for refused in (
        lambda: checkpoint.load(tmp_path, AdaptiveCompressor(topk), wrong),
        lambda: checkpoint.load_gathered({}, AdaptiveCompressor(topk), wrong),
        lambda: checkpoint.Stateful(AdaptiveCompressor(topk), on_resize=wrong),
    ):
        with pytest.raises(SettingsError, match="on_resize: 'sum' is unknown; use 'mean'"):
            refused()


def test_what_was_not_gathered_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(SettingsError, match="gathered: None holds no states; give every rank"):
        checkpoint.load_gathered(nothing, AdaptiveCompressor(topk))
    with pytest.raises(
        SettingsError, match="version: the dict of gathered states has version None, but this gravac reads version 1"
    ):
        checkpoint.load_gathered({}, AdaptiveCompressor(topk))


def test_ranks_in_memory_are_not_saved_as_if_they_were_one(tmp_path: Path) -> None:
    compressor = AdaptiveCompressor(topk)
    compressor.attach_parameters({"w": torch.zeros(8)}, executor=Lockstep(2).executors[1])
    for refused in (lambda: checkpoint.save(tmp_path, compressor), lambda: checkpoint.gather(compressor)):
        with pytest.raises(SettingsError, match="process_group: the compressor averages over 2 ranks, but its"):
            refused()


@given(seed=st.integers(0, 2**48))
@settings(max_examples=150)
def test_spoilt_manifests_and_gathered_states_are_refused_in_words_or_loaded(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, compressor = tmp_path_factory.getbasetemp() / "spoilt", AdaptiveCompressor(topk)
    manifest = folder / "gravac.json"
    if not folder.exists():
        checkpoint.save(folder, holding(1))
        shutil.copy(manifest, folder / "good.json")
    plain = spoilt(fields_of(folder / "good.json"), seed)
    manifest.write_bytes(
        directory._manifest_bytes(json.loads(json.dumps(plain, default=str)))
        if isinstance(plain, dict)
        else json.dumps(plain, default=str).encode()
    )
    before = compressor.state_dict()
    gathered = checkpoint.gather(holding(1))
    for load in (
        lambda: checkpoint.load(folder, compressor),
        lambda: checkpoint.load_gathered(spoilt(gathered, seed), AdaptiveCompressor(topk)),
        lambda: checkpoint.load_gathered({**spoilt(gathered, seed), "world": 2}, AdaptiveCompressor(topk)),
    ):
        try:
            load()
        except SettingsError:
            continue
        except TypeError:
            assert not isinstance(spoilt(gathered, seed), dict)
        else:
            before = compressor.state_dict()
    assert same(before, compressor.state_dict())


@given(seed=st.integers(0, 2**48))
@settings(max_examples=150)
def test_spoilt_states_are_refused_in_words_or_merged(seed: int) -> None:
    made = AdaptiveCompressor(topk).state_dict()
    states = [
        {**made, "rank": rank, "world": 2, "residual": {"w": torch.ones(8)}, "memory": {"w": {"q": torch.ones(2, 2)}}}
        for rank in range(2)
    ]
    with suppress(SettingsError):
        AdaptiveCompressor(topk).load_state_dict(merge_states([states[0], spoilt(states[1], seed)]))


class Machine:
    """A rank of two that share a directory, or do not, whose listings of folders are a minute old: empty."""

    def __init__(self, rank: int, said: list[int]) -> None:
        self.rank, self.world, self.rank_and_world = rank, len(said), (rank, len(said))
        self._said = said

    def all_gather(self, message: Any) -> list[Any]:
        if isinstance(message, str):  # the folder's name, or a checksum
            return ["gravac-step1-00000000"] * self.world
        if isinstance(message, int):
            self._said[self.rank] = message
            return [*self._said]
        return [message] * self.world

    def run_on_all(self, action: Any) -> Any:
        return action()


@pytest.mark.parametrize("shared", [True, False])
def test_no_rank_trusts_a_listing_of_the_directory(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [0, 0]
    written: list[str] = []
    write = directory._write

    def noted(path: Path, temporary: str, how: Any) -> None:
        written.append(temporary)
        write(path, temporary, how)

    monkeypatch.setattr(directory, "_write", noted)
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(()))
    for rank in range(2):
        monkeypatch.setattr(directory, "Ranks", lambda group, rank=rank: Machine(rank, said))
        checkpoint.save(tmp_path if shared else tmp_path / f"machine{rank}", holding(1))
    assert said == ([0, 0] if shared else [0, 1])
    manifests = [name for name in written if name.startswith("gravac.json")]
    assert manifests == ["gravac.json.rank0.tmp", *([] if shared else ["gravac.json.rank1.tmp"])]
    assert len(set(written)) == len(written), "two ranks never write under one name"
