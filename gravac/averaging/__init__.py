# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averaging: named flat tensors become their mean over the ranks, in place, compressed as a plan says.

What is not sent is remembered by name. It knows rounds of collectives, but neither who runs them nor what decided.
"""
