# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of all ranks' states: residuals differ between ranks, so one rank's state is not enough to resume.

``save`` and ``load`` write and read a directory. ``gather`` and ``load_gathered`` are for frameworks that write a
single file. ``Stateful`` is for ``torch.distributed.checkpoint``.
"""

from gravac.checkpoint.directory import load, save
from gravac.checkpoint.gathered import gather, load_gathered
from gravac.checkpoint.resize import OnResize, merge_states
from gravac.checkpoint.stateful import Stateful

__all__ = ["OnResize", "Stateful", "gather", "load", "load_gathered", "merge_states", "save"]
