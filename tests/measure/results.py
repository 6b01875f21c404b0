# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where a measurement's figures go: the terminal, and a JSON file when asked, with what each was measured with.

A file is ``{"stamps": [...], "rows": [...]}``; a row made with the first stamp has ``"stamp": 0``.
"""

import functools
import json
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gravac.lab.json_file import write_atomically
from gravac.lab.provenance import Stamp, stamp

Rows = list[dict[str, Any]]

STAMP = "stamp"


def write(rows: Rows, path: str | None) -> None:
    """Print rows, and keep them with what they were measured with."""
    print("\n".join(json.dumps(row) for row in rows))
    if path:
        keep(rows, path)


def keep(rows: Rows, path: str) -> None:
    """Write rows to a file; what was there stays until all is written. Rows that bear no stamp get today's."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    stamps: list[Stamp] = []
    kept = []
    for row in rows:
        own = row.get(STAMP, todays())
        if own not in stamps:
            stamps.append(own)
        kept.append({**row, STAMP: stamps.index(own)})
    lines = ",\n".join(json.dumps(row) for row in kept)
    known = ",\n".join(one.model_dump_json() for one in stamps)
    write_atomically(file, f'{{"stamps": [\n{known}\n], "rows": [\n{lines}\n]}}\n')


def read(path: str | Path) -> Rows:
    """Return the rows of a file, each with its ``Stamp``, so that ``keep`` leaves the stamp to the row."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    stamps = [Stamp(**one) for one in content["stamps"]]
    return [{**row, STAMP: stamps[row[STAMP]]} for row in content["rows"]]


@functools.cache
def todays() -> Stamp:
    """The stamp of this measurement, taken when it is first asked for."""
    return stamp()


def interval(values: Sequence[float], resamples: int = 5000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]
