# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Collectives over a torch process group, added up in a ledger."""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gravac.collectives import AllReduce, AllToAll, Broadcast, Collective, Ledger, moved, tensors_of
from gravac.exchange.failures import ExchangeError as ExchangeError  # where those who catch it look for it

CPU = torch.device("cpu")

# torch 2.13 renamed it; the old name warns there, the new one is missing before
_all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


_own: set[str] = set()
"""Names of the groups that ``own_group`` made, and nobody gave back."""


def check_initialized() -> None:
    """Check that there is a process group.

    Raises:
        RuntimeError: there is none yet.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")


def own_group(beside: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Make a process group on the same ranks and with the same timeout, that nobody else uses.

    ``give_back`` destroys it; else it lives until ``destroy_process_group()``.

    Args:
        beside: group whose ranks and timeout it takes; ``None`` is the default group.

    Raises:
        RuntimeError: there is no process group yet.
    """
    check_initialized()
    ranks = list(range(dist.get_world_size())) if beside is None else dist.get_process_group_ranks(beside)
    group = dist.new_group(ranks, use_local_synchronization=True, timeout=timeout_of(beside))
    assert isinstance(group, dist.ProcessGroup)
    _own.add(group.group_name)
    return group


class _GivenBack:
    """Stands in torch's registry for a group that was destroyed, so that no later one gets its name.

    torch names a group by its ranks and by how many groups there are. One of the same name would find the keys of the
    first in the store, and hang.
    """

    def shutdown(self) -> None:
        """There is nothing to shut down."""

    def abort(self) -> None:
        """There is nothing to abort."""

    def _get_backend(self, device: torch.device) -> None:
        raise RuntimeError(f"no backend for {device.type}: this group was destroyed")


def give_back(group: dist.ProcessGroup) -> None:
    """Destroy a group of ``own_group``: its connections, file descriptors and threads go with the last reference.

    Called when nothing is under way on it, on every rank at the same point unless one failed. Nothing is done to a
    group that somebody else made, or that was destroyed with the default one, or if torch's registry is not as known.
    """
    world = dist.distributed_c10d._world
    try:
        name = world.pg_names[group]
    except (AttributeError, KeyError):
        return
    if name not in _own:
        return
    _own.discard(name)
    with contextlib.suppress(KeyError):  # a rank of torch's threaded world, which another one has destroyed
        dist.destroy_process_group(group)
    world.pg_names[_GivenBack()] = name  # type: ignore[index]


def timeout_of(group: dist.ProcessGroup | None) -> timedelta | None:
    """Return how long a group's collectives wait for a rank; ``None``, torch's default, where its backend hides it.

    Where a group has several backends it is the shortest.

    Args:
        group: a process group; ``None`` is the default group.
    """
    group = dist.group.WORLD if group is None else group
    assert group is not None
    known = []
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, timedelta):
            known.append(timeout)
    return min(known, default=None)


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Return the name of the backend that carries a device's tensors over a group; empty where none does.

    Args:
        group: a process group; ``None`` is the default group.
        device: any device of that type.
    """
    config = dist.get_backend_config(group)
    backends = dict(pair.split(":", 1) for pair in config.split(",")) if ":" in config else {device.type: config}
    return backends.get(device.type, "")


class Pending(NamedTuple):
    """A collective under way.

    Attributes:
        works: torch's works to wait for.
        answer: what the asking generator is resumed with once they are done.
        due: time by ``time.perf_counter`` at which a paced link is done with it; 0 where the link is not paced.
        device: where the answer is to lie.
    """

    works: list[Any]
    answer: Any
    due: float = 0.0
    device: torch.device = CPU


class GroupTransport:
    """Starts and awaits collectives on one process group, always in the order it is asked to.

    Args:
        group: process group; where waiting blocks, one that nobody else uses, so that nothing comes between.
        pace: bits per second at which to emulate a slower link by sleeping; ``None`` for the link as it is.
        device: where the tensors lie that the group is handed.
    """

    def __init__(self, group: dist.ProcessGroup, pace: float | None = None, device: torch.device = CPU) -> None:
        self.group = group
        self.world = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.ledger = Ledger(self.world)
        self._pace = pace
        self._pairwise = backend_of(group, device) == "gloo"
        self._swaps = 0
        self._link_free = 0.0

    def landed(self, pending: list[Pending]) -> bool:
        """Return whether collectives are done, so that ``finish`` would not wait for a rank."""
        return all(work.is_completed() for one in pending for work in one.works)

    def launch(self, requests: list[Collective]) -> list[Pending]:
        """Start collectives in the order given; return them as they are under way.

        Raises:
            ExchangeError: the process group refuses; an earlier collective failed, most likely.
        """
        try:
            return [self._launch(request) for request in requests]
        except RuntimeError as failure:
            raise self._failed(failure) from failure

    def finish(self, pending: list[Pending]) -> list[Any]:
        """Wait for collectives under way; return what the asking generator is resumed with, one result for each.

        Raises:
            ExchangeError: a rank died, or did not answer within the group's timeout.
        """
        try:
            for one in pending:
                for work in one.works:
                    work.wait()
        except RuntimeError as failure:
            raise self._failed(failure) from failure
        if self._pace is not None:
            time.sleep(max(0.0, max(one.due for one in pending) - time.perf_counter()))
        return [one.answer for one in pending]

    def _failed(self, failure: RuntimeError) -> ExchangeError:
        timeout = timeout_of(self.group)
        limit = "" if timeout is None else f" of {timeout.total_seconds():g} s"
        return ExchangeError(
            f"rank {self.rank} of {self.world} got no answer: a rank died, or stalled for longer than the process "
            f"group's timeout{limit} (init_process_group(timeout=...)): {failure}"
        )

    def _launch(self, request: Collective) -> Pending:
        wire = self.ledger.book(request)
        if self._pace is not None:
            self._link_free = max(self._link_free, time.perf_counter()) + 8 * wire / self._pace
        works, answer = self._call(request)
        return Pending(works, answer, self._link_free)

    def _call(self, request: Collective) -> tuple[list[Any], Any]:
        """Call torch, or swap; return the works to wait for, and the answer that they fill in."""
        if isinstance(request, AllReduce):
            return [dist.all_reduce(request.tensor, group=self.group, async_op=True)], request.tensor
        if isinstance(request, Broadcast):
            root = dist.get_global_rank(self.group, request.root)
            return [dist.broadcast(request.tensor, root, group=self.group, async_op=True)], request.tensor
        if isinstance(request, AllToAll):
            leaving = request.tensor
            rows = torch.empty_like(leaving)
            if self._pairwise:
                return self._swap(list(leaving), rows), rows
            return [dist.all_to_all_single(rows, leaving, group=self.group, async_op=True)], rows
        (row,) = request.tensors  # fused gathers hold one tensor of bytes
        rows = row.new_empty(self.world, row.numel())
        if self._pairwise:
            return self._swap([row] * self.world, rows), (rows,)
        return [_all_gather_flat(rows.view(-1), row, group=self.group, async_op=True)], (rows,)

    def _swap(self, leaving: list[torch.Tensor], rows: torch.Tensor) -> list[Any]:
        """Send row r to rank r, and receive one from each; every receive is posted before the first send.

        gloo's own all-gather posts them the other way round, so that a receiver's "ready" queues behind its own
        payload: on a slow link the two directions then take turns.
        """
        self._swaps += 1
        rows[self.rank].copy_(leaving[self.rank])
        ranks = dist.get_process_group_ranks(self.group)
        others = [(self.rank + distance) % self.world for distance in range(1, self.world)]
        arriving = [dist.irecv(rows[r], ranks[r], group=self.group, tag=self._swaps) for r in reversed(others)]
        sent = [dist.isend(leaving[r], ranks[r], group=self.group, tag=self._swaps) for r in others]
        return arriving + sent


class StagedTransport(GroupTransport):
    """Carries a device's tensors over a group that takes only the host's (gloo's gathers do): by pinned memory.

    Starting waits for what the present stream was given so far, and finishing for the copies back.
    """

    def launch(self, requests: list[Collective]) -> list[Pending]:
        """Start collectives of copies on the host, see ``GroupTransport``; the host's own tensors go as they are."""
        devices = {tensor.device for request in requests for tensor in tensors_of(request)} - {CPU}
        here = [moved(request, _to_host) for request in requests]
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        pending = super().launch(here)
        return [
            one._replace(device=tensors_of(request)[0].device) for one, request in zip(pending, requests, strict=True)
        ]

    def finish(self, pending: list[Pending]) -> list[Any]:
        """Wait for collectives, and bring their answers to where their tensors lay."""
        answers = super().finish(pending)
        return [_to(one.device, answer) for one, answer in zip(pending, answers, strict=True)]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device == CPU:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _to(device: torch.device, answer: Any) -> Any:
    return tuple(_to(device, one) for one in answer) if isinstance(answer, tuple) else answer.to(device)
