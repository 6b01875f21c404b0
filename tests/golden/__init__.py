# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Goldens: runs whose losses, weights and decisions a change of the house must leave as they are, bit for bit.

Sums depend on the processor and its libraries, so no recording is committed: an earlier commit and the present code
record on the same machine (``make golden BEFORE=<commit>``). Each side records with its own driver, this package as it
is at its commit, and resumes its own checkpoints. So a recording holds only what outlives formats, and formats, names
and types may change between the two sides.
"""
