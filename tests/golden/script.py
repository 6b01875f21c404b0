# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Script of all that differs between two runs of the same code: seconds of a step and of its parts, and the link.

The only file of the goldens that knows types and modules behind gravac's public names.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from gravac.averaging.recording import StepRecording
from gravac.collectives import AllReduce
from gravac.exchange.link_probe import LinkProbe
from gravac.modes.forward_clock import ForwardClock
from gravac.modes.outer.rounds import Rounds

LINK = LinkProbe(latency=1e-4, bandwidth=20e6, copy_bytes_per_s=8e9)

COMPUTE = 0.030
"""Seconds of a step without exchange."""


class Script:
    """Seconds of each exchange, by rank, number and bytes.

    Attributes:
        made: number of exchanges so far, by rank, those of a run that is resumed included.
    """

    def __init__(self) -> None:
        self.made: dict[int, int] = {}

    def next(self, rank: int, wire_bytes: int, every: int) -> dict[str, Any]:
        """Return the seconds of a rank's next exchange, a little different on each rank.

        The link carries 20 Mbit/s, and 2 Gbit/s in exchanges 15 to 29.

        Args:
            rank: number of the rank.
            wire_bytes: bytes that the rank sent.
            every: number of the model's steps since the exchange before.
        """
        self.made[rank] = made = self.made.get(rank, 0) + 1
        exchange = 8 * wire_bytes / (2e9 if 15 <= made < 30 else LINK.bandwidth)
        compute = every * (COMPUTE + 1e-4 * ((7 * made + 3 * rank) % 5))
        compress = 0.002 + 1e-5 * ((5 * made + rank) % 3)
        waited = max(0.001, exchange - 0.020)
        return {
            "seconds": compute + waited,
            "compute": compute,
            "coded": compress,
            "in_flight": exchange,
            "input_wait": 0.0,
            "waited": waited,
        }


@contextmanager
def scripted(elements: int) -> Iterator[Script]:
    """Script this process's clocks and link probe, for a model of so many elements."""
    script, clocked = Script(), StepRecording._time

    def scripted_time(self: StepRecording, between: Any) -> None:
        clocked(self, between)
        executor = between.__self__
        every = round(self.dense_wire_bytes / AllReduce.wire_bytes(4 * elements, executor.world))
        for name, seconds in script.next(executor.rank, self.wire_bytes, every).items():
            setattr(self, name, seconds)

    now = itertools.count(0.0, COMPUTE).__next__  # read once a step, before the first exchange
    with (
        mock.patch("gravac.exchange.opening.probe_link", return_value=LINK),
        mock.patch.object(StepRecording, "_time", scripted_time),
        mock.patch.object(Rounds, "_synchronized_time", side_effect=now),
        mock.patch.object(ForwardClock, "stop", return_value=None),
    ):
        yield script
