# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run of torch's FSDP2 tests came to, in sentences."""

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
