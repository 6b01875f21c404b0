# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Puts the tables of ``docs/measurements/*.json`` into ``docs/measurements.md``, between the marks that name them.

python -m tests.measure.tables
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.measure import ladder, worth

DOCUMENT = Path("docs/measurements.md")
FOLDER = Path("docs/measurements")

Rows = list[dict[str, Any]]


def compressors(rows: Rows) -> str:
    """Of ``gravac bench compressors``."""
    lines = [
        "| compressor | CF | wire ratio | gain | vNMSE | encode | decode | total (quartiles) | extra MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        shares = " | ".join(f"{row[f'{part}_over_copy']:.1f}" for part in ("encode", "decode", "total"))
        spread = f"({row['total_over_copy_low']:.1f}-{row['total_over_copy_high']:.1f})"
        lines.append(
            f"| `{row['compressor']}` | {row['cf']:.4g} | {row['wire_ratio']:.4g} | {row['gain']:.3f} "
            f"| {row['vnmse']:.3g} | {shares} {spread} | {row['extra_bytes'] / 1e6:.0f} |"
        )
    return "\n".join(lines)


TABLES: dict[str, Callable[[Rows], str]] = {
    "worth": worth.table,
    "ladder": ladder.table,
    "compressors": compressors,
}
"""What makes a table of a file's rows, by the file's name without its ending."""


def insert(text: str, name: str, table: str) -> str:
    """The document with what stands between a table's marks replaced."""
    begin, end = f"<!-- table {name}: begin -->", f"<!-- table {name}: end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{table.strip()}\n\n{end}{after}"


def main() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        text = insert(text, name, table(found["rows"] if isinstance(found, dict) else found))
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
