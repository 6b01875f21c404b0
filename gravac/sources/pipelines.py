# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Detects the schedules of ``torch.distributed.pipelining``, which call a stage once for each microbatch of a step.

If a stage is in DistributedDataParallel, its schedule runs each forward in ``no_sync()``, and makes DDP exchange in the
last backward.
"""

import sys

PIPELINING = "torch.distributed.pipelining"
"""Name of torch's module with pipeline schedules."""


def is_in_schedule() -> bool:
    """True if the caller, such as a hook on a module, was called by a pipeline's schedule."""
    frame = sys._getframe() if PIPELINING in sys.modules else None
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(PIPELINING):
            return True
        frame = frame.f_back
    return False
