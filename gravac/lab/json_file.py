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


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` to a file as indented JSON, completely or not at all; see ``write_atomically``."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, completely or not at all: an interrupt leaves no half file and no temporary file.

    An existing file keeps its permissions; a new file gets the permissions that the process's umask allows.
    """
    temporary_path = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
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
