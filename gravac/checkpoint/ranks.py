# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks whose states form a checkpoint, and the collectives with which they save and load it.

All ranks make the same calls in the same order. No gradients are in flight meanwhile, since ``state_dict`` waits for
the exchange to end. The collectives use the process group of the training, so that NCCL gets all collectives in one
order. Messages are JSON or bytes: this file unpickles nothing that another rank sent.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist

from gravac.averaging.plan import ShardPlace
from gravac.settings import SettingsError

T = TypeVar("T")

CHUNK_BYTES = 64 * 2**20
"""Bytes that ``gather`` moves at a time, summed over all ranks; with NCCL these bytes take GPU memory."""


class RankShards(NamedTuple):
    """The shards of a model that one rank holds.

    Attributes:
        places: position of the rank's shard within each parameter, by parameter name.
        replica: number of the replica (copy of the model) that the rank belongs to, counted from 0.
        replicas: number of replicas.
    """

    places: Mapping[str, ShardPlace]
    replica: int
    replicas: int


class Checkpointed(Protocol):
    """Interface that saving and loading a checkpoint need; an ``AdaptiveCompressor`` has this interface."""

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Group of the ranks whose states make up a checkpoint; ``None``: the default group, or this process alone."""

    @property
    def shards(self) -> "RankShards | None":
        """Positions of this rank's shards in the whole parameters, and its replica; ``None`` without shards."""

    def state_dict(self) -> dict[str, Any]:
        """Wait until the exchange has ended, and return this rank's state."""

    def restoring(self, state: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context that checks a rank's state on entry, and restores it on exit unless its body raises."""


class Ranks:
    """The ranks of a process group, and collectives that exchange messages (JSON) and bytes between them.

    Args:
        group: process group; ``None``: the default group, or this process alone if there is none.

    Attributes:
        rank: number of this rank within the group, counted from 0.
        world: number of ranks in the group.
        rank_and_world: both numbers as a pair.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        is_alone = not dist.is_initialized()
        self.rank_and_world = (0, 1) if is_alone else (dist.get_rank(group), dist.get_world_size(group))
        self.rank, self.world = self.rank_and_world

    def all_gather(self, message: T) -> list[T]:
        """Exchange messages: return a list of every rank's message, in the order of the ranks.

        Args:
            message: this rank's message: small, and of types that JSON can represent (tuples become lists).
        """
        if self.world == 1:
            return [message]
        encoded_message = json.dumps(message).encode()
        length_tensors = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.world)]
        dist.all_gather(
            length_tensors,
            torch.tensor([len(encoded_message)], dtype=torch.int64, device=self._device),
            group=self._group,
        )
        lengths = [int(length_tensor) for length_tensor in length_tensors]
        padded_messages = [torch.empty(max(lengths), dtype=torch.uint8, device=self._device) for _ in lengths]
        dist.all_gather(padded_messages, self._padded(encoded_message, max(lengths)), group=self._group)
        return [
            json.loads(_bytes_of_tensor(padded_message)[:length])
            for padded_message, length in zip(padded_messages, lengths, strict=True)
        ]

    def run_on_all(self, action: Callable[[], T]) -> T:
        """Call a function, and return its result; if it raised an exception on any rank, raise one on every rank.

        Called on every rank, each with a function of its own.

        Args:
            action: function without arguments; its result is returned on this rank only.

        Raises:
            SettingsError: the function raised ``SettingsError`` on a rank; the message names that rank.
            RuntimeError: the function raised another exception on a rank; the message names that rank.
        """
        failure: Exception | None = None
        try:
            result = action()
        except Exception as exception:
            failure = exception
        failure_messages: list[Any] = self.all_gather(
            None if failure is None else [isinstance(failure, SettingsError), str(failure)]
        )
        failure_by_rank = {rank: message for rank, message in enumerate(failure_messages) if message is not None}
        if not failure_by_rank:
            return result
        rank, (is_settings_error, text) = next(iter(failure_by_rank.items()))
        further_text = f"; further ranks that failed: {len(failure_by_rank) - 1}" if len(failure_by_rank) > 1 else ""
        rank_text = f" (on rank {rank} of {self.world}{further_text})" if self.world > 1 else ""
        raise (SettingsError if is_settings_error else RuntimeError)(text + rank_text) from failure

    def gather(self, payload: bytes) -> list[bytes] | None:
        """Collect all ranks' bytes on rank 0, which gets a list in the order of the ranks; other ranks get ``None``.

        At most ``CHUNK_BYTES`` are moved at a time.
        """
        if self.world == 1:
            return [payload]
        first_global_rank = dist.get_global_rank(self._group or _default_group(), 0)
        payloads = [bytearray() for _ in range(self.world)]
        chunk_bytes = max(1, CHUNK_BYTES // self.world)
        lengths = self.all_gather(len(payload))
        for chunk_start in range(0, max(lengths), chunk_bytes):
            chunk_length = min(chunk_bytes, max(lengths) - chunk_start)
            chunks = (
                [torch.empty(chunk_length, dtype=torch.uint8, device=self._device) for _ in payloads]
                if not self.rank
                else None
            )
            local_chunk = self._padded(payload[chunk_start : chunk_start + chunk_length], chunk_length)
            dist.gather(local_chunk, chunks, dst=first_global_rank, group=self._group)
            for rank, chunk in enumerate(chunks or ()):
                payloads[rank] += _bytes_of_tensor(chunk)[: max(0, lengths[rank] - chunk_start)]
        return [*map(bytes, payloads)] if self.rank == 0 else None

    @property
    def _device(self) -> torch.device:
        """Device of the tensors that collectives get: the GPU if the group has only NCCL as backend, else the CPU."""
        return torch.device("cuda" if dist.get_backend_config(self._group).lower() in ("nccl", "cuda:nccl") else "cpu")

    def _padded(self, payload: bytes, length: int) -> torch.Tensor:
        """Return bytes as a uint8 tensor, ``[length]``, on the device of collectives; zeros follow the bytes."""
        return torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=torch.uint8).to(self._device)


def restore_on_all(ranks: Ranks, restoring: Callable[[], AbstractContextManager[None]], source: str = "") -> None:
    """Restore a state on all ranks, or on none. Called on every rank.

    1. Each rank reads and checks its state. 2. The ranks agree that all states fit. 3. Each rank restores its state.
    No collective runs within a step.

    Args:
        ranks: the ranks that must restore their states together.
        restoring: function without arguments that reads this rank's state, and returns a context that checks the state
            on entry, and restores it on exit unless its body raises.
        source: path of the file or folder with the state, for messages; empty if there is none.

    Raises:
        SettingsError: a rank's state cannot be read or does not fit. Raised on all ranks; on none has anything changed.
        RuntimeError: a rank failed in another way: in the first step, and nothing has changed; or in the last, for
            example for lack of memory. Raised on all ranks.
    """
    with ExitStack() as entered_context:

        def check() -> None:
            try:
                entered_context.enter_context(restoring())
            except SettingsError as failure:
                if source in str(failure):
                    raise
                raise SettingsError(f"{failure}; the state is in {source}") from failure

        def restore() -> None:
            try:
                entered_context.close()
            except Exception as failure:
                raise RuntimeError(
                    f"the state could not be restored: {type(failure).__name__}: {failure}; other ranks have restored "
                    "theirs: end the run, or attach new compressors on all ranks"
                ) from failure

        ranks.run_on_all(check)
        ranks.run_on_all(restore)


def _bytes_of_tensor(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
