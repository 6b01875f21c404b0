# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The modes of a training step, which differ in who exchanges, and the switch between them.

``outer`` has the mode in which each rank trains its own weights, and ranks exchange only once in several steps.
"""
