# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Controllers are pure: no torch, no clock, no randomness, no environment."""

import ast
from pathlib import Path

import pytest

import gravac.controllers

pytestmark = pytest.mark.timeout(60)

FORBIDDEN = {"torch", "time", "random", "numpy", "os"}
FOLDER = Path(gravac.controllers.__file__).parent


def imported(source: str) -> set[str]:
    """Top-level packages a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_nothing_impure_is_imported(path: Path) -> None:
    assert not imported(path.read_text(encoding="utf-8")) & FORBIDDEN


@pytest.mark.parametrize("line", ["import torch.nn", "from os import path", "def f():\n    import time as t"])
def test_an_impure_import_would_be_seen(line: str) -> None:
    assert imported(line) & FORBIDDEN
