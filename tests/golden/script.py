# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What no two runs have alike, scripted: the times of a step, by what it sent, and what the link was probed at."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from gravac.exchange.link_probe import LinkProbe
from gravac.stepping.clock import ClockedStep, StepCosts

LINK = LinkProbe(latency=1e-4, bandwidth=20e6, copy_bytes_per_s=8e9)


def times(rank: int, step: int, wire_bytes: int) -> dict[str, float]:
    """Seconds of a step, a little different on each rank, over 20 Mbit/s, and from step 15 to 29 over 2 Gbit/s."""
    exchange = 8 * wire_bytes / (2e9 if 15 <= step < 30 else LINK.bandwidth)
    compute = 0.030 + 1e-4 * ((7 * step + 3 * rank) % 5)
    compress = 0.002 + 1e-5 * ((5 * step + rank) % 3)
    exposed = max(0.001, exchange - 0.020)
    return {
        "seconds": compute + exposed,
        "compute": compute,
        "compress": compress,
        "exchange": exchange,
        "input_wait": 0.0,
        "waited": exposed,
    }


@contextmanager
def scripted(rank: int) -> Iterator[None]:
    """Have clocks and the link probe answer as scripted, on this process."""
    told, steps = ClockedStep.costs, [0]

    def costs(self: ClockedStep, *given: Any) -> StepCosts:
        costs = told(self, *given)
        steps[0] += 1
        return dataclasses.replace(costs, **times(rank, steps[0], costs.wire_bytes))

    probe = mock.patch("gravac.exchange.opening.probe_link", return_value=LINK)
    with mock.patch.object(ClockedStep, "costs", costs), probe:
        yield
