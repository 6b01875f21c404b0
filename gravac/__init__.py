# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Adaptive gradient compression for PyTorch: decides how much to compress, and whether to compress at all."""

from gravac.adaptive import AdaptiveCompressor
from gravac.checkpoint import merge_states
from gravac.compressors import Compressor, Dense, RandomK, TopK, dense, randomk, topk
from gravac.controllers import GraVAC, Static
from gravac.policy import Policy, load_policy, policy_names
from gravac.settings import SettingsError

__version__ = "0.1.0"

__all__ = [
    "AdaptiveCompressor",
    "Compressor",
    "Dense",
    "GraVAC",
    "Policy",
    "RandomK",
    "SettingsError",
    "Static",
    "TopK",
    "__version__",
    "dense",
    "load_policy",
    "merge_states",
    "policy_names",
    "randomk",
    "topk",
]
