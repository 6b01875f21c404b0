# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes JSON files and text files atomically: a reader never finds half of a file's content."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any


def check_writable(setting: str, path: Path) -> None:
    """Raise if a result could not be written to a file; called before the work that has the result.

    Args:
        setting: name of the setting that gave the path.
        path: path of the file, which need not exist.

    Raises:
        ValueError: the path is a folder, or its folder does not exist or cannot be written to.
    """
    if path.is_dir():
        raise ValueError(f"{setting}: {path} is a folder; name a file in it")
    _check_folder(setting, path.parent)


def check_folder_can_be_made(setting: str, folder: Path) -> None:
    """Raise if a folder does not exist and could not be made, or cannot be written to.

    Args:
        setting: name of the setting that gave the folder.
        folder: path of the folder.

    Raises:
        ValueError: the nearest path above that exists is no folder, or cannot be written to.
    """
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    _check_folder(setting, folder)


def _check_folder(setting: str, folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{setting}: {folder} is not a folder; make the folder first, or name another")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{setting}: {folder} is not writable; name another folder")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to a file as indented JSON, completely or not at all; see ``write_atomically``."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, completely or not at all: an interrupt leaves no half file and no temporary file.

    An existing file keeps its permissions; a new file gets the permissions that the process's umask allows.
    """
    temporary_path = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # with the path that the user gave
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        with suppress(FileNotFoundError):
            os.chmod(temporary_path, stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary_path, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary_path)
        raise
