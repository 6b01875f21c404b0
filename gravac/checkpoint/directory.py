# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint in a directory: a file per rank in a folder of its own, and a manifest that names the folder.

A folder is written once, under a new name, and nobody reads it until a manifest names it; a manifest is replaced whole,
when every rank's file is there; what was there before is removed last. So a kill at any moment leaves the last complete
checkpoint. Where each machine has a directory of its own, each has a manifest, written by the lowest rank of those that
share the directory.

Ranks find out who shares theirs by opening each other's new files by name, since a file system over a network may list
a folder as it was a minute ago. Should one rank not see a file that is there, two write the same manifest, each under a
temporary name of its own.
"""

import json
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gravac.checkpoint.fitting import Manifest, fitted
from gravac.checkpoint.ranks import Checkpointed, Ranks
from gravac.checkpoint.resize import OnResize, check_on_resize, taken_over
from gravac.checkpoint.serial import FORMAT, check_format, state_on_host
from gravac.settings import SettingsError

MANIFEST = "gravac.json"
FOLDER = re.compile(r"gravac-step[0-9]+-[0-9a-f]{8}")
FILE = re.compile(r"rank[0-9]+\.pt")


def save(directory: str | Path, compressor: Checkpointed) -> None:
    """Write a checkpoint of all ranks, in place of the one that the directory holds. Called on every rank.

    Every rank writes its own file, as large as its residuals: four bytes for each compressed parameter.

    Args:
        directory: holds one compressor's checkpoint, on a file system that all ranks share or on each machine's own;
            made where there is none. Other files in it are left alone.
        compressor: the ``AdaptiveCompressor``, between two steps.

    Raises:
        RuntimeError: a rank could not write; raised on all ranks, with that rank and its path. The earlier checkpoint
            is still there.
        SettingsError: the ranks that averaged are not those of the compressor's process group.
    """
    root, ranks = Path(directory), Ranks(compressor.process_group)
    # 1. every rank's work is done  2. one name for all  3. all files are there  4. each knows the first rank that it
    # shares its directory with  5. manifests name the files  6. tidy up
    state = ranks.together(lambda: state_on_host(compressor, ranks))
    name = ranks.tell(f"gravac-step{state['step']}-{secrets.token_hex(4)}")[0]
    path = _file(root / name, ranks.rank)
    try:
        ranks.together(lambda: _write(path, f"{path.name}.tmp", lambda file: torch.save(state, file)))
    except Exception:
        _remove(path.parent)
        raise
    manifest = {"version": FORMAT, "world": ranks.world, "step": state["step"], "folder": name}
    writes = ranks.rank in ranks.tell(
        next(r for r in range(ranks.world) if r == ranks.rank or _is_there(path.parent, r))
    )
    temporary = f"{MANIFEST}.rank{ranks.rank}.tmp"
    ranks.together(lambda: _write(root / MANIFEST, temporary, lambda file: _dump(manifest, file)) if writes else None)
    if writes:
        _tidy(root, name)


def load(directory: str | Path, compressor: Checkpointed, on_resize: OnResize = "mean") -> None:
    """Go on from the checkpoint that a directory holds. Called on every rank, before the first backward.

    With as many ranks as before, each gets its own state, bit for bit.

    Args:
        directory: what ``save`` was given.
        compressor: a new ``AdaptiveCompressor`` with the same compressor and controller, attached or not. Where its
            model's process group is not the default one, attached.
        on_resize: what becomes of residuals at another number of ranks. ``"mean"``: every rank gets their mean;
            ``"keep"``: each rank has its own, new ones have none, and those of ranks that are gone are lost;
            ``"drop"``: none has any. Decisions and the number of steps stay.

    Raises:
        SettingsError: there is no checkpoint, a file of it is missing or cannot be read, it is of another version,
            compressor, controller or model, a part of it is missing or wrong, or ``on_resize`` is not known; raised on
            all ranks, with the rank that found it.
        RuntimeError: the compressor has made steps already; raised on all ranks.
    """
    check_on_resize(on_resize)
    root, ranks = Path(directory), Ranks(compressor.process_group)
    # a kill between the manifests of two machines leaves both folders on both: take the one that all know
    manifest = min(ranks.tell(ranks.together(lambda: _manifest(root))), key=lambda one: (one["step"], one["folder"]))
    world: int = manifest["world"]

    def take_over() -> None:
        def state_of(rank: int) -> dict[str, Any]:
            return _read(_file(root / manifest["folder"], rank), rank, world)

        compressor.load_state_dict(taken_over(world, ranks.world, ranks.rank, on_resize, state_of))

    ranks.together(take_over)


def _write(path: Path, temporary_name: str, write: Callable[[BinaryIO], None]) -> None:
    """Write a file under a temporary name, and give it its own once it is whole."""
    temporary = path.with_name(temporary_name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as failure:
        raise RuntimeError(
            f"{path}: could not be written, and the earlier checkpoint stays: {type(failure).__name__}: {failure}"
        ) from failure


def _dump(manifest: dict[str, Any], file: BinaryIO) -> None:
    file.write(json.dumps(manifest, indent=2).encode())


def _manifest(root: Path) -> dict[str, Any]:
    path = root / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SettingsError(
            f"directory: {root} holds no checkpoint ({MANIFEST} is missing); give the one that gravac.checkpoint.save "
            "was given, and where every machine has its own, on the machines of before"
        ) from None
    except (OSError, ValueError) as failure:
        raise SettingsError(f"directory: {path} cannot be read: {failure}") from failure
    if not isinstance(manifest, dict):
        raise SettingsError(f"directory: {path} holds {manifest!r:.80}, a manifest's fields expected")
    check_format(manifest, str(path))
    return fitted(Manifest, manifest, str(path)).model_dump()


def _read(path: Path, rank: int, world: int) -> dict[str, Any]:
    """Read a rank's state; its tensors are mapped to the file, and read when they are copied."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise SettingsError(
            f"directory: {path} is missing, the state of rank {rank} of {world}; where every machine has a directory "
            "of its own, place ranks as before, or at another number of ranks bring all files to every machine"
        ) from None
    except Exception as failure:
        raise SettingsError(f"directory: {path} cannot be read: {failure}") from failure
    if not isinstance(state, dict):
        raise SettingsError(f"directory: {path} holds {state!r:.80}, and no state")
    return state


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.pt"


def _is_there(folder: Path, rank: int) -> bool:
    """Whether a rank's file can be opened here; nobody has asked for its name before, so no answer is a stale one."""
    try:
        _file(folder, rank).open("rb").close()
    except OSError:
        return False
    return True


def _tidy(root: Path, name: str) -> None:
    """Remove the folders of earlier checkpoints, as far as they are listed and can be removed."""
    with suppress(OSError):
        for folder in [*root.iterdir()]:
            if FOLDER.fullmatch(folder.name) and folder.name != name:
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove what ``save`` wrote into a folder, and the folder, as far as that can be done."""
    with suppress(OSError):
        for path in folder.iterdir():
            if FILE.fullmatch(path.name.removesuffix(".tmp")):
                path.unlink(missing_ok=True)
        folder.rmdir()
