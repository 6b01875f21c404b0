# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The stamp of a measurement: commit of the code, time, and speed of the machine. Every record of a run has a stamp.

Commands raise an error if a table would mix runs of several commits, whose times cannot be compared. A machine's speed
varies from hour to hour, so a stamp has the time, too.
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

MATRIX_WIDTH = 256
"""Rows and columns of the matrices whose product is timed."""

TIMED_REPEATS = 7
"""Number of timed repeats of the copy and of the product; the median counts."""

COMMIT_DIGITS = 10
"""Number of digits of a commit's hash that tables show."""

UNRECORDED = "commit not recorded"
"""Text that tables show in place of a commit that is not known."""


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


def commits_note(stamps: Iterable[Stamp | None], files: str, allow_mixed: bool = False) -> str:
    """Return a note on the commits at which a table's records were measured; by default, refuse several commits.

    Args:
        stamps: stamps of all records of the table; ``None``: a record without a stamp. All records whose commit is
            not known count as one more commit.
        files: names of the files of the records, for the error message.
        allow_mixed: whether records of several commits may stand in one table.

    Returns:
        A sentence, without a full stop, if the records are of several commits or of an unknown commit; otherwise an
        empty string.

    Raises:
        SettingsError: the records are of several commits, and ``allow_mixed`` is false.
    """
    count_of_commit = Counter(UNRECORDED if stamp is None else stamp.code for stamp in stamps)
    codes = ", ".join(f"{code} ({count})" for code, count in count_of_commit.items())
    if len(count_of_commit) > 1:
        if not allow_mixed:
            raise SettingsError(
                f"{files}: the measurements are of {len(count_of_commit)} commits (in brackets: number of "
                f"measurements): {codes}; repeat all with one commit, or allow several commits in a table by --mixed"
            )
        modified_text = "; + marks a commit with uncommitted changes" if "+" in codes else ""
        versions_text = f"runs of {len(count_of_commit)} versions of gravac, each as commit (number of runs)"
        return f"{versions_text}: {codes}{modified_text}"
    return "the commit of these runs was not recorded" if UNRECORDED in count_of_commit else ""


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
