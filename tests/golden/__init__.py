# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goldens: five runs whose losses, decisions and checkpoints a change of the house must leave as they are, bit for bit.

Sums depend on the processor and its libraries, so nothing is committed: the commit before and the present code run on
the same machine, with the same scripted step times and the same link probe (``make golden BEFORE=<commit>``).
"""
