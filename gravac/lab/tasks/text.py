# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reads the source of Python's standard library, a text that every machine has, for training and for validation."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

VOCABULARY = 128
"""Number of different character codes: those of ASCII. Each byte outside ASCII gets the code 0."""

EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
"""Names of folders to skip: they do not belong to the library, or have repetitive test data."""

FILES_PER_VALIDATION_FILE = 12
"""One of this many files is for validation; all other files are for training."""

_TO_CHARACTERS = bytes(byte if byte < VOCABULARY else 0 for byte in range(256))
"""Table for ``bytes.translate`` from bytes to character codes."""


@dataclass(frozen=True)
class Text:
    """A training text and a validation text without common files, as character codes in ``[0, VOCABULARY)``.

    Attributes:
        train: training text, shape ``(characters,)``, uint8.
        validation: validation text, shape ``(characters,)``, uint8.
        files: number of files that were read.
    """

    train: npt.NDArray[np.uint8]
    validation: npt.NDArray[np.uint8]
    files: int


def library_text(folder: Path | None = None, limit: int = 8_000_000) -> Text:
    """Return the text of the standard library's ``*.py`` files, split into a training and a validation text.

    Files are read by ascending path, until the next file would exceed ``limit`` bytes in all. The same machine and
    Python version always give the same text. Other versions give a slightly different text.

    Args:
        folder: folder to read, with its subfolders; ``None``: that of the standard library.
        limit: maximum number of bytes to read from all files.

    Raises:
        FileNotFoundError: the folder has too little Python source to train on.
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    source_parts: tuple[list[bytes], list[bytes]] = ([], [])  # for training, for validation
    read_byte_count = file_count = 0
    for path in _source_paths(root):
        source = path.read_bytes()
        if read_byte_count + len(source) > limit:
            break
        source_parts[file_count % FILES_PER_VALIDATION_FILE == FILES_PER_VALIDATION_FILE - 1].append(source)
        read_byte_count += len(source)
        file_count += 1
    train, validation = (_character_codes(b"\n".join(sources)) for sources in source_parts)
    if min(len(train), len(validation)) < 10_000:
        raise FileNotFoundError(
            f"standard library source: only {read_byte_count} bytes of *.py files in {root}; install Python with its "
            "library's source (on Debian: the package libpython3-stdlib)"
        )
    return Text(train=train, validation=validation, files=file_count)


def _source_paths(root: Path) -> list[Path]:
    """Return the ``*.py`` files in a folder and its subfolders, by ascending path; skip ``EXCLUDED_FOLDERS``."""
    paths = []
    for folder, subfolders, file_names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in EXCLUDED_FOLDERS]  # os.walk skips removed folders
        paths += [Path(folder, name) for name in file_names if name.endswith(".py")]
    return sorted(paths, key=Path.as_posix)


def _character_codes(source: bytes) -> npt.NDArray[np.uint8]:
    """Return the character code of each byte of a text, shape ``(bytes,)``, uint8."""
    return np.frombuffer(bytearray(source.translate(_TO_CHARACTERS)), dtype=np.uint8)
