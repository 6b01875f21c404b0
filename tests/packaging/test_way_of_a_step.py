# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The way of a step, in docs/explanation/architecture.md, names every function that a recorded step entered."""

import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def recorded() -> list[str]:
    """Functions of the committed record, as ``file:qualified name``."""
    lines = (DOCS / "measurements/walk.json").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line.rstrip(",")) for line in lines if '"what": "way"' in line]
    return [function for row in rows for function in row["functions"]]


def explained() -> set[str]:
    """Names in code quotes in the numbered list."""
    text = (DOCS / "explanation/architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## The way of a step\n")[1].split("\n## ")[0]
    return set(re.findall(r"`([^`]+)`", section))


def test_each_function_of_the_recorded_step_is_explained() -> None:
    functions = recorded()
    assert len(functions) > 100
    names = explained()
    missing = [function for function in functions if function.split(":")[1].replace(".<locals>", "") not in names]
    assert not missing


def test_its_items_are_numbered_in_order() -> None:
    text = (DOCS / "explanation/architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## The way of a step\n")[1].split("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    assert numbers == [*range(1, len(numbers) + 1)]
