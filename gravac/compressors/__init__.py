# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What goes on the wire, one file per family. Knows tensors and rounds, not process groups."""

from gravac.compressors.base import Compressor, Context, Reduced, Rounds, Selection, Sparse
from gravac.compressors.dense import Dense, dense
from gravac.compressors.randomk import RandomK, randomk
from gravac.compressors.topk import TopK, topk

COMPRESSORS: dict[str, Compressor] = {compressor.name: compressor for compressor in (dense, topk, randomk)}
"""Every compressor by its name, with default settings."""

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "Context",
    "Dense",
    "RandomK",
    "Reduced",
    "Rounds",
    "Selection",
    "Sparse",
    "TopK",
    "dense",
    "randomk",
    "topk",
]
