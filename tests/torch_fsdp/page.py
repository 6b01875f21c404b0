# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The tables of torch's FSDP2 tests in ``docs/evidence/hsdp.md``, made of the record's rows."""

from collections.abc import Iterable
from typing import Any

from tests.torch_fsdp.reasons import NO_REPLICAS

Row = dict[str, Any]


def failed_import(path: str, error: str) -> Row:
    """Return the row of a file that the installed torch cannot import."""
    return {"file": path, "reason": error}


def counts(rows: Iterable[Row]) -> str:
    """Return sentences on how many tests there are, pass natively, have replicas, and pass with gravac."""
    tests = [row for row in rows if "test" in row]
    files = len({row["file"] for row in tests})
    native = [row for row in tests if row["native"] == "passed"]
    skipped = sum(row["native"] == "skipped" for row in tests)
    failed = len(tests) - len(native) - skipped
    due = [row for row in native if row["reason"] != NO_REPLICAS]
    passed = [row for row in due if row["gravac"] == "passed"]
    attached, steps = (sum(row[key] for row in passed) for key in ("attached", "steps"))
    return (
        f"{len(tests)} tests in {files} file{'s' * (files != 1)}: {len(native)} pass natively on gloo and the CPU, "
        f"{skipped} are skipped by torch, {failed} {'fails' if failed == 1 else 'fail'}. {len(due)} of the "
        f"{len(native)} train a model with replicas; {len(passed)} of these {len(due)} pass with gravac, attached to "
        f"{attached} models, over {steps} steps."
    )


def table(rows: list[Row]) -> str:
    """Return the tests with replicas, then all that do not pass natively with the reasons, then the files."""
    tests = [row for row in rows if "test" in row]
    due = [row for row in tests if row["native"] == "passed" and row["reason"] != NO_REPLICAS]
    lines = [counts(rows), "", "| trains replicas, passes natively | with gravac | models | steps | why |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for row in sorted(due, key=lambda row: row["gravac"] != "passed"):
        cells = [f"`{_short(row)}`", row["gravac"], row.get("attached", ""), row.get("steps", ""), _cell(row["reason"])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    left = [row for row in tests if row["native"] != "passed"]
    if left:
        lines += ["", "| does not pass natively | natively | why |", "| --- | --- | --- |"]
        lines += [f"| `{_short(row)}` | {row['native']} | {_cell(row['reason'])} |" for row in left]
    return "\n".join([*lines, "", *_files(rows)])


def _files(rows: list[Row]) -> list[str]:
    lines = ["| file | git's name of its content | tests | pass natively | of these without replicas |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for path in sorted({row["file"] for row in rows if "test" in row}):
        tests = [row for row in rows if row["file"] == path]
        native = [row for row in tests if row["native"] == "passed"]
        alone = sum(row["reason"] == NO_REPLICAS for row in native)
        name = path.rsplit("/", 1)[-1]
        lines.append(f"| `{name}` | `{tests[0]['blob'][:12]}` | {len(tests)} | {len(native)} | {alone} |")
    return lines


def _short(row: Row) -> str:
    """Return a test's class and method."""
    name: str = row["test"]
    return name.split("::", 1)[1].replace("::", ".")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
