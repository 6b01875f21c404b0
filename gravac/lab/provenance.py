# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The stamp of a measurement: commit of the code, time, and speed of the machine. Every record of a run has a stamp.

Times of several commits can hardly be compared. A machine's speed varies from hour to hour, so a stamp has the time,
too.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import torch
from pydantic import Field

from gravac.settings import Settings

COPY_BYTES = 8_388_608
"""Bytes of the tensor whose copy is timed."""

MATRIX_WIDTH = 256
"""Rows and columns of the matrices whose product is timed."""

TIMED_REPEATS = 7
"""Number of timed repeats of the copy and of the product; the median counts."""

COMMIT_DIGITS = 10
"""Number of digits of a commit's hash that ``Stamp.code`` has."""

UNRECORDED = "commit not recorded"
"""Text in place of a commit that is not known."""


class Stamp(Settings):
    """Code, time and machine of a measurement.

    Attributes:
        commit: hash of the commit of the git checkout that the package was imported from; ``None`` for an installed
            package.
        clean: whether all tracked files outside ``docs`` are the same as in the commit; ``None`` if not known.
        utc: UTC time of the measurement, as ISO 8601 text.
        copy_bytes_per_s: bytes of an 8 MiB tensor / median seconds of copying the tensor, on one thread.
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
        """First digits of the commit, then ``+`` if ``clean`` is not true; ``UNRECORDED`` if there is no commit."""
        if self.commit is None:
            return UNRECORDED
        return self.commit[:COMMIT_DIGITS] + ("" if self.clean else "+")

    def with_current_time(self) -> Stamp:
        """Return a copy of the stamp with the current time.

        The speed stays as measured: a second measurement would be wrong while other runs use the machine.
        """
        return self(utc=_utc_now())


def stamp() -> Stamp:
    """Measure the machine's speed, which takes about 0.1 s; return a stamp with commit, time and speed."""
    commit, clean = _commit_and_clean(Path(__file__))
    previous_thread_count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source = torch.ones(COPY_BYTES // 4)
        target = torch.empty_like(source)
        copy_seconds = _median_seconds(lambda: target.copy_(source))
        matrix = torch.ones(MATRIX_WIDTH, MATRIX_WIDTH)
        matmul_seconds = _median_seconds(lambda: matrix @ matrix)
    finally:
        torch.set_num_threads(previous_thread_count)
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


def _commit_and_clean(file: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the git checkout of a file, and whether the files are unchanged since the commit.

    Untracked files and the folder ``docs`` do not count. The result is ``(None, None)`` if git does not track the file.
    """
    if _git_output(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None, None
    commit = _git_output(file.parent, "rev-parse", "HEAD")
    paths = (":(top)", ":(top,exclude)docs")
    changed_files = _git_output(file.parent, "status", "--porcelain", "--untracked-files=no", "--", *paths)
    return commit, None if commit is None or changed_files is None else not changed_files


def _git_output(folder: Path, *arguments: str) -> str | None:
    """Run git in a folder, and return its standard output; ``None`` if git fails or is not installed."""
    try:
        git_process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return git_process.stdout.strip() if git_process.returncode == 0 else None


def _median_seconds(work: Callable[[], object]) -> float:
    """Call ``work`` once to warm up, then ``TIMED_REPEATS`` times; return the median seconds of a call.

    Args:
        work: function to time, called without arguments; its result is not used.
    """
    seconds = []
    for _ in range(TIMED_REPEATS + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def _utc_now() -> str:
    """Return the current UTC time as ISO 8601 text, in whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
