# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps: ranks train on their own, and once in H steps exchange how far their weights moved (DiLoCo).

1. Every rank makes H steps of its inner optimizer, from weights that all ranks share: the anchor θ.
2. The engine averages the ranks' pseudo-gradients Δ = θ - θ_rank like gradients: compressed, with error feedback.
3. The outer optimizer makes a step on the anchor with this mean, the same on every rank. Ranks continue from the
   anchor. (Averaging weights, local SGD, is the special case of an outer learning rate of 1.)

``outer_steps.py`` has what the switch uses: the outer steps of one rank. ``rounds.py`` runs rounds, and
``round_state.py`` is their state. ``fragments.py`` and ``buffers.py`` are the tensors that ranks exchange, and
``anchors.py`` says how anchors are stored. ``shares.py`` computes each rank's share of a round, and ``sgd.py`` is the
default outer optimizer. ``candidates.py`` makes the candidates of a controller: how often to exchange, with which
compressor, at which CF. ``starting.py`` checks what must be the same on all ranks, ``not_finite.py`` refuses means that
are not finite, and ``fitting.py`` checks saved states.
"""
