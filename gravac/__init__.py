# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Adaptive gradient compression for PyTorch: a controller decides how much to compress, and whether to compress."""

from gravac import checkpoint
from gravac.adaptive import AdaptiveCompressor
from gravac.candidate import Candidate, Forecast
from gravac.checkpoint import merge_states
from gravac.compressors import (
    COMPRESSORS,
    Compressor,
    Dense,
    RandomK,
    TopK,
    artopk,
    dense,
    dgc,
    intsgd,
    ladder,
    majority,
    natural,
    powersgd,
    qsgd,
    quantize,
    randomk,
    redsync,
    signsgd,
    terngrad,
    thc,
    topk,
    topkc,
)
from gravac.controllers import Accordion, Goodput, GraVAC, Static, Warmup
from gravac.integrations.hook import HookState, hook
from gravac.modes.outer.sgd import OuterSGD
from gravac.modes.replicas import ReplicasDifferError
from gravac.policy import OuterSettings, Policy, load_policy, policy_names
from gravac.settings import SettingsError
from gravac.version import __version__

__all__ = [
    "COMPRESSORS",
    "Accordion",
    "AdaptiveCompressor",
    "Candidate",
    "Compressor",
    "Dense",
    "Forecast",
    "Goodput",
    "GraVAC",
    "HookState",
    "OuterSGD",
    "OuterSettings",
    "Policy",
    "RandomK",
    "ReplicasDifferError",
    "SettingsError",
    "Static",
    "TopK",
    "Warmup",
    "__version__",
    "artopk",
    "checkpoint",
    "dense",
    "dgc",
    "hook",
    "intsgd",
    "ladder",
    "load_policy",
    "majority",
    "merge_states",
    "natural",
    "policy_names",
    "powersgd",
    "qsgd",
    "quantize",
    "randomk",
    "redsync",
    "signsgd",
    "terngrad",
    "thc",
    "topk",
    "topkc",
]
