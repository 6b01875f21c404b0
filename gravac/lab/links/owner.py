# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whose a namespace or folder is: its name carries the owning process, by pid and start time.

So what a killed process left behind can be told from what a living one uses, also when its pid is in use again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"gravac-(?P<pid>\d+)-(?P<start>\d+|unknown)-.+")


def mark() -> str:
    """Return how names of things begin that this process owns: ``gravac-PID-START``. A dash and more must follow."""
    return f"gravac-{os.getpid()}-{started(os.getpid()) or 'unknown'}"


def orphaned(name: str) -> bool:
    """Tell whether a name carries a process that is no longer alive. False for names that are none of ours."""
    match = _NAME.fullmatch(name)
    return match is not None and match["start"] not in ("unknown", started(int(match["pid"])))


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
