# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The parts, and how they are run: each in a process of its own, so that one that fails leaves the others be."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]

LINES = 12
"""Last lines of what a process said, that are kept where it failed."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the measurement.

    Attributes:
        name: what rows and the command line call it.
        module: module whose ``rows`` gives its rows one by one.
        seconds: its time limit.
        without: modules that cannot be imported there.
        environment: variables that are set there.
    """

    name: str
    module: str
    seconds: float
    without: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


HERE = "tests.measure.gpu"

PARTS = (
    Part("machine", f"{HERE}.machine", 40),
    Part("bits", f"{HERE}.bits", 80),
    Part("nccl", f"{HERE}.nccl", 80),
    Part("codecs", f"{HERE}.codecs", 90),
    Part("codecs without triton", f"{HERE}.codecs", 80, without=("triton",)),
    Part("dense", f"{HERE}.dense", 60),
    Part("overlap", f"{HERE}.overlap", 60),
    Part("ranks", f"{HERE}.ranks", 90),
    Part("sanitizer", f"{HERE}.sanitizer", 60, environment={"TORCH_CUDA_SANITIZER": "1"}),
    Part("kernels", f"{HERE}.kernels", 90),
)
"""All parts, what matters most first."""


def run_all(parts: Sequence[Part], seconds: float, kept: Callable[[list[Row]], None]) -> list[Row]:
    """Run parts one after the other.

    Args:
        parts: the parts.
        seconds: time for all of them; a part that it does not reach fails.
        kept: function that is called with all rows so far when a part has ended.
    """
    until = time.monotonic() + seconds
    rows: list[Row] = []
    for part in parts:
        left = until - time.monotonic()
        rows += run(part, min(part.seconds, left)) if left > 0 else [{"part": part.name, "failed": "no time was left"}]
        kept(rows)
    return rows


def run(part: Part, seconds: float) -> list[Row]:
    """Run a part; return its rows, the last of them with ``"failed"`` where it did not end well."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kept, said = Path(folder) / "rows", Path(folder) / "said"
        kept.touch()
        command = [sys.executable, "-m", f"{HERE}.child", part.module, str(kept), *part.without]
        with said.open("wb") as output:
            environment = {**os.environ, **part.environment}
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                status = process.wait(seconds)
                wrong = f"exit status {status}" if status else ""
            except subprocess.TimeoutExpired:
                wrong = f"not done after {seconds:.0f} s"
            finally:  # its ranks too
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        rows = [{"part": part.name, **json.loads(line)} for line in kept.read_text().splitlines() if line.endswith("}")]
        if wrong:
            tail = said.read_text(errors="replace").splitlines()[-LINES:]
            rows.append({"part": part.name, "failed": "\n".join([wrong, *tail])})
    return [*rows, {"part": part.name, "case": "time", "seconds": round(time.monotonic() - began, 1)}]


def attempts(cases: Mapping[str, Callable[[], Row]]) -> Iterator[Row]:
    """Give a row for each case, by name; where one raises, the row says what, and the others go on."""
    for case, measure in cases.items():
        try:
            row = measure()
        except Exception:
            row = {"failed": "\n".join(traceback.format_exc().splitlines()[-LINES:])}
        yield {"case": case, **row}


def at_most(value: float, aim: float) -> Row:
    """Say a value that is to be small."""
    return {"value": value, "at_most": aim, "met": value <= aim}


def summary(rows: Sequence[Row]) -> list[str]:
    """Tell how many aims were met, and name what was not, and what failed."""
    aims = [row for row in rows if "met" in row]
    missed, failed = [row for row in aims if not row["met"]], [row for row in rows if "failed" in row]
    lines = [f"{len(aims) - len(missed)} of {len(aims)} aims met, {len(failed)} failures"]
    for row in missed:
        figures = f"{row['value']:.4g}, at most {row['at_most']:.4g} wanted" if "at_most" in row else "does not hold"
        lines.append(f"missed: {_named(row)}: {figures}")
    return lines + [f"failed: {_named(row)}: {row['failed'].splitlines()[-1]}" for row in failed]


def _named(row: Row) -> str:
    return f"{row['part']}, {row['case']}" if "case" in row else str(row["part"])
