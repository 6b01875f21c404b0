# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac doctor``: what is installed, what there is to train on, whether ranks find each other, and what to do."""

from gravac.lab.doctor.facts import Facts, facts
from gravac.lab.doctor.memory import Memory, memory_of_modes
from gravac.lab.doctor.ranks import Check, check_here, check_launched
from gravac.lab.doctor.words import advice, in_words, memory_words

__all__ = [
    "Check",
    "Facts",
    "Memory",
    "advice",
    "check_here",
    "check_launched",
    "facts",
    "in_words",
    "memory_of_modes",
    "memory_words",
]
