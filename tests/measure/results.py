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
    text = json.dumps({"torch": torch.__version__, "python": platform.python_version(), "rows": rows}, indent=2)
    print(text)
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text + "\n")


def interval(values: Sequence[float], resamples: int = 5000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]
