# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averaging: replaces named flat tensors by their mean over the ranks, in place, compressed as a plan says.

The part of a tensor that is not sent is kept under the tensor's name, as its residual. Averaging yields lists of
collectives, and an executor runs them; averaging knows neither the executor nor the controller that made the plan.
"""
