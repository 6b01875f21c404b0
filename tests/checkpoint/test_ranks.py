# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of real ranks over gloo, saved and loaded in every way: the same bits, or a law at another world size."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, dgc, powersgd, quantize, topk
from gravac.checkpoint import OnResize, ranks
from gravac.engine.engine import Engine
from tests.checkpoint.ways import MODES, WAYS, begun, fresh, load, residuals, save
from tests.distributed.training import train, weights
from tests.ranks import processes

NAMED = {"0.weight", "2.weight"}


def resumed(rank: int, world: int, base: Any, cf: float, folder: Path) -> list[torch.Tensor]:
    """The weights of a run, then those of runs that were taken up in its middle."""
    ddp, optimizer, compressor = fresh(base, cf)
    compressor.attach(ddp, optimizer)
    train(ddp, optimizer, rank, range(3))
    for way in WAYS:
        save(way, folder, compressor)
    model = {name: tensor.clone() for name, tensor in ddp.module.state_dict().items()}
    moments = {p: state["momentum_buffer"].clone() for p, state in enumerate(optimizer.state.values())}
    train(ddp, optimizer, rank, range(3, 6))
    compressor.close()
    ran = [weights(ddp)]
    for way in WAYS:
        again, optimizer, compressor = fresh(base, cf)
        again.module.load_state_dict(model)
        for p, parameter in enumerate(again.parameters()):
            optimizer.state[parameter]["momentum_buffer"] = moments[p].clone()
        if way == "gathered":
            compressor.attach(again, optimizer)
        load(way, folder, compressor)
        if way != "gathered":
            compressor.attach(again, optimizer)
        train(again, optimizer, rank, range(3, 6))
        compressor.close()
        ran.append(weights(again))
    return ran


@pytest.mark.parametrize(
    ("world", "base", "cf"),
    [
        (3, topk, 20.0),
        (2, powersgd, 8.0),  # which begins with the factor that it kept
        pytest.param(2, topk, 20.0, marks=pytest.mark.long),
        pytest.param(2, quantize(2), 16.0, marks=pytest.mark.long),
        pytest.param(3, quantize(2), 16.0, marks=pytest.mark.long),
    ],
    ids=["3-topk", "2-powersgd", "2-topk", "2-quantize", "3-quantize"],
)
def test_a_run_goes_on_bit_for_bit_in_every_way(world: int, base: Any, cf: float, tmp_path: Path) -> None:
    for straight, *taken_up in processes(resumed, world, base, cf, tmp_path):
        assert [torch.equal(straight, other) for other in taken_up] == [True] * len(WAYS)


def saved(rank: int, world: int, folder: Path) -> dict[str, torch.Tensor]:
    with begun(rank) as compressor:
        for way in WAYS:
            save(way, folder, compressor)
        return residuals(compressor)


TRAINED = {("directory", "mean"), ("gathered", "keep"), ("dcp", "drop")}
"""What a run then trains on from, each way and each mode once: all ways load the same."""


def loaded(rank: int, world: int, folder: Path, saved_world: int) -> dict[Any, tuple[Any, ...]]:
    """Steps and residuals after each load, and the weights of runs that trained on."""
    found = {}
    for way in WAYS:
        for mode in MODES:
            ddp, optimizer, compressor = fresh()
            load(way, folder, compressor, mode, saved_world)
            state = compressor.state_dict()
            assert (state["rank"], state["world"]) == (rank, world)
            kept = residuals(compressor)
            if (way, mode) in TRAINED:
                compressor.attach(ddp, optimizer)
                train(ddp, optimizer, rank, range(2, 4))
            found[way, mode] = state["step"], kept, weights(ddp)
            compressor.close()
    return found


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2)])
def test_at_another_world_size_every_way_does_what_its_mode_says(before: int, now: int, tmp_path: Path) -> None:
    old = processes(saved, before, tmp_path)
    assert all(rank.keys() == NAMED for rank in old)
    assert not torch.equal(old[0]["0.weight"], old[1]["0.weight"])
    new = processes(loaded, now, tmp_path, before)
    for way in WAYS:
        for mode in MODES:
            steps, kept, trained = zip(*(rank[way, mode] for rank in new), strict=True)
            assert steps == (2,) * now
            assert all(torch.equal(trained[0], other) for other in trained), "replicas must stay alike"
            if mode == "mean":
                for name in NAMED:
                    mean = torch.stack([rank[name] for rank in old]).mean(0)
                    assert all(torch.allclose(rank[name], mean, atol=1e-7) for rank in kept)
            elif mode == "keep":
                for mine, its in zip(kept, [*old, {}], strict=False):
                    assert mine.keys() == its.keys()
                    assert all(torch.equal(mine[name], its[name]) for name in its)
            else:
                assert kept == ({},) * now


def before_attach(rank: int, world: int, folder: Path) -> list[Any]:
    told = []
    for way in WAYS:
        save(way, folder, AdaptiveCompressor(topk))
        compressor = AdaptiveCompressor(topk)
        load(way, folder, compressor)
        told.append([compressor.state_dict()[field] for field in ("rank", "world", "step")])
    return told


def test_before_the_first_step_a_compressor_knows_its_rank_too(tmp_path: Path) -> None:
    assert processes(before_attach, 2, tmp_path) == [[[0, 2, 0]] * 3, [[1, 2, 0]] * 3]


def elsewhere(rank: int, world: int, folder: Path) -> list[Any]:
    """Each rank on a machine with a directory of its own."""
    mine = folder / f"machine{rank}"
    compressor = begun(rank)
    save("directory", mine, compressor)
    kept = residuals(compressor)
    compressor.close()
    again = fresh()[2]
    load("directory", mine, again)
    same = all(torch.equal(kept[name], tensor) for name, tensor in residuals(again).items())
    said = []
    for other in (folder / f"machine{1 - rank}", folder / f"machine{2 * rank}"):
        try:
            load("directory", other, fresh()[2])
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return [same, said]


def test_a_machine_with_a_directory_of_its_own_has_all_it_needs(tmp_path: Path) -> None:
    for same, (moved, unknown) in processes(elsewhere, 2, tmp_path):
        assert same
        assert moved.startswith("SettingsError: directory: ")
        assert "rank0.pt with the state of rank 0 of 2 is missing; if each machine has a directory of its own" in moved
        assert moved.endswith("(on rank 0 of 2; further ranks that failed: 1)")
        assert "machine2/directory holds no checkpoint (gravac.json is missing)" in unknown
        assert unknown.endswith("(on rank 1 of 2)")


def between_manifests(rank: int, world: int, folder: Path) -> int:
    """Both machines have both folders, and only the first has the manifest of the second."""
    mine = folder / f"machine{rank}"
    for steps in (2, 3):
        with begun(rank, steps) as compressor:
            save("directory", mine, compressor)
        if steps == 2:
            shutil.copytree(mine / "directory", mine / "earlier")
    (earlier,) = (mine / "earlier").glob("gravac-step*")
    shutil.copytree(earlier, mine / "directory" / earlier.name)
    if rank == 1:
        shutil.copy(mine / "earlier" / "gravac.json", mine / "directory")
    compressor = fresh()[2]
    load("directory", mine, compressor)
    step: int = compressor.state_dict()["step"]
    return step


def test_ranks_take_up_the_same_step_when_a_kill_came_between_two_machines(tmp_path: Path) -> None:
    assert processes(between_manifests, 2, tmp_path) == [2, 2]


def unwritable(rank: int, world: int, folder: Path) -> list[Any]:
    (folder / "file").touch()
    with begun(rank, 2) as compressor:
        save("directory", folder, compressor)
        before = sorted(path.name for path in (folder / "directory").iterdir())
        said = ""
        try:
            save("directory", folder / "file" if rank == 1 else folder, compressor)
        except RuntimeError as error:
            said = str(error)
        dist.barrier()
        after = sorted(path.name for path in (folder / "directory").iterdir())
    again = fresh()[2]
    load("directory", folder, again)
    return [said, before == after, again.state_dict()["step"]]


def test_all_ranks_are_told_which_one_could_not_write(tmp_path: Path) -> None:
    for said, unchanged, step in processes(unwritable, 2, tmp_path):
        assert "/file/directory/gravac-step2-" in said
        assert "rank1.pt: could not be written, so the earlier checkpoint stays: NotADirectoryError: " in said
        assert said.endswith("(on rank 1 of 2)")
        assert unchanged
        assert step == 2


def in_small_pieces(rank: int, world: int) -> list[bytes] | None:
    ranks.CHUNK_BYTES = 300
    return ranks.Ranks(None).gather(bytes([rank]) * (1000 * rank + 3))


def test_bytes_of_any_length_are_collected_piece_by_piece() -> None:
    first, *others = processes(in_small_pieces, 3)
    assert first == [bytes([rank]) * (1000 * rank + 3) for rank in range(3)]
    assert others == [None, None]


REMEMBERING = {"powersgd": (powersgd, 8.0), "dgc": (dgc, 20.0), "quantize": (quantize(2), 16.0)}


def remembering(rank: int, world: int, folder: Path, modes: Sequence[OnResize]) -> list[bool]:
    """Save compressors that remember more than residuals; or load them in some modes, and see what came of that."""
    told = []
    for name, (base, cf) in REMEMBERING.items():
        for mode in modes or (None,):
            ddp, _, compressor = fresh(base, cf)
            if mode is not None:
                load("directory", folder / name, compressor, mode)
            compressor.attach(ddp)
            train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), rank, range(2))
            if mode is None:
                save("directory", folder / name, compressor)
            compressor.close()
            of_all = [torch.empty_like(weights(ddp)) for _ in range(world)]
            dist.all_gather(of_all, weights(ddp))
            told.append(all(torch.equal(of_all[0], other) for other in of_all))
    return told


@pytest.mark.parametrize(
    ("before", "now", "modes"),
    [
        (1, 3, ["keep"]),  # which leaves the second and third rank without residuals
        (3, 2, ["mean", "drop"]),
        pytest.param(1, 3, ["mean", "drop"], marks=pytest.mark.long),
        pytest.param(3, 2, ["keep"], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_replicas_stay_alike_after_a_resize_whatever_compressors_remember(
    before: int, now: int, modes: Sequence[OnResize], tmp_path: Path
) -> None:
    processes(remembering, before, tmp_path, ())
    for told in processes(remembering, now, tmp_path, modes):
        assert told == [True] * len(REMEMBERING) * len(modes)


def sharded(rank: int, world: int, folder: Path) -> list[Any]:
    """Two pairs of ranks average a part each, and all four decide together."""
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]

    def opened() -> tuple[AdaptiveCompressor, Engine]:
        compressor = fresh()[2]
        return compressor, compressor.attach_parameters(
            {"w": part}, group=pairs[rank % 2], agree_group=dist.group.WORLD
        )

    part = torch.randn(64, 64, generator=torch.Generator().manual_seed(rank))
    compressor, engine = opened()
    engine.begin()
    handle = engine.ready([("w", part)])
    engine.end()
    handle.wait()
    save("directory", folder, compressor)
    again, _ = opened()
    load("directory", folder, again)
    files = sorted(path.name for path in folder.glob("*/*/rank*.pt"))
    same = torch.equal(residuals(compressor)["w"], residuals(again)["w"])
    compressor.close()
    again.close()
    return [files, same]


def test_ranks_that_decide_together_are_saved_together(tmp_path: Path) -> None:
    for files, same in processes(sharded, 4, tmp_path):
        assert files == [f"rank{rank}.pt" for rank in range(4)]
        assert same
