# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint is given, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from gravac import AdaptiveCompressor, SettingsError, checkpoint, topk
from tests.checkpoint.test_kill import holding
from tests.checkpoint.ways import begun, fresh, load, residuals, save
from tests.ranks import processes


def refused(action: Callable[[], Any]) -> str:
    """What DCP says; its exception is no ``Exception``."""
    with pytest.raises(CheckpointException) as error:
        action()
    return str(error.value)


def mistakes(rank: int, world: int, folder: Path) -> list[str]:
    said: list[str] = []

    def says(action: Callable[[], Any]) -> None:
        said.append(refused(action))

    with begun(rank) as compressor:
        says(lambda: dcp.save({"gravac": compressor}, checkpoint_id=folder / "itself"))
        says(lambda: dcp.save({"all": {"gravac": compressor.state_dict()}}, checkpoint_id=folder / "state"))
        save("dcp", folder, compressor)
        says(lambda: dcp.load({"gravac": fresh()[2]}, checkpoint_id=folder / "dcp"))
        says(lambda: load("dcp", folder, fresh()[2], saved_world=3))
        pending = checkpoint.Stateful(compressor, saved_world=3)
        says(lambda: dcp.save({"gravac": pending}, checkpoint_id=folder / "pending"))
    return said


def test_mistakes_with_dcp_are_refused_on_all_ranks(tmp_path: Path) -> None:
    for itself, state, loading, other_world, pending in processes(mistakes, 2, tmp_path):
        for said in (itself, state, loading):
            assert "torch.distributed.checkpoint.needs gravac.checkpoint.Stateful(compressor)" in said
        assert "Missing key in checkpoint state_dict: gravac.rank0of3" in other_world
        assert "use gravac.checkpoint.Stateful(compressor) without" in pending


def saved(rank: int, world: int, folder: Path) -> None:
    with begun(rank) as compressor:
        save("dcp", folder, compressor)


def not_announced(rank: int, world: int, folder: Path) -> str:
    return refused(lambda: load("dcp", folder, fresh()[2]))


def announced(rank: int, world: int, folder: Path) -> tuple[str, Any, Any]:
    """What DCP says at first; then the residuals that were loaded, and those of a checkpoint that was made of them."""
    said = not_announced(rank, world, folder)
    compressor = fresh()[2]
    stateful = checkpoint.Stateful(compressor, saved_world=2)
    dcp.load({"gravac": stateful}, checkpoint_id=folder / "dcp")
    dcp.save({"gravac": stateful}, checkpoint_id=folder / "again")
    again = fresh()[2]
    dcp.load({"gravac": checkpoint.Stateful(again)}, checkpoint_id=folder / "again")
    return said, residuals(compressor), residuals(again)


def test_another_world_size_must_be_announced_and_what_was_loaded_is_saved_at_this_one(tmp_path: Path) -> None:
    processes(saved, 2, tmp_path)
    missing = "Missing key in checkpoint state_dict: gravac.rank0of"
    assert missing in processes(not_announced, 1, tmp_path)[0]
    for said, first, second in processes(announced, 3, tmp_path):
        assert missing in said
        assert first.keys() == second.keys() != set()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_state_is_one_opaque_value_and_goes_round() -> None:
    state = checkpoint.Stateful(holding(3)).state_dict()
    assert [(key, type(value)) for key, value in state.items()] == [("rank0of1", bytes)]
    compressor = AdaptiveCompressor(topk)
    checkpoint.Stateful(compressor).load_state_dict(state)
    assert torch.equal(compressor.state_dict()["residual"]["w"], torch.full((8,), 3.0))


def test_a_number_of_ranks_is_one_or_more() -> None:
    with pytest.raises(SettingsError, match="saved_world: 0 is not a number of ranks"):
        checkpoint.Stateful(AdaptiveCompressor(topk), saved_world=0)
    checkpoint.Stateful(AdaptiveCompressor(topk), saved_world=1)
