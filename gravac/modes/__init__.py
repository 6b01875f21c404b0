# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The three modes of a training step (native, hook, outer), and the switch between them.

The modes differ in what exchanges: DDP (native), gravac in each step (hook), or gravac once in several steps, between
which each rank trains its own weights (outer, in the folder ``outer``).
"""
