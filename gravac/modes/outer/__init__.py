# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps: ranks train on their own and exchange every so many steps how far they came (local SGD, DiLoCo).

1. Every rank makes H steps of its inner optimizer, from weights that all share: the anchor θ.
2. Its pseudo-gradient Δ = θ - θ_rank goes through the same engine as a gradient: compressed, with feedback, averaged.
3. The outer optimizer makes a step on the anchor with the mean, the same on every rank, which goes on from there.

A user holds ``gravac.outer_optimizer``. ``rounds.py`` is the life of a round, ``round_state.py`` its state,
``fragments.py`` and ``buffers.py`` are what travels, ``anchors.py`` where anchors lie, ``shares.py`` what each rank
does of a round, ``sgd.py`` the outer optimizer. ``candidates.py`` is what a controller chooses from: how often, how,
and how much. ``starting.py`` is what ranks share and compare at first, ``refusing.py`` what
becomes of a mean that is not finite, ``fitting.py`` whether a state fits.
"""
