# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Identifies the owner of a namespace or folder: its name carries the owning process's pid, start time and pid scope.

So the leftovers of a killed process differ from the namespaces of a living process, even if a new process has the same
pid. A pid identifies a process only within its scope: a machine since it was booted, and on that machine a pid
namespace, such as a container's. Names of other scopes, and names of an unknown scope, are left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"gravac-(?P<pid>\d+)-(?P<start>\d+)-(?P<scope>[0-9a-f]{8})-.+")


def mark() -> str:
    """Return the beginning of names that this process owns: ``gravac-PID-START-SCOPE``; a dash and more text follow."""
    return f"gravac-{os.getpid()}-{start_ticks(os.getpid()) or 'unknown'}-{pid_scope() or 'unknown'}"


def orphaned(name: str) -> bool:
    """True if a name carries a process of this pid scope that is no longer alive."""
    match = _NAME.fullmatch(name)
    return match is not None and match["scope"] == pid_scope() and match["start"] != start_ticks(int(match["pid"]))


def pid_scope() -> str | None:
    """Return eight hexadecimal digits that identify the scope of this process's pid; ``None`` if unknown."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return hashlib.blake2b(f"{booted}{namespace}".encode(), digest_size=4).hexdigest()


def start_ticks(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot.

    ``None`` if the process is gone, is dead and was not yet waited for, or if the system has no ``/proc``.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else rest[18]
