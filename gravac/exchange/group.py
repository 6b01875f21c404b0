# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs collectives over a torch process group, and counts the bytes that this rank sends."""

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gravac.collectives import AllReduce, AllToAll, Broadcast, Collective, Ledger, map_tensors, tensors_of
from gravac.exchange.failures import ExchangeError as ExchangeError  # exported for code that catches this error

CPU = torch.device("cpu")

# torch 2.13 renamed the function: from 2.13 on the old name warns, and before 2.13 there is no new name
_all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


INTERRUPT_TAG = 0
"""Tag of the receive that ``GroupTransport.interrupt`` starts; the tags of all other receives are above 0."""

_private_group_names: set[str] = set()
"""Names of the process groups that ``private_group`` created and ``destroy_private`` has not destroyed."""


def check_initialized() -> None:
    """Check that torch's default process group is initialized.

    Raises:
        RuntimeError: the default process group is not initialized.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")


def private_group(template: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Create a process group that only gravac uses, with the ranks and the timeout of another group.

    Called on every rank of the group. The new group lives until ``destroy_private`` or ``destroy_process_group()``
    destroys it.

    Args:
        template: group whose ranks and timeout the new group gets; ``None``: the default group.

    Raises:
        RuntimeError: the default process group is not initialized.
    """
    check_initialized()
    ranks = list(range(dist.get_world_size())) if template is None else dist.get_process_group_ranks(template)
    group = dist.new_group(ranks, use_local_synchronization=True, timeout=timeout_of(template))
    assert isinstance(group, dist.ProcessGroup)
    _private_group_names.add(group.group_name)
    return group


class _DestroyedGroup:
    """Placeholder of a destroyed group in torch's registry, so that no later group gets the same name.

    torch derives a group's name from its ranks and from the number of registered groups. Without the placeholder, a
    later group could get the destroyed group's name. That group would find old keys in the store, and hang.
    """

    def shutdown(self) -> None:
        """Do nothing: the group was destroyed."""

    def abort(self) -> None:
        """Do nothing: the group was destroyed."""

    def _get_backend(self, device: torch.device) -> None:
        raise RuntimeError(
            f"process group: gravac has destroyed this private group, which has no backend for {device.type} any more; "
            "use a group of your own"
        )


def destroy_private(group: dist.ProcessGroup) -> None:
    """Destroy a group that ``private_group`` created, to free its connections, file descriptors and threads.

    Called on every rank of the group at the same point, when no collective is in flight on the group. If a rank failed,
    the other ranks call this function without that rank.

    Does nothing if ``private_group`` did not create the group, if ``destroy_process_group()`` has destroyed the group
    already, or if torch's private registry of groups lacks the expected fields.
    """
    torch_registry = dist.distributed_c10d._world
    try:
        group_name = torch_registry.pg_names[group]
    except (AttributeError, KeyError):
        return
    if group_name not in _private_group_names:
        return
    _private_group_names.discard(group_name)
    with contextlib.suppress(KeyError):  # if ranks are threads (torch's tests), another rank may have destroyed it
        dist.destroy_process_group(group)
    torch_registry.pg_names[_DestroyedGroup()] = group_name  # type: ignore[index]


def timeout_of(group: dist.ProcessGroup | None) -> timedelta | None:
    """Return the timeout of a group's collectives: the shortest of the timeouts of the group's backends.

    Returns ``None`` if no backend exposes its timeout. torch's functions take ``None`` as the default timeout.

    Args:
        group: a process group; ``None`` is the default group.
    """
    group = dist.group.WORLD if group is None else group
    assert group is not None
    timeouts = []
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        timeout = getattr(options, "_timeout", None)
        if isinstance(timeout, timedelta):
            timeouts.append(timeout)
    return min(timeouts, default=None)


def backend_of(group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Return the name of a group's backend for tensors on a device: ``"gloo"``, ``"nccl"``; empty if it has none.

    Args:
        group: a process group; ``None`` is the default group.
        device: device of the tensors; only its type matters.
    """
    backend_config = dist.get_backend_config(group)
    backend_by_device = (
        dict(device_and_backend.split(":", 1) for device_and_backend in backend_config.split(","))
        if ":" in backend_config
        else {device.type: backend_config}
    )
    return backend_by_device.get(device.type, "")


class Pending(NamedTuple):
    """A collective in flight.

    Attributes:
        works: torch's handles of the collective, each with a ``wait()``.
        result: result of the collective, a tensor or (all-gather) a tuple of tensors; complete once ``works`` have
            ended.
        peers: rank of the group at the other end of each of ``works``; empty if these are not exchanges of two ranks.
        device: device of the requested tensors, to which ``StagedTransport`` copies the result.
    """

    works: list[Any]
    result: Any
    peers: Sequence[int] = ()
    device: torch.device = CPU


class GroupTransport:
    """Starts collectives on one process group, in the order in which they are requested, and waits for their results.

    Args:
        group: process group. With gloo, no other code may use the group, so that collectives start in the same order on
            all ranks.
        device: device of the exchanged tensors.

    Attributes:
        group: the process group.
        world: number of ranks in the group.
        rank: number of this rank in the group.
        ledger: number of this rank's collectives so far, and totals of their payload and wire bytes.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device = CPU) -> None:
        self.group = group
        self.world = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.ledger = Ledger(self.world)
        self._pairwise = backend_of(group, device) == "gloo"
        self._swap_count = 0
        ranks_by_distance = [(self.rank + distance) % self.world for distance in range(1, self.world)]
        self._swap_peers = (*reversed(ranks_by_distance), *ranks_by_distance)  # of the receives, then of the sends

    def launch(self, requests: list[Collective]) -> list[Pending]:
        """Start collectives in the order of the list; return a handle of each, for ``finish``.

        Raises:
            ExchangeError: the process group cannot start them, most likely because an earlier collective failed.
        """
        try:
            return [self._launch(request) for request in requests]
        except RuntimeError as failure:
            raise self._no_answer_error(failure) from failure

    def finish(self, pending: list[Pending]) -> list[Any]:
        """Wait for collectives that ``launch`` started; return the result of each, in order.

        With NCCL only the current CUDA stream waits, not the host.

        Raises:
            ExchangeError: a rank died, or did not answer within the group's timeout.
        """
        for collective in pending:
            for index, work in enumerate(collective.works):
                try:
                    work.wait()
                except RuntimeError as failure:
                    raise self._no_answer_error(failure, collective.peers[index : index + 1]) from failure
        return [collective.result for collective in pending]

    def interrupt(self) -> None:
        """Make all collectives in flight on a gloo group fail, so that no thread waits for them any more.

        Later collectives on the group fail, too, on all ranks. gloo closes a group's connections if a receive gets no
        answer in time, and this one gets none: no rank sends with its tag.
        """
        if self.world > 1 and self._pairwise:
            with contextlib.suppress(RuntimeError):
                unused = torch.empty(1, dtype=torch.float32, device=CPU)
                receive = self.group.recv([unused], (self.rank + 1) % self.world, INTERRUPT_TAG)
                receive.wait(timedelta(milliseconds=1))

    def _no_answer_error(self, failure: RuntimeError, peers: Sequence[int] = ()) -> ExchangeError:
        """Return an error that says that a rank did not answer, with the group's timeout and torch's error message.

        Args:
            failure: torch's error.
            peers: the rank at the other end of the connection that failed; empty: not known.
        """
        timeout = timeout_of(self.group)
        limit_text = "" if timeout is None else f" of {timeout.total_seconds():g} s"
        peers = peers or ([1 - self.rank] if self.world == 2 else ())
        connection_text = "".join(f" on its connection to rank {peer}" for peer in peers)
        return ExchangeError(
            f"rank {self.rank} of {self.world} got no answer{connection_text}: a rank died, or stalled for longer than "
            f"the process group's timeout{limit_text} (init_process_group(timeout=...)): {failure}"
        )

    def _launch(self, request: Collective) -> Pending:
        self.ledger.book(request)
        works, result = self._call(request)
        peers = self._swap_peers if len(works) > 1 else ()
        return Pending(works, result, peers)

    def _call(self, request: Collective) -> tuple[list[Any], Any]:
        """Start a collective; return torch's handles to wait for, and the result, complete once the handles ended."""
        if isinstance(request, AllReduce):
            return [dist.all_reduce(request.tensor, group=self.group, async_op=True)], request.tensor
        if isinstance(request, Broadcast):
            global_root = dist.get_global_rank(self.group, request.root)
            return [dist.broadcast(request.tensor, global_root, group=self.group, async_op=True)], request.tensor
        if isinstance(request, AllToAll):
            outgoing_rows = request.tensor
            received_rows = torch.empty_like(outgoing_rows)
            if self._pairwise:
                return self._swap(list(outgoing_rows), received_rows), received_rows
            return [
                dist.all_to_all_single(received_rows, outgoing_rows, group=self.group, async_op=True)
            ], received_rows
        (sent_row,) = request.tensors  # ``fuse`` joins all gathered tensors to one tensor of bytes
        received_rows = sent_row.new_empty(self.world, sent_row.numel()) if request.rows is None else request.rows
        if self._pairwise:
            return self._swap([sent_row] * self.world, received_rows, request.rows is not None), (received_rows,)
        return [_all_gather_flat(received_rows.view(-1), sent_row, group=self.group, async_op=True)], (received_rows,)

    def _swap(
        self, outgoing_rows: list[torch.Tensor], received_rows: torch.Tensor, has_own_row: bool = False
    ) -> list[Any]:
        """Start to send ``outgoing_rows[r]`` to rank r, and receive ``received_rows[r]``; return handles to wait for.

        This rank's own row is copied, unless ``has_own_row``: ``received_rows`` has the row already.

        Every receive is posted before the first send. gloo's own all-gather posts the sends first. A receiver's "ready"
        message then queues behind the bytes that the receiver itself sends. On a slow link, the two directions take
        turns in that case, instead of working at the same time.
        """
        self._swap_count += 1
        if not has_own_row:
            received_rows[self.rank].copy_(outgoing_rows[self.rank])
        tag, other_rank_count = self._swap_count, self.world - 1
        receives = [self.group.recv([received_rows[rank]], rank, tag) for rank in self._swap_peers[:other_rank_count]]
        sends = [self.group.send([outgoing_rows[rank]], rank, tag) for rank in self._swap_peers[other_rank_count:]]
        return receives + sends


class StagedTransport(GroupTransport):
    """Runs collectives of GPU tensors over a group that exchanges only CPU tensors, by copies in pinned memory.

    ``launch`` makes the host wait for the current CUDA stream's work so far. ``finish`` makes the host wait for the
    collectives, and for the copies of their results back to the GPU.
    """

    def launch(self, requests: list[Collective]) -> list[Pending]:
        """Copy GPU tensors to the host, and start collectives of the copies; return a handle of each for ``finish``."""
        devices = {tensor.device for request in requests for tensor in tensors_of(request)} - {CPU}
        staged_requests = [map_tensors(request, _to_host) for request in requests]
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        pending_collectives = super().launch(staged_requests)
        return [
            collective._replace(device=tensors_of(request)[0].device)
            for collective, request in zip(pending_collectives, requests, strict=True)
        ]

    def finish(self, pending: list[Pending]) -> list[Any]:
        """Wait for collectives that ``launch`` started; return their results, in order, on their tensors' devices."""
        results = super().finish(pending)
        return [_move_result(collective.device, result) for collective, result in zip(pending, results, strict=True)]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device == CPU:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _move_result(device: torch.device, result: Any) -> Any:
    return tuple(_move_result(device, tensor) for tensor in result) if isinstance(result, tuple) else result.to(device)
