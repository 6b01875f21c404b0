# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Engine: the life of a step, from its first gradient to the decision that it leads to.

It plans, has groups averaged, measures, agrees with the other ranks and decides; an executor runs what it asks for.
"""
