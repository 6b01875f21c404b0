# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Imitates a slow link by pauses in gravac's exchanges, where links cannot be emulated by network namespaces.

Only gravac's own collectives become slow, not those of DDP, and only over gloo, where a thread waits for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from gravac.collectives import Collective
from gravac.exchange.group import GroupTransport, Pending


def imitate_link(rate: float) -> None:
    """Make each of gravac's exchanges in this process take at least as long as over a link of a rate, by pauses.

    Args:
        rate: bits per second, above 0. A further call sets another rate.

    Raises:
        ValueError: ``rate`` is not above 0.

    Example:
        >>> imitate_link(20e6)  # before attach()                                              # doctest: +SKIP
    """
    launch, finish = _paused_methods(rate)
    GroupTransport.launch, GroupTransport.finish = launch, finish  # type: ignore[method-assign]


@contextmanager
def imitated_link(rate: float) -> Iterator[None]:
    """Imitate a link of a rate, in bits per second, within a ``with`` block. See ``imitate_link``."""
    methods_before = GroupTransport.launch, GroupTransport.finish
    imitate_link(rate)
    try:
        yield
    finally:
        GroupTransport.launch, GroupTransport.finish = methods_before  # type: ignore[method-assign]


_launch, _finish = GroupTransport.launch, GroupTransport.finish


def _paused_methods(rate: float) -> tuple[Callable[..., list[Pending]], Callable[..., list[Any]]]:
    """Return ``GroupTransport.launch`` and ``finish`` with the pauses of a link of ``rate`` bits per second."""
    if not 0 < rate < math.inf:
        raise ValueError(f"rate: {rate} is not above 0; give bits per second, such as 20e6")
    # both in seconds of time.perf_counter
    link_free_at: WeakKeyDictionary[GroupTransport, float] = WeakKeyDictionary()
    sent_at: dict[int, float] = {}  # when the link has sent a collective, by the id of its handles

    def launch(transport: GroupTransport, requests: list[Collective]) -> list[Pending]:
        pending = []
        for request in requests:
            bytes_before = transport.ledger.wire_bytes
            pending += _launch(transport, [request])
            sent_bytes = transport.ledger.wire_bytes - bytes_before
            begin = max(link_free_at.get(transport, 0.0), time.perf_counter())
            link_free_at[transport] = sent_at[id(pending[-1].works)] = begin + 8 * sent_bytes / rate
        return pending

    def finish(transport: GroupTransport, pending: list[Pending]) -> list[Any]:
        results = _finish(transport, pending)
        sent = max((sent_at.pop(id(collective.works), 0.0) for collective in pending), default=0.0)
        time.sleep(max(0.0, sent - time.perf_counter()))
        return results

    return launch, finish
