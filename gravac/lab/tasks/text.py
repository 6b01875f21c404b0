# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Real text that is on every machine: the source of Python's standard library, as training and validation text."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

VOCABULARY = 128
"""Number of characters told apart: ASCII; every byte of a character outside ASCII counts as character 0."""

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
"""Folders that are not the library itself, or are repetitive test data."""

VALIDATION_EVERY = 12
"""Number of files of which one is kept for validation, so that no validation text is ever trained on."""

_TO_CHARACTERS = bytes(b if b < VOCABULARY else 0 for b in range(256))


@dataclass(frozen=True)
class Text:
    """Two disjoint texts as character codes in ``[0, VOCABULARY)``.

    Attributes:
        train: training text, shape ``(characters,)``, uint8.
        validation: validation text, shape ``(characters,)``, uint8.
        files: number of files that were read.
    """

    train: npt.NDArray[np.uint8]
    validation: npt.NDArray[np.uint8]
    files: int


def library_text(folder: Path | None = None, limit: int = 8_000_000) -> Text:
    """Read the ``*.py`` files of the standard library, sorted by path, up to ``limit`` bytes in all.

    The same machine and Python version give the same text every time; other versions give slightly other text.

    Args:
        folder: folder to read; by default ``sysconfig.get_paths()["stdlib"]``.
        limit: largest number of bytes to read.

    Raises:
        FileNotFoundError: the folder has too little Python source to train on.
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    size = files = 0
    for path in _sources(root):
        source = path.read_bytes()
        if size + len(source) > limit:
            break
        parts[files % VALIDATION_EVERY == VALIDATION_EVERY - 1].append(source)
        size += len(source)
        files += 1
    train, validation = (_characters(b"\n".join(part)) for part in parts)
    if min(len(train), len(validation)) < 10_000:
        raise FileNotFoundError(
            f"standard library source: only {size} bytes of *.py files in {root}; install Python with its library's "
            "source (on Debian: the package libpython3-stdlib)"
        )
    return Text(train=train, validation=validation, files=files)


def _sources(root: Path) -> list[Path]:
    found = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in LEFT_OUT]  # what is taken out here is not walked into
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found, key=Path.as_posix)


def _characters(source: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytearray(source.translate(_TO_CHARACTERS)), dtype=np.uint8)
