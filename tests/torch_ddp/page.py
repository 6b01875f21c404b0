# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lists of ``docs/evidence/torch-ddp-tests.md``: what passes, what is left out and why, what is patched."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.measure.tables import insert
from tests.torch_ddp.cpu import PATCHES
from tests.torch_ddp.ddp import DDPSuite
from tests.torch_ddp.rows import Row


def write(rows: Sequence[Row], path: str, mode: str = "hook") -> None:
    """Put the lists of a mode into a document, between their marks."""
    document = Path(path)
    text = document.read_text(encoding="utf-8")
    lists = {"counts": _counts(rows), "tests": tests(rows), "patches": patches()}
    if mode != "hook":
        lists = {f"counts {mode}": _counts(rows), f"tests {mode}": failed(rows)}
    for name, made in lists.items():
        text = insert(text, name, made)
    document.write_text(text, encoding="utf-8")


def tests(rows: Sequence[Row]) -> str:
    """Every test, those with gravac first, then by the reason."""
    passed = [row for row in rows if row.gravac and row.gravac.passed]
    lines = ["| passes natively and with gravac | DDPs attached | steps |", "| --- | --- | --- |"]
    lines += [f"| `{row.name}` | {row.gravac.attached} | {row.gravac.steps} |" for row in passed if row.gravac]
    left = [row for row in rows if row not in passed and row.reason != DDPSuite.reasons.nothing_made]
    lines += ["", "| left out | natively | why |", "| --- | --- | --- |"]
    for row in sorted(left, key=lambda row: not row.native_passed):
        lines.append(f"| `{row.name}` | {row.plain()['native']} | {_why(row)} |")
    return "\n".join(lines)


def _why(row: Row) -> str:
    """Why a test does not pass, for a table's cell."""
    why: str = row.plain()["reason"].replace("|", "\\|")
    return why if row.reason else f"**fails**: {why}"


def failed(rows: Sequence[Row]) -> str:
    """The tests that fail with gravac though they pass natively, with reasons; tests of one reason stand together."""
    found = sorted((row for row in rows if row.gravac and not row.gravac.passed), key=lambda row: row.reason)
    return "\n".join(["| fails | why |", "| --- | --- |", *(f"| `{row.name}` | {_why(row)} |" for row in found)])


def patches() -> str:
    """What is patched."""
    return "\n".join(
        ["| patched | instead |", "| --- | --- |", *(f"| {one} | {two} |" for one, two in PATCHES.items())]
    )


def _counts(rows: Sequence[Row]) -> str:
    return f"torch {torch.__version__}: {counts(rows)}."


def counts(rows: Sequence[Row]) -> str:
    """What it came to."""
    native = sum(row.native_passed for row in rows)
    hooks = sum(row.native_passed and not row.due for row in rows)
    passed = [row for row in rows if row.gravac and row.gravac.passed]
    attached, steps = (sum(getattr(row.gravac, name) for row in passed) for name in ("attached", "steps"))
    return (
        f"{len(rows)} tests mention a DDP; {native} make one and pass natively; {hooks} of those register a hook; "
        f"{len(passed)} of the other {native - hooks} pass with gravac, attached to {attached} DDPs, over {steps} steps"
    )
