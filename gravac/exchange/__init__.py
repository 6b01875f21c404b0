# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs collectives over a process group (``fifo``, ``streams``), or for N ranks in one process (``lockstep``)."""
