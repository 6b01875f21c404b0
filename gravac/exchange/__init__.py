# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs rounds of collectives: over a process group (``group``, ``fifo``), or N ranks in one process (``memory``)."""
