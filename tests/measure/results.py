# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where a measurement's figures go: the terminal, and a JSON file when asked."""

import json
import platform
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def write(rows: list[dict[str, Any]], path: str | None) -> None:
    """Print rows, and keep them with what they were measured on."""
    print(_text(rows))
    if path:
        keep(rows, path)


def keep(rows: list[dict[str, Any]], path: str) -> None:
    """Write rows to a file, with what they were measured on; what was there stays until all is written."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(_text(rows) + "\n")
    partial.replace(file)


def _text(rows: list[dict[str, Any]]) -> str:
    own = {"torch": torch.__version__, "python": platform.python_version()}
    lines = ",\n".join(json.dumps(row) for row in rows)
    return json.dumps(own)[:-1] + f', "rows": [\n{lines}\n]}}'


def interval(values: Sequence[float], resamples: int = 5000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]
