# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averaging: replaces named flat tensors by their mean over the ranks, in place, compressed as a plan says.

What is not sent is kept by name, as a residual. Averaging yields rounds of collectives; it does not know who runs them,
nor which controller made the plan.
"""
