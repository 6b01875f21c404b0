# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac doctor``: reports packages and devices, checks that ranks train to equal weights, and gives advice."""

from gravac.lab.doctor.descriptions import advice, describe_facts, describe_memories
from gravac.lab.doctor.facts import Facts, facts
from gravac.lab.doctor.memory import Memory, memory_of_modes
from gravac.lab.doctor.ranks import Check, check_here, check_launched
from gravac.lab.doctor.traffic import LinkTraffic, describe_traffic, traffic_of_mesh

__all__ = [
    "Check",
    "Facts",
    "LinkTraffic",
    "Memory",
    "advice",
    "check_here",
    "check_launched",
    "describe_facts",
    "describe_memories",
    "describe_traffic",
    "facts",
    "memory_of_modes",
    "traffic_of_mesh",
]
