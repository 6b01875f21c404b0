# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint loads on all ranks or on none: ranks that load nothing train on, and stay equal."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, SettingsError, Static, checkpoint
from gravac.averaging.average import Averager
from gravac.checkpoint.serial import from_bytes, to_bytes
from tests.checkpoint.mutations import same
from tests.distributed.training import CLASSES, FEATURES, sgd, train, weights
from tests.ranks import processes

Run = tuple[DistributedDataParallel, torch.optim.Optimizer, AdaptiveCompressor]

MODES: dict[str, dict[str, Any]] = {
    "static": {"controller": Static(cf=10)},
    "topk": {"base": "topk", "cf_range": (20, 20), "controller": Static(cf=20)},
    "native": {"controller": Static(cf=1)},
    "default": {},
    "outer": {"every": 4},
}
EVERY = 4


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, FEATURES),
        torch.nn.BatchNorm1d(FEATURES),
        torch.nn.ReLU(),
        torch.nn.Linear(FEATURES, CLASSES),
    )


def fresh(mode: str, attached: bool = True) -> Run:
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    compressor = AdaptiveCompressor(**MODES[mode])
    if attached:
        compressor.attach(ddp, optimizer)
    return ddp, optimizer, compressor


def replace_by_another_runs(file: Path, folder: Path) -> None:
    shutil.copy(next((folder / "earlier").glob(f"*/{file.name}")), file)


def flip(file: Path, folder: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def replace_by_a_folder(file: Path, folder: Path) -> None:
    file.unlink()
    file.mkdir()


FAULTS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "cut": ("rank1.pt", lambda file, folder: file.write_bytes(file.read_bytes()[:700])),
    "gone": ("rank1.pt", lambda file, folder: file.unlink()),
    "first gone": ("rank0.pt", lambda file, folder: file.unlink()),
    "of another run": ("rank1.pt", replace_by_another_runs),
    "flipped": ("rank1.pt", flip),
    "unreadable": ("rank1.pt", replace_by_a_folder),
    "manifest cut": ("gravac.json", lambda file, folder: file.write_bytes(file.read_bytes()[:9])),
    "manifest gone": ("gravac.json", lambda file, folder: file.unlink()),
}


def spoil(good: Path, spoilt: Path, fault: str, rank: int) -> Path:
    """Copy a good checkpoint to a directory for each rank; spoil a file of all directories, or rank 1's manifest."""
    name, how = FAULTS[fault]
    mine = spoilt / f"machine{rank}"
    shutil.copytree(good, mine)
    if name != "gravac.json" or rank == 1:
        (file,) = mine.glob(f"**/{name}")
        how(file, good.parent)
    return mine


def refusal(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"


def trained_on(run: Run, rank: int) -> list[torch.Tensor]:
    """Train some steps; return the ranks' shared weights, in two ranks equal if training is right."""
    ddp, optimizer, compressor = run
    train(ddp, optimizer, rank, range(2 * EVERY))
    with compressor.shared_weights():
        found = weights(ddp).clone()
    compressor.close()
    of_all = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, found)
    return of_all


def save_after(steps: int, mode: str, rank: int, folder: Path) -> None:
    ddp, optimizer, compressor = fresh(mode)
    train(ddp, optimizer, rank, range(steps))
    checkpoint.save(folder, compressor)
    compressor.close()


class Refused(NamedTuple):
    """What a rank saw of faults: errors, whether its state stayed as it was, and whether ranks are equal later."""

    errors: dict[str, str]
    unchanged: dict[str, bool]
    equal: bool


def refused(rank: int, world: int, folder: Path, mode: str) -> list[Refused]:
    """Try all faults on a run that was attached to its model, and one of them on a run that was not."""
    ddp, optimizer, compressor = fresh(mode)
    for name, steps in (("earlier", range(3)), ("good", range(3, 6))):
        train(ddp, optimizer, rank, steps)
        checkpoint.save(folder / name, compressor)
    compressor.close()
    found = []
    for attached, faults in ((True, [fault for fault in FAULTS if fault != "gone"]), (False, ["gone"])):
        run = ddp, optimizer, compressor = fresh(mode, attached)
        errors, unchanged = {}, {}
        for fault in faults:
            path = spoil(folder / "good", folder / fault, fault, rank)
            before = compressor.state_dict(), optimizer.state_dict()
            errors[fault] = refusal(lambda path=path, compressor=compressor: checkpoint.load(path, compressor))
            unchanged[fault] = same(before, (compressor.state_dict(), optimizer.state_dict()))
        if not attached:
            compressor.attach(ddp, optimizer)
        first, second = trained_on(run, rank)
        found.append(Refused(errors, unchanged, torch.equal(first, second)))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_one_rank_cannot_load_is_loaded_by_none_and_all_train_on(mode: str, tmp_path: Path) -> None:
    for one, other in zip(*processes(refused, 2, tmp_path, mode, timeout=150), strict=True):
        assert one.errors == other.errors, "all ranks name the same file"
        for fault, message in one.errors.items():
            name = FAULTS[fault][0]
            assert message.startswith("SettingsError: directory: ")
            assert name in message
            assert f"(on rank {0 if name == 'rank0.pt' else 1} of 2)" in message
            assert one.unchanged[fault] and other.unchanged[fault], f"{fault}: {message}"
        assert one.equal and other.equal, [*one.errors]


class Refusing(torch.optim.SGD):
    """Takes a state, and then raises."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        raise ValueError("not today")


def applied(rank: int, world: int, folder: Path) -> list[Any]:
    """Refusals of one rank's optimizer, after checks and before all ranks agree, and of one rank's memory, later."""
    save_after(6, "outer", rank, folder)
    ddp, _, compressor = fresh("outer", attached=False)
    optimizer = (Refusing if rank else torch.optim.SGD)(ddp.parameters(), lr=0.05, momentum=0.9)
    compressor.attach(ddp, optimizer)
    before = compressor.state_dict(), optimizer.state_dict()
    messages = [refusal(lambda: checkpoint.load(folder, compressor))]
    unchanged = same(before, (compressor.state_dict(), optimizer.state_dict()))
    first, second = trained_on((ddp, optimizer, compressor), rank)
    further_run = fresh("outer")
    with mock.patch.object(Averager, "load", side_effect=MemoryError("no room") if rank else None):
        messages.append(refusal(lambda: checkpoint.load(folder, further_run[2])))
    return [messages, unchanged, torch.equal(first, second)]


def test_what_fails_on_one_rank_while_it_is_applied_is_an_error_on_all(tmp_path: Path) -> None:
    for messages, unchanged, equal in processes(applied, 2, tmp_path, timeout=60):
        optimizer, memory = messages
        assert optimizer.startswith(
            "SettingsError: outer/inner/0: Refusing refuses this state: ValueError('not today')"
        )
        assert "rank1.pt" in optimizer
        assert optimizer.endswith("(on rank 1 of 2)")
        assert memory.startswith("RuntimeError: the state could not be restored: MemoryError: no room; ")
        assert memory.endswith("(on rank 1 of 2)")
        assert unchanged
        assert equal


def attached_later(rank: int, world: int, folder: Path) -> list[Any]:
    """States that were loaded before ``attach``, and that do not fit rank 1's model, or optimizer, as it shows then."""
    save_after(6, "outer", rank, folder)
    found = []
    for path, wrong in (("residual", {"gone": torch.ones(5)}), ("outer", None)):
        ddp, _, compressor = fresh("outer", attached=False)
        optimizer = (Refusing if rank and wrong is None else torch.optim.SGD)(ddp.parameters(), lr=0.05, momentum=0.9)
        checkpoint.load(folder, compressor)
        if rank and wrong is not None:
            compressor.load_state_dict({**compressor.state_dict(), path: wrong})
        message = refusal(lambda compressor=compressor, run=(ddp, optimizer): compressor.attach(*run))
        compressor.close()
        again = AdaptiveCompressor(**MODES["outer"])
        again.attach(ddp, optimizer)
        first, second = trained_on((ddp, optimizer, again), rank)
        found.append((message, torch.equal(first, second)))
    return found


def test_a_loaded_state_that_attach_refuses_on_one_rank_is_refused_on_all(tmp_path: Path) -> None:
    for model, optimizer in processes(attached_later, 2, tmp_path, timeout=60):
        assert model[0].startswith("SettingsError: residual: the model has no parameter 'gone'")
        assert optimizer[0].startswith("SettingsError: outer/inner/0: Refusing refuses this state")
        for message, equal in (model, optimizer):
            assert message.endswith("(on rank 1 of 2)")
            assert equal


def other_ways(rank: int, world: int, folder: Path) -> list[Any]:
    """States in one dict, and of ``torch.distributed.checkpoint``, whose second is of another version."""
    ddp, optimizer, compressor = fresh("topk")
    train(ddp, optimizer, rank, range(2))
    lists = [checkpoint.gather(compressor)]
    stateful = checkpoint.Stateful(compressor)
    if rank == 1:
        wrong = {"rank1of2": to_bytes({**from_bytes(stateful.state_dict()["rank1of2"]), "version": 5})}
        stateful.state_dict = lambda: wrong
    dcp.save({"gravac": stateful}, checkpoint_id=folder)
    compressor.close()
    dist.broadcast_object_list(lists)
    (gathered,) = lists
    gathered["states"][1]["version"] = 5
    loads: tuple[Callable[[AdaptiveCompressor], None], ...] = (
        lambda compressor: checkpoint.load_gathered(gathered, compressor),
        lambda compressor: checkpoint.load_gathered(gathered if rank else None, compressor),  # could not read its file
        lambda compressor: dcp.load({"gravac": checkpoint.Stateful(compressor)}, checkpoint_id=folder),
    )
    found = []
    for load in loads:
        run = fresh("topk")
        message = refusal(lambda load=load, run=run: load(run[2]))
        first, second = trained_on(run, rank)
        found.append((message, torch.equal(first, second)))
    return found


def test_a_state_that_one_rank_refuses_is_loaded_by_none_in_every_way(tmp_path: Path) -> None:
    for gathered, unread, by_dcp in processes(other_ways, 2, tmp_path, timeout=60):
        for message, equal in (gathered, by_dcp):
            assert message.startswith("SettingsError: version: the state has version 5")
            assert message.endswith("(on rank 1 of 2)")
            assert equal
        assert unread[0].startswith("SettingsError: gathered: None holds no states")
        assert "(on rank 0 of 2" in unread[0]
        assert unread[1]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("history", r"history/0: is \[\[...\]\]; .*; load a state that"),
        ("outer", "state: is nested too deeply"),
        ("controller_state", "state: is nested too deeply; load a state that"),
    ],
)
def test_a_state_that_holds_itself_is_refused_in_words(field: str, said: str) -> None:
    state = AdaptiveCompressor().state_dict()
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(SettingsError, match=said):
        AdaptiveCompressor().load_state_dict({**state, field: itself if field == "history" else {"x": itself}})
