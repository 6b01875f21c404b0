# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averages named flat tensors over the ranks, in place; a plan says how each tensor is compressed.

What a rank does not send of a tensor is kept under the tensor's name, as the residual. Averaging yields lists of
collectives, and an executor runs them. Code in this package knows neither the executor nor the controller that made the
plan.
"""
