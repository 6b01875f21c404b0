# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The executor of process groups where waiting blocks (gloo): a thread runs the exchange; the host looks at data."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gravac.collectives import Collective, Ledger
from gravac.exchange.executor import Fail, Job, Verdict
from gravac.exchange.fifo import Fifo
from gravac.exchange.group import GroupTransport, Pending, own_group
from gravac.exchange.link_probe import LinkProbe, probe_link


def threaded(
    group: dist.ProcessGroup | None, agree_group: dist.ProcessGroup | None = None, pace: float | None = None
) -> tuple["ThreadExecutor", LinkProbe | None]:
    """Make an executor over a process group of its own, and probe the link. Called on every rank.

    Args:
        group: its ranks average; ``None``: the default group.
        agree_group: its ranks agree; ``None``: the same.
        pace: emulate a link of that many bits per second by sleeping; ``None``: the link as it is.

    Raises:
        RuntimeError: there is no process group yet.
    """
    own = own_group(group)
    agreement = None if agree_group is None else GroupTransport(own_group(agree_group), pace)
    probed = probe_link(GroupTransport(own, pace))  # on a ledger of its own: it is no step's traffic
    return ThreadExecutor(GroupTransport(own, pace), agreement), probed


class ThreadExecutor:
    """Runs a rank's steps on a thread; see ``Executor``.

    Args:
        transport: what exchanges over the ranks that average.
        agreement: what exchanges over those that agree on measurements and decisions; ``None``: the same.
    """

    latency = 2
    masked = False

    def __init__(self, transport: GroupTransport, agreement: GroupTransport | None = None) -> None:
        self.transport = transport
        self.rank, self.world = transport.rank, transport.world
        self._agreement = transport if agreement is None else agreement
        self.agree_world = self._agreement.world
        self._fifo = Fifo(transport)

    @property
    def ledger(self) -> Ledger:
        """What was handed to the transport; an agreement over other ranks is not in it."""
        return self.transport.ledger

    @property
    def compress_seconds(self) -> float:
        """See ``Executor``."""
        return self._fifo.compress_seconds

    @property
    def exchange_seconds(self) -> float:
        """See ``Executor``."""
        return self._fifo.exchange_seconds

    def now(self) -> float:
        """Return ``time.perf_counter()``."""
        return time.perf_counter()

    def call(self, function: Callable[[], None], fail: Fail) -> None:
        """Call a function on the thread when all before it has ended."""
        self._fifo.call(function, fail)

    def exchange(self, job: Job, fail: Fail, device: torch.device, one_round: Callable[[], bool]) -> None:
        """Run a job on the thread when its turn comes."""
        self._fifo.exchange(job, fail, device, one_round)

    def start(self, collectives: list[Collective], agreement: bool = False) -> tuple[GroupTransport, list[Pending]]:
        """Start collectives, on the thread."""
        transport = self._agreement if agreement else self.transport
        return transport, transport.start(collectives)

    def finish(self, started: tuple[GroupTransport, list[Pending]]) -> list[Any]:
        """Wait for them, on the thread."""
        transport, pending = started
        return transport.finish(pending)

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Look at a bool scalar (0-d tensor)."""
        return bool(finite)

    def read(self, numbers: Sequence[torch.Tensor]) -> list[float]:
        """Return what scalars (0-d tensors) hold."""
        return [float(number) for number in numbers]

    def drain(self, seconds: float | None = None) -> None:
        """Wait until all that was handed over has ended."""
        self._fifo.drain(seconds)

    def close(self) -> None:
        """End the thread after what was handed over."""
        self._fifo.close()
