# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors, one file per family.

A compressor yields the collectives that it needs, and knows no process groups; other code runs the collectives.
Every compressor that is imported here is built in: users choose it by its name. ``import X as X`` marks X as public.
"""

from collections.abc import Mapping

from gravac.compressors.base import Compressor as Compressor
from gravac.compressors.base import Context as Context
from gravac.compressors.base import Reduced as Reduced
from gravac.compressors.base import Rounds as Rounds
from gravac.compressors.baselines.artopk import ARTopK as ARTopK
from gravac.compressors.baselines.artopk import artopk as artopk
from gravac.compressors.baselines.intsgd import IntSGD as IntSGD
from gravac.compressors.baselines.intsgd import intsgd as intsgd
from gravac.compressors.baselines.natural import Natural as Natural
from gravac.compressors.baselines.natural import natural as natural
from gravac.compressors.baselines.qsgd import QSGD as QSGD
from gravac.compressors.baselines.qsgd import qsgd as qsgd
from gravac.compressors.baselines.redsync import RedSync as RedSync
from gravac.compressors.baselines.redsync import redsync as redsync
from gravac.compressors.baselines.signsgd import MajorityVote as MajorityVote
from gravac.compressors.baselines.signsgd import SignSGD as SignSGD
from gravac.compressors.baselines.signsgd import majority as majority
from gravac.compressors.baselines.signsgd import signsgd as signsgd
from gravac.compressors.baselines.terngrad import TernGrad as TernGrad
from gravac.compressors.baselines.terngrad import terngrad as terngrad
from gravac.compressors.dense import Dense as Dense
from gravac.compressors.dense import dense as dense
from gravac.compressors.dgc import DGC as DGC
from gravac.compressors.dgc import dgc as dgc
from gravac.compressors.ladder import Ladder as Ladder
from gravac.compressors.ladder import ladder as ladder
from gravac.compressors.powersgd import PowerSGD as PowerSGD
from gravac.compressors.powersgd import powersgd as powersgd
from gravac.compressors.profile import Coding as Coding
from gravac.compressors.profile import Profile as Profile
from gravac.compressors.quantize import Quantize as Quantize
from gravac.compressors.quantize import quantize as quantize
from gravac.compressors.randomk import RandomK as RandomK
from gravac.compressors.randomk import randomk as randomk
from gravac.compressors.sparse import Addend as Addend
from gravac.compressors.sparse import Selection as Selection
from gravac.compressors.sparse import Sparse as Sparse
from gravac.compressors.thc import THC as THC
from gravac.compressors.thc import thc as thc
from gravac.compressors.topk import TopK as TopK
from gravac.compressors.topk import topk as topk
from gravac.compressors.topkc import TopKC as TopKC
from gravac.compressors.topkc import topkc as topkc

COMPRESSORS: Mapping[str, Compressor] = {
    name: imported for name, imported in sorted(globals().items()) if isinstance(imported, Compressor)
}
"""Built-in compressors with default settings, by name: all compressors that this file imports."""
