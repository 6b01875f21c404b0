# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Executors, which run collectives over a process group (``fifo``, ``streams``) or N simulated ranks (``lockstep``)."""
