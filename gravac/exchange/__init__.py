# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs rounds: over a process group (``group``, ``fifo``), or over N ranks in one process (``memory``)."""
