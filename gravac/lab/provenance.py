# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The stamp of a measurement: commit of the code, time, and speed of the machine. Every record has a stamp.

Tables refuse to mix commits: times of two commits, or of two hours of one machine, cannot be compared.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

import torch
from pydantic import Field

from gravac.settings import Settings, SettingsError

COPY_BYTES = 8_388_608
"""Bytes of the tensor whose copy is timed."""

WIDTH = 256
"""Rows and columns of the matrices whose product is timed."""

REPEATS = 7

SHORT_DIGITS = 10
"""Number of digits of a commit in tables."""

UNRECORDED = "commit not recorded"


class Stamp(Settings):
    """Code, time and machine of a measurement.

    Attributes:
        commit: commit of the checkout that the package was imported from; ``None`` if it came from a wheel.
        clean: whether tracked files, except those below ``docs``, were as in the commit; ``None`` without a commit.
        utc: time of the measurement, ISO 8601.
        copy_bytes_per_s: bytes of an 8 MiB tensor / median seconds of a copy, on one thread.
        matmul_s: median seconds of a product of two float32 matrices of 256 x 256, on one thread.
        torch: version of torch.
        python: version of Python.
        cores: number of cores that the process may use.
    """

    commit: str | None
    clean: bool | None
    utc: str
    copy_bytes_per_s: float = Field(gt=0)
    matmul_s: float = Field(gt=0)
    torch: str
    python: str
    cores: int = Field(ge=1)

    @property
    def code(self) -> str:
        """First digits of the commit, with a ``+`` unless clean; ``UNRECORDED`` without a commit."""
        if self.commit is None:
            return UNRECORDED
        return self.commit[:SHORT_DIGITS] + ("" if self.clean else "+")

    def with_current_time(self) -> Stamp:
        """Return the stamp with the current time and the earlier speed, for a record that ends while others run."""
        return self(utc=_utc_now())


def stamp() -> Stamp:
    """Return a stamp with the current commit, time and speed. Takes about 0.1 s; outside git there is no commit."""
    commit, clean = _checkout(Path(__file__))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source = torch.ones(COPY_BYTES // 4)
        target = torch.empty_like(source)
        copy_seconds = _median_seconds(lambda: target.copy_(source))
        matrix = torch.ones(WIDTH, WIDTH)
        matmul_seconds = _median_seconds(lambda: matrix @ matrix)
    finally:
        torch.set_num_threads(threads)
    return Stamp(
        commit=commit,
        clean=clean,
        utc=_utc_now(),
        copy_bytes_per_s=COPY_BYTES / copy_seconds,
        matmul_s=matmul_seconds,
        torch=torch.__version__,
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def commits_note(stamps: Iterable[Stamp | None], files: str, mixed: bool = False) -> str:
    """Return a sentence on the commits of a table's records; refuse a mixture of commits unless it is allowed.

    Args:
        stamps: stamps of all records of the table; ``None`` is a record without a stamp, and counts as another commit.
        files: the records' file or files, for the message.
        mixed: whether records of several commits may stand in one table.

    Returns:
        A sentence if the records are of several commits, or of an unknown commit; otherwise an empty string.

    Raises:
        SettingsError: the records are of several commits and ``mixed`` is false; names the files, the commits and the
            remedy.
    """
    count_of_code = Counter(UNRECORDED if stamp is None else stamp.code for stamp in stamps)
    codes = ", ".join(f"{code} ({count})" for code, count in count_of_code.items())
    if len(count_of_code) > 1:
        if not mixed:
            raise SettingsError(
                f"{files}: holds what {len(count_of_code)} commits measured: {codes}; measure all of it with one, or "
                "ask for them in one table with --mixed"
            )
        return f"runs of {len(count_of_code)} commits: {codes}"
    return "the commit of these runs was not recorded" if UNRECORDED in count_of_code else ""


def _checkout(file: Path) -> tuple[str | None, bool | None]:
    """Return commit and cleanness of the checkout that tracks a file; ``(None, None)`` for an installed file."""
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None, None
    commit = _git(file.parent, "rev-parse", "HEAD")
    changes = _git(file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)docs")
    return commit, None if commit is None or changes is None else not changes


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's standard output; ``None`` if git fails or is not installed."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _median_seconds(work: Callable[[], object]) -> float:
    """Return the median seconds of ``REPEATS`` calls, after a call to warm up."""
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def _utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
