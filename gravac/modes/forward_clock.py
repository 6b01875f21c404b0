# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times forwards. No exchange is in flight during forward, so its time tells how fast the machine is."""

import time

import torch


class ForwardClock:
    """Times the forward of the module inside DDP. DDP broadcasts buffers before that, which is not part of the time."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def start(self) -> None:
        """Start the clock, unless torch is compiling the forward: a compiled model must not contain the clock."""
        if not torch.compiler.is_compiling():
            self._began_s = time.perf_counter()

    def stop(self) -> float | None:
        """Return the seconds since ``start``; ``None`` if the clock was not started for this forward."""
        began_s, self._began_s = self._began_s, None
        return None if began_s is None else time.perf_counter() - began_s
