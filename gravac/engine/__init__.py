# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The engine: runs a step from its first gradient to the decision that follows from its measurement.

The engine plans a step, averages exchange groups, measures, agrees with the other ranks and decides. An executor runs
its jobs and calls.
"""
