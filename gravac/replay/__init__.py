# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tells what another policy would have decided on a recorded run: ``play.py`` says how."""

from gravac.replay.admission import admit_recorded
from gravac.replay.play import Replay, replay
from gravac.replay.trace import Trace, read_trace

__all__ = ["Replay", "Trace", "admit_recorded", "read_trace", "replay"]
