# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The stamp of a measurement: which code it was made with, when, and how fast the machine was. Every record has one.

Tables refuse to mix stamps: times of two commits, or of two hours of one machine, cannot be compared.
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

COPIED = 8_388_608
"""Bytes of the tensor whose copy is timed."""

WIDTH = 256
"""Rows and columns of the matrices whose product is timed."""

REPEATS = 7

SHORT = 10
"""Digits of a commit that are shown."""

UNRECORDED = "commit not recorded"


class Stamp(Settings):
    """Code, time and machine of a measurement.

    Attributes:
        commit: commit of the checkout that the package was imported from; ``None`` where it came from a wheel.
        clean: whether tracked files, those below ``docs`` aside, were as in the commit; ``None`` without one.
        utc: time of the measurement, ISO 8601.
        copy_bytes_per_s: bytes of an 8 MiB tensor over the median seconds that a copy takes, one thread.
        matmul_s: median seconds of a product of two float32 matrices of 256 x 256, one thread.
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
        """The code in words: the commit's first digits, ``+`` where files differed from it; or that none is known."""
        if self.commit is None:
            return UNRECORDED
        return self.commit[:SHORT] + ("" if self.clean else "+")

    def now(self) -> Stamp:
        """Return the stamp for this moment, with the speed as measured before: for what ends while others run."""
        return self(utc=_now())


def stamp() -> Stamp:
    """Stamp a measurement that is made now. It takes some 0.1 s, and knows no commit outside a git checkout."""
    commit, clean = _checkout(Path(__file__))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source = torch.ones(COPIED // 4)
        target = torch.empty_like(source)
        copying = _seconds(lambda: target.copy_(source))
        matrix = torch.ones(WIDTH, WIDTH)
        multiplying = _seconds(lambda: matrix @ matrix)
    finally:
        torch.set_num_threads(threads)
    return Stamp(
        commit=commit,
        clean=clean,
        utc=_now(),
        copy_bytes_per_s=COPIED / copying,
        matmul_s=multiplying,
        torch=torch.__version__,
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )


def one_commit(stamps: Iterable[Stamp | None], where: str, mixed: bool = False) -> str:
    """Refuse to put what several commits measured into one table, unless told so; then say what is mixed.

    Args:
        stamps: stamps of all records of the table; ``None`` is a record without one, and counts as another commit.
        where: the records' file or files, for the message.
        mixed: whether several commits are wanted in one table.

    Returns:
        A sentence on the commits where there are several, or none is known; else nothing.

    Raises:
        SettingsError: there are several and ``mixed`` is false; names the file, the commits and the remedy.
    """
    counted = Counter(UNRECORDED if one is None else one.code for one in stamps)
    codes = ", ".join(f"{code} ({count})" for code, count in counted.items())
    if len(counted) > 1:
        if not mixed:
            raise SettingsError(
                f"{where}: holds what {len(counted)} commits measured: {codes}; measure all of it with one, or ask for "
                "them in one table with --mixed"
            )
        return f"runs of {len(counted)} commits: {codes}"
    return "the commit of these runs was not recorded" if UNRECORDED in counted else ""


def _checkout(file: Path) -> tuple[str | None, bool | None]:
    """Commit and cleanness of the checkout that has the file; a file that git does not know is installed."""
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None, None
    commit = _git(file.parent, "rev-parse", "HEAD")
    changed = _git(file.parent, "status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)docs")
    return commit, None if commit is None or changed is None else not changed


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git says; ``None`` when it refuses, or is not there."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _seconds(work: Callable[[], object]) -> float:
    """Median of a few, after one that does not count."""
    taken = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
