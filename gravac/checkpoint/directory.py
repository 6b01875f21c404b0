# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a directory: a folder with a file for each rank, and a manifest that names the newest folder.

Each checkpoint is written to a new folder. No rank reads the folder until the manifest, a small file, names it. When
every rank's file is complete, the manifest is replaced atomically; the earlier folder is removed last. If the run is
killed at any moment, the newest complete checkpoint therefore remains. If each machine has a directory of its own, each
directory has a manifest. The lowest of the ranks that share a directory writes its manifest.

Ranks find out which of them share a directory by opening each other's new files by name, since a network file system
may list a folder as it was a minute ago. If a rank does not see an existing file, two ranks write the same manifest.
That does no harm, since each rank first writes under a temporary name of its own.

The manifest has a checksum of each rank's file and of itself. A file is unpickled only if its checksum is right.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import torch
from pydantic import Field

from gravac.checkpoint.ranks import Checkpointed, Ranks, restore_on_all
from gravac.checkpoint.resize import OnResize, check_on_resize, state_to_load
from gravac.checkpoint.serial import check_format, state_on_host
from gravac.ranges import Count, PositiveCount
from gravac.saved import dump_fields, load_fields, misfit
from gravac.settings import SettingsError

MANIFEST = "gravac.json"
"""Name of the manifest, the file in a directory that names the newest checkpoint's folder."""

MANIFEST_VERSION = 2
"""Version of the manifests that ``save`` writes, and the only version that ``load`` reads; 1 had no checksums."""

FOLDER_PATTERN = re.compile(r"gravac-step[0-9]+-[0-9a-f]{8}")
"""Pattern of the names of checkpoints' folders."""

FILE_PATTERN = re.compile(r"rank[0-9]+\.pt")
"""Pattern of the names of ranks' files in a folder."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Fields of a checkpoint directory's manifest, the file that names the newest checkpoint's folder.

    Attributes:
        sha256: SHA-256 of each rank's file, in hexadecimal, in the order of the ranks.
    """

    version: int
    world: PositiveCount
    step: Count
    folder: Annotated[str, Field(pattern=rf"^{FOLDER_PATTERN.pattern}\z")]
    sha256: tuple[str, ...]


def save(directory: str | Path, compressor: Checkpointed) -> None:
    """Write a checkpoint of all ranks, which replaces the directory's earlier checkpoint. Called on every rank.

    Every rank writes its own file, about as large as its residuals: four bytes per element of the compressed tensors.

    Args:
        directory: directory for the checkpoint of one compressor: on a file system that all ranks share, or a separate
            directory on each machine. Created if it does not exist; other files in the directory stay.
        compressor: the ``AdaptiveCompressor``, between two steps.

    Raises:
        RuntimeError: a rank could not write; raised on all ranks, and the message has that rank, the path and the
            cause. The earlier checkpoint stays.
        SettingsError: the ranks that the compressor averages over are not those of its process group.
    """
    root, ranks = Path(directory), Ranks(compressor.process_group)
    # 1. wait until every rank's work is done  2. agree on a folder name  3. write all files  4. collect their checksums
    # 5. find the lowest rank that shares the directory  6. write manifests that name the folder  7. remove earlier
    # folders
    state = ranks.run_on_all(lambda: state_on_host(compressor, ranks))
    folder_name = ranks.all_gather(f"gravac-step{state['step']}-{secrets.token_hex(4)}")[0]
    path = _rank_file(root / folder_name, ranks.rank)
    try:
        sha256 = ranks.run_on_all(lambda: _write(path, f"{path.name}.tmp", lambda file: torch.save(state, file)))
    except Exception:
        _remove_folder(path.parent)
        raise
    manifest = {
        "version": MANIFEST_VERSION,
        "world": ranks.world,
        "step": state["step"],
        "folder": folder_name,
        "sha256": ranks.all_gather(sha256),
    }
    writes_manifest = ranks.rank in ranks.all_gather(
        next(rank for rank in range(ranks.world) if rank == ranks.rank or _can_open(path.parent, rank))
    )
    temporary_name = f"{MANIFEST}.rank{ranks.rank}.tmp"
    ranks.run_on_all(
        lambda: (
            _write(root / MANIFEST, temporary_name, lambda file: file.write(_manifest_bytes(manifest)))
            if writes_manifest
            else None
        )
    )
    if writes_manifest:
        _remove_earlier_folders(root, folder_name)


def load(directory: str | Path, compressor: Checkpointed, on_resize: OnResize = "mean") -> None:
    """Restore a compressor from a directory's checkpoint. Called on every rank, before the first backward.

    The checkpoint is loaded on all ranks, or on none: after an error, all ranks may train on without it. If as many
    ranks load as saved, each rank gets its own state, bit for bit.

    Args:
        directory: the directory that was given to ``save``.
        compressor: a new ``AdaptiveCompressor`` with the same base compressor and the same controller. If the model's
            process group is not the default group, attach the model first.
        on_resize: what becomes of residuals if another number of ranks loads. ``"mean"``, the default: every rank gets
            the mean of all ranks' residuals. ``"keep"``: each rank gets its own residuals; new ranks get none, and
            those of missing ranks are lost. ``"drop"``: all residuals are dropped. Decisions and the number of steps
            are always restored.

    Raises:
        SettingsError: the directory holds no checkpoint; a file is missing, damaged or cannot be read; the checkpoint
            is of another version, compressor, controller or model; a field is missing or wrong; or ``on_resize`` is not
            known. Raised on all ranks; the message has the file, and the rank that found the error.
        RuntimeError: the compressor has made steps already, and nothing has changed; or a rank could not restore what
            it had read and checked, for example for lack of memory. Raised on all ranks.
    """
    root, ranks = Path(directory), Ranks(compressor.process_group)

    def read_manifest() -> dict[str, Any]:
        check_on_resize(on_resize)
        return _read_manifest(root)

    manifest = ranks.run_on_all(read_manifest)
    # a run that was killed while it saved may have replaced the manifest on some machines only; every machine then
    # still has the folders of both checkpoints: load the older one
    if len({*ranks.all_gather(manifest["folder"])}) > 1:
        manifest = min(ranks.all_gather(manifest), key=lambda fields: (fields["step"], fields["folder"]))
    world, folder = manifest["world"], root / manifest["folder"]

    def state_of(rank: int) -> dict[str, Any]:
        return _read_state(_rank_file(folder, rank), rank, manifest)

    def restoring() -> AbstractContextManager[None]:
        state = state_to_load(world, ranks.world, ranks.rank, on_resize, state_of, compressor.shards)
        return compressor.restoring(state)

    restore_on_all(ranks, restoring, str(_rank_file(folder, ranks.rank) if world == ranks.world else folder))


class _HashingFile:
    """Passes what is written on to a file, and computes its checksum.

    Args:
        file: the file, open for writing bytes.

    Attributes:
        sha256: checksum of all bytes written so far.
        failure: error of the first write that failed, which ``torch.save`` hides; ``None``: none failed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()
        self.failure: OSError | None = None
        self.flush = file.flush

    def write(self, content: bytes) -> int:
        try:
            self._file.write(content)
        except OSError as failure:
            self.failure = self.failure or failure
            raise
        self.sha256.update(content)
        return len(content)


def _write(path: Path, temporary_name: str, write_content: Callable[[Any], object]) -> str:
    """Write a file under a temporary name, and rename the file when it is complete; return its SHA-256.

    Args:
        path: path of the complete file; its folder is created if it does not exist.
        temporary_name: name of the file until it is complete.
        write_content: function that gets the file, open for writing bytes, and writes the content.

    Raises:
        RuntimeError: the file could not be written.
    """
    temporary_path, hashing_file = path.with_name(temporary_name), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_path.open("wb") as file:
            hashing_file = _HashingFile(file)
            write_content(hashing_file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_path, path)
    except Exception as failure:
        cause = failure if hashing_file is None else hashing_file.failure or failure
        raise RuntimeError(
            f"{path}: could not be written, so the earlier checkpoint stays: {type(cause).__name__}: {cause}"
        ) from failure
    return hashing_file.sha256.hexdigest()


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """Return the content of a manifest's file: the fields and, as the last field, a checksum of these fields."""
    checksum = hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
    return json.dumps({**manifest, "checksum": checksum}, indent=2).encode()


def _read_manifest(root: Path) -> dict[str, Any]:
    """Read a directory's manifest, and return its fields.

    Raises:
        SettingsError: the manifest is missing, damaged or cannot be read, or its fields are wrong.
    """
    path = root / MANIFEST
    try:
        content = path.read_bytes()
        manifest: dict[str, Any] = json.loads(content)
    except FileNotFoundError:
        raise SettingsError(
            f"directory: {root} holds no checkpoint ({MANIFEST} is missing); give the directory that you gave to "
            "gravac.checkpoint.save; if each machine has its own directory, start the same ranks on each machine as "
            "before"
        ) from None
    except (OSError, ValueError, RecursionError) as failure:
        raise SettingsError(
            f"directory: {path} cannot be read: {failure}; check the file's permissions, or load another checkpoint"
        ) from failure
    if not isinstance(manifest, dict):
        raise SettingsError(
            f"directory: {path} holds {manifest!r:.80}, which is not a manifest of gravac; give the directory that "
            "gravac.checkpoint.save wrote"
        )
    check_format(manifest, MANIFEST_VERSION, str(path))
    manifest.pop("checksum", None)
    if content != _manifest_bytes(manifest):
        raise SettingsError(
            f"directory: {path} is damaged: its content has another checksum than when it was saved; load another "
            "checkpoint"
        )
    fields = dump_fields(load_fields(Manifest, manifest, str(path)))
    if len(fields["sha256"]) != fields["world"]:
        raise misfit(f"{path}/sha256", f"has {len(fields['sha256'])} checksums", f"have {fields['world']}")
    return fields


def _read_state(path: Path, rank: int, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's saved state. Its tensors are mapped to the file, and only read when they are copied.

    Args:
        path: path of the rank's file.
        rank: number of the rank that saved the state.
        manifest: the checkpoint's manifest.

    Raises:
        SettingsError: the file is missing, has another checksum than the manifest says, cannot be read, or holds no
            state.
    """
    try:
        sha256 = _sha256(path)
        if sha256 != manifest["sha256"][rank]:
            raise SettingsError(
                f"directory: {path} is damaged, or is of another checkpoint: its SHA-256 is {sha256}, but {MANIFEST} "
                f"has {manifest['sha256'][rank]}; copy the file anew from where it was saved, or load another "
                "checkpoint"
            )
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except SettingsError:
        raise
    except FileNotFoundError:
        raise SettingsError(
            f"directory: the file {path} with the state of rank {rank} of {manifest['world']} is missing; if each "
            "machine has a directory of its own, start the same ranks on each machine as before, or copy all files to "
            "all machines"
        ) from None
    except Exception as failure:
        raise SettingsError(
            f"directory: {path} cannot be read: {failure}; check the file's permissions, or load another checkpoint"
        ) from failure
    if not isinstance(state, dict):
        raise SettingsError(
            f"directory: {path} holds {state!r:.80}, which is not the state of a rank; load another checkpoint"
        )
    return state


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while content := file.read(2**20):
            sha256.update(content)
    return sha256.hexdigest()


def _rank_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's file in a checkpoint's folder."""
    return folder / f"rank{rank}.pt"


def _can_open(folder: Path, rank: int) -> bool:
    """True if this process can open a rank's file in the folder of a checkpoint.

    The names of a new checkpoint's files were never used before, so a network file system has no outdated cache entries
    for these names.
    """
    try:
        _rank_file(folder, rank).open("rb").close()
    except OSError:
        return False
    return True


def _remove_earlier_folders(root: Path, newest_folder_name: str) -> None:
    """Remove the folders of earlier checkpoints; ignore folders that cannot be listed or removed.

    Args:
        root: directory of the checkpoint.
        newest_folder_name: name of the newest checkpoint's folder, which stays.
    """
    with suppress(OSError):
        for folder in [*root.iterdir()]:
            if FOLDER_PATTERN.fullmatch(folder.name) and folder.name != newest_folder_name:
                _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """Remove the files that ``save`` wrote into a folder, then the folder; ignore errors of the file system."""
    with suppress(OSError):
        for path in folder.iterdir():
            if FILE_PATTERN.fullmatch(path.name.removesuffix(".tmp")):
                path.unlink(missing_ok=True)
        folder.rmdir()
