# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A kill at any moment of ``save`` leaves a complete checkpoint: the earlier one, or the new one."""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, checkpoint, topk
from tests.checkpoint.ways import begun, fresh, residuals
from tests.ranks import processes

TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def holding(step: int) -> AdaptiveCompressor:
    compressor = AdaptiveCompressor(topk)
    state = compressor.state_dict()
    compressor.load_state_dict({**state, "step": step, "residual": {"w": torch.full((8,), float(step))}})
    return compressor


def die_at(touch: int, directory: Path) -> None:
    """Kill this process just before it touches the directory's files for the ``touch``-th time."""
    touches = itertools.count(1)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in TOUCHES and str(args[0]).startswith(str(directory)) and next(touches) == touch:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def test_killed_before_any_touch_of_a_file_the_directory_holds_a_whole_checkpoint(tmp_path: Path) -> None:
    found = []
    for touch in itertools.count(1):
        directory = tmp_path / str(touch)
        checkpoint.save(directory, holding(1))
        child = os.fork()
        if child == 0:
            die_at(touch, directory)
            checkpoint.save(directory, holding(2))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        after = AdaptiveCompressor(topk)
        checkpoint.load(directory, after)
        state = after.state_dict()
        assert torch.equal(state["residual"]["w"], torch.full((8,), float(state["step"])))
        found.append(state["step"])
        checkpoint.save(directory, holding(3))
        assert len([*directory.iterdir()]) == 2, "the next save leaves its manifest and its folder"
        if status == 0:
            break
    assert found == sorted(found)
    assert found.count(1) >= 5
    assert found.count(2) >= 3


def killed(rank: int, world: int, directory: Path) -> None:
    compressor = begun(rank, 3)
    if rank == 1:

        def half(state: Any, file: Any) -> None:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        torch.save = half
    checkpoint.save(directory, compressor)


def saved(rank: int, world: int, directory: Path) -> dict[str, torch.Tensor]:
    with begun(rank, 2) as compressor:
        checkpoint.save(directory, compressor)
        return residuals(compressor)


def loaded(rank: int, world: int, directory: Path) -> tuple[int, dict[str, torch.Tensor]]:
    compressor = fresh()[2]
    checkpoint.load(directory, compressor)
    return compressor.state_dict()["step"], residuals(compressor)


def test_a_rank_killed_as_it_writes_leaves_the_earlier_checkpoint_of_all(tmp_path: Path) -> None:
    before = processes(saved, 2, tmp_path)
    with pytest.raises(AssertionError, match="rank 0:"):  # it is told that its peer is gone
        processes(killed, 2, tmp_path)
    assert len([*tmp_path.glob("gravac-step3-*/rank1.pt.tmp")]) <= 1
    for kept, (step, found) in zip(before, processes(loaded, 2, tmp_path), strict=True):
        assert step == 2
        assert found.keys() == kept.keys()
        assert all(torch.equal(found[name], kept[name]) for name in kept)
