# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps: ranks train on their own, and exchange once in H steps how far they moved (local SGD, DiLoCo).

1. Every rank makes H steps of its inner optimizer, from weights that all ranks share: the anchor θ.
2. The engine averages its pseudo-gradient Δ = θ - θ_rank like a gradient: compressed, with error feedback.
3. The outer optimizer makes a step on the anchor with the mean, the same on every rank. Ranks continue from the anchor.

``outer_steps.py`` has what the switch uses: the outer steps of one rank. ``rounds.py`` runs rounds, and
``round_state.py`` is their state. ``fragments.py`` and ``buffers.py`` are the tensors that ranks exchange, and
``anchors.py`` says how anchors are stored. ``shares.py`` computes each rank's share of a round, and ``sgd.py`` is the
default outer optimizer. ``candidates.py`` makes the candidates of a controller: how often to exchange, with which
compressor, at which CF. ``starting.py`` checks what ranks must have in common, ``not_finite.py`` refuses means that are
not finite, and ``fitting.py`` checks saved states.
"""
