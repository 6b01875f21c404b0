# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes the executor over a process group of its own, and knows the link before the first step."""

import torch.distributed as dist

from gravac.exchange.fifo import Fifo
from gravac.exchange.group import GroupTransport, own_group
from gravac.exchange.link_probe import LinkProbe, probe_link


def threaded(
    group: dist.ProcessGroup | None, agree_group: dist.ProcessGroup | None = None, pace: float | None = None
) -> tuple[Fifo, LinkProbe | None]:
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
    return Fifo(GroupTransport(own, pace), agreement), probed
