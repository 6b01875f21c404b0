# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The engine runs each step of a run: from the step's first gradient to the decision by the step's measurement.

The engine plans a step, averages exchange groups (tensors that are exchanged together), measures, agrees with the other
ranks on the measurement, and decides. An executor runs the engine's jobs (which yield collectives) and calls (of
functions), in the same order on all ranks.
"""
