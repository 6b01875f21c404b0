# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Replay of a recorded run: feeds the run's measurements to a policy's controller, which may decide otherwise."""

from gravac.replay.play import Parting, Replay, replay
from gravac.replay.trace import Trace, read_trace

__all__ = ["Parting", "Replay", "Trace", "read_trace", "replay"]
