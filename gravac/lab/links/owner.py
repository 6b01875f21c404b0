# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Names for network namespaces and folders that identify the process that made them: pid, start time and pid scope.

From such a name gravac finds out whether the process is still alive, even if a new process has the same pid. gravac may
remove the namespaces and folders of a process that is no longer alive.

Within a pid scope, no two living processes have the same pid: a scope is a pid namespace (such as a container's) on a
machine since its latest boot. A process of another or unknown scope counts as alive.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

_OWNED_NAME = re.compile(r"gravac-(?P<pid>\d+)-(?P<start>\d+)-(?P<scope>[0-9a-f]{8})-.+")


def owner_mark() -> str:
    """Return the prefix ``gravac-PID-START-SCOPE`` for names that this process makes; append a dash and a text."""
    return f"gravac-{os.getpid()}-{start_ticks(os.getpid()) or 'unknown'}-{pid_scope() or 'unknown'}"


def is_orphaned(name: str) -> bool:
    """True if a name begins with the ``owner_mark`` of a process of this pid scope that is no longer alive."""
    match = _OWNED_NAME.fullmatch(name)
    return match is not None and match["scope"] == pid_scope() and match["start"] != start_ticks(int(match["pid"]))


def pid_scope() -> str | None:
    """Return eight hexadecimal digits that identify the boot and pid namespace of this process; ``None`` if unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return hashlib.blake2b(f"{boot_id}{namespace}".encode(), digest_size=4).hexdigest()


def start_ticks(pid: int) -> str | None:
    """Return the time at which a process started, in clock ticks since boot, as text.

    ``None`` if the process does not exist, is dead but not yet waited for, or if the system has no ``/proc``.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else fields[18]
