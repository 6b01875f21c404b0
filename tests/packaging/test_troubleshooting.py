# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The page of troubleshooting quotes messages as the package has them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"

SYMPTOM = re.compile(r"^\| (?P<symptom>.+?) \| .+ \|$", re.MULTILINE)
"""A row of a table; its first cell is what a user sees."""

LONG = 12
"""Smallest number of characters of a piece of a message that is looked up: shorter ones stand anywhere."""


def quoted() -> list[str]:
    """Return each message that the page quotes: what stands in code in a table's first column."""
    return [
        message
        for row in SYMPTOM.finditer(PAGE.read_text(encoding="utf-8"))
        for message in re.findall(r"`([^`]+)`", row["symptom"])
    ]


def pieces(message: str) -> list[str]:
    """Return the pieces of a message that do not vary, if they are long enough to be looked up."""
    return [piece.strip() for piece in message.split("...") if len(piece.strip()) >= LONG]


@cache
def texts() -> str:
    """Return all text constants of the package, each on lines of its own."""
    return "\n".join(text for path in (ROOT / "gravac").rglob("*.py") for text in _constants(path))


def _constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_twenty_symptoms_and_more_are_listed() -> None:
    assert len([message for message in quoted() if pieces(message)]) >= 20


@pytest.mark.parametrize("message", [message for message in quoted() if pieces(message)])
def test_the_package_has_each_message(message: str) -> None:
    missing = [piece for piece in pieces(message) if piece not in texts()]
    assert not missing, f"{PAGE.name} quotes {message!r}; no text of the package has {missing}"
