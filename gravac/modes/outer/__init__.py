# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps: each rank trains its own weights; once in H steps, ranks exchange how far their weights moved (DiLoCo).

1. Every rank makes H steps of its inner optimizer, from weights that all ranks share: the anchor θ.
2. The engine averages the ranks' pseudo-gradients Δ = θ - θ_rank like gradients: compressed, with error feedback.
3. The outer optimizer makes a step on the anchor with this mean, the same on every rank. Ranks continue from the
   anchor. (Averaging weights, local SGD, is the special case of an outer learning rate of 1.)

``outer_steps.py`` has the outer steps of one rank, which ``gravac.modes.switch`` uses. ``rounds.py`` runs rounds (H
steps and the exchange after them), and ``round_state.py`` has their state. ``anchor.py`` has the anchor, and computes
pseudo-gradients; ``buffers.py`` does so for the model's buffers. ``sgd.py`` has the default outer optimizer.
``candidates.py`` makes a controller's candidates: how often to exchange, with which compressor, at which CF.
``starting.py`` checks what must be the same on all ranks, ``not_finite.py`` handles means that are not finite, and
``fitting.py`` checks saved states.
"""
