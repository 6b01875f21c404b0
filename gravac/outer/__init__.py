# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps: ranks train on their own and exchange every so many steps how far they came (local SGD, DiLoCo).

1. Every rank makes H steps of its inner optimizer, from weights that all share: the anchor θ.
2. Its pseudo-gradient Δ = θ - θ_rank goes through the same door as a gradient: compressed, with error feedback, averaged.
3. The outer optimizer makes a step with the mean on the anchor, the same on every rank, and the rank goes on from there.

``optimizer.py`` is what a user holds, ``fragments.py`` a part of the model on its way, ``buffers.py`` what is no parameter,
``candidates.py`` and ``efficiency.py`` what a controller chooses from: how often, with which compressor, how much.
"""
