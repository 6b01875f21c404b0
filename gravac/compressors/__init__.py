# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors, one file per family. They use tensors and rounds of collectives, but no process groups."""

from gravac.compressors.base import Compressor, Context, Reduced, Rounds
from gravac.compressors.baselines.artopk import ARTopK, artopk
from gravac.compressors.baselines.hard_threshold import HardThreshold, hard_threshold
from gravac.compressors.baselines.intsgd import IntSGD, intsgd
from gravac.compressors.baselines.natural import Natural, natural
from gravac.compressors.baselines.qsgd import QSGD, qsgd
from gravac.compressors.baselines.redsync import RedSync, redsync
from gravac.compressors.baselines.sidco import SIDCo, sidco
from gravac.compressors.baselines.signsgd import MajorityVote, SignSGD, majority, signsgd
from gravac.compressors.baselines.terngrad import TernGrad, terngrad
from gravac.compressors.dense import Dense, dense
from gravac.compressors.dgc import DGC, dgc
from gravac.compressors.ladder import Ladder, ladder
from gravac.compressors.powersgd import PowerSGD, powersgd
from gravac.compressors.profile import Coding, Profile
from gravac.compressors.quantize import Quantize, quantize
from gravac.compressors.randomk import RandomK, ScaledRandomK, randomk, scaled_randomk
from gravac.compressors.sparse import Addend, Selection, Sparse
from gravac.compressors.thc import THC, thc
from gravac.compressors.topk import TopK, topk
from gravac.compressors.topkc import TopKC, topkc
from gravac.entry_points import Registry

BUILT_IN: dict[str, Compressor] = {
    compressor.name: compressor
    for compressor in (
        dense,
        topk,
        topkc,
        randomk,
        scaled_randomk,
        artopk,
        dgc,
        redsync,
        sidco,
        hard_threshold,
        powersgd,
        quantize,
        thc,
        qsgd,
        terngrad,
        natural,
        intsgd,
        signsgd,
        majority,
        ladder,
    )
}
"""Compressors of this package, by name, with default settings."""


def _fault(loaded: object) -> str:
    """Describe what is wrong with an object that an entry point loaded; return an empty text if it is a compressor."""
    return "" if isinstance(loaded, Compressor) else "is no compressor; name an object, not its class"


COMPRESSORS: Registry[Compressor] = Registry("compressor", "gravac.compressors", BUILT_IN, _fault)
"""All compressors, by name, with default settings: those of this package, and of other installed packages."""

__all__ = [
    "COMPRESSORS",
    "DGC",
    "QSGD",
    "THC",
    "ARTopK",
    "Addend",
    "Coding",
    "Compressor",
    "Context",
    "Dense",
    "HardThreshold",
    "IntSGD",
    "Ladder",
    "MajorityVote",
    "Natural",
    "PowerSGD",
    "Profile",
    "Quantize",
    "RandomK",
    "RedSync",
    "Reduced",
    "Rounds",
    "SIDCo",
    "ScaledRandomK",
    "Selection",
    "SignSGD",
    "Sparse",
    "TernGrad",
    "TopK",
    "TopKC",
    "artopk",
    "dense",
    "dgc",
    "hard_threshold",
    "intsgd",
    "ladder",
    "majority",
    "natural",
    "powersgd",
    "qsgd",
    "quantize",
    "randomk",
    "redsync",
    "scaled_randomk",
    "sidco",
    "signsgd",
    "terngrad",
    "thc",
    "topk",
    "topkc",
]
