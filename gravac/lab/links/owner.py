# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whose a namespace or folder is: its name carries the owning process, by pid, start time and place.

So what a killed process left behind can be told from what a living one uses, also when its pid is in use again. A pid
means a process only in the place where it was given: a machine since it was booted, and there a pid namespace, such as
a container's. Of other places, and where the place is not known, nothing is told, and everything is left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"gravac-(?P<pid>\d+)-(?P<start>\d+)-(?P<place>[0-9a-f]{8})-.+")


def mark() -> str:
    """Return how names of things begin that this process owns: ``gravac-PID-START-PLACE``; a dash and more follow."""
    return f"gravac-{os.getpid()}-{started(os.getpid()) or 'unknown'}-{place() or 'unknown'}"


def orphaned(name: str) -> bool:
    """Tell whether a name carries a process of this place that is no longer alive; false for all other names."""
    match = _NAME.fullmatch(name)
    return match is not None and match["place"] == place() and match["start"] != started(int(match["pid"]))


def place() -> str | None:
    """Return what tells the place of this process's pid from others: eight hexadecimal digits; ``None``: not known."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return hashlib.blake2b(f"{booted}{namespace}".encode(), digest_size=4).hexdigest()


def started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot.

    ``None`` when it is gone, or dead and not yet waited for, or where there is no ``/proc``.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat[stat.rindex(")") + 2 :].split()
    return None if state in "ZX" else rest[18]
