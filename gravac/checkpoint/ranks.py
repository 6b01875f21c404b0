# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks whose states make one checkpoint, and the collectives by which they agree while the checkpoint is written.

All ranks make the same calls in the same order, while no gradient exchange is in flight, since ``state_dict`` waits
until it has ended. The collectives use the process group of the training, so that NCCL gets all of them in one order.
Messages are JSON or bytes: nothing that a peer sends is unpickled here.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from gravac.settings import SettingsError

T = TypeVar("T")

CHUNK_BYTES = 64 * 2**20  # bytes of all ranks that ``gather`` moves at a time: over NCCL they are in GPU memory


class Checkpointed(Protocol):
    """Object whose state a checkpoint holds: an ``AdaptiveCompressor``."""

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Ranks whose states make one checkpoint; ``None``: the default group, or this process alone."""

    def state_dict(self) -> dict[str, Any]:
        """Wait until the exchange has ended, and return this rank's state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""


class Ranks:
    """The ranks of a process group.

    Args:
        group: process group; ``None``: the default group, or this process alone if there is none.

    Attributes:
        rank: number of this rank.
        world: number of ranks.
        rank_and_world: both.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        alone = not dist.is_initialized()
        self.rank_and_world = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        self.rank, self.world = self.rank_and_world

    def all_gather(self, message: T) -> list[T]:
        """Return every rank's message, by rank.

        Args:
            message: this rank's message: small, and of types that JSON can represent (tuples become lists).
        """
        if self.world == 1:
            return [message]
        encoded = json.dumps(message).encode()
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(encoded)], device=self._device), group=self._group)
        lengths = [int(size) for size in sizes]
        texts = [torch.empty(max(lengths), dtype=torch.uint8, device=self._device) for _ in lengths]
        dist.all_gather(texts, self._padded(encoded, max(lengths)), group=self._group)
        return [json.loads(_bytes(text)[:length]) for text, length in zip(texts, lengths, strict=True)]

    def run_on_all(self, action: Callable[[], T]) -> T:
        """Call a function on every rank, and return its result on this rank; a failure on any rank raises on all.

        Raises:
            SettingsError: the function raised ``SettingsError`` on a rank; the message names that rank.
            RuntimeError: the function raised something else on a rank.
        """
        failure: Exception | None = None
        try:
            result = action()
        except Exception as raised:
            failure = raised
        messages: list[Any] = self.all_gather(
            None if failure is None else [isinstance(failure, SettingsError), str(failure)]
        )
        failures = {rank: message for rank, message in enumerate(messages) if message is not None}
        if not failures:
            return result
        rank, (is_settings_error, text) = next(iter(failures.items()))
        others = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        location = f" (on rank {rank} of {self.world}{others})" if self.world > 1 else ""
        raise (SettingsError if is_settings_error else RuntimeError)(text + location) from failure

    def gather(self, payload: bytes) -> list[bytes] | None:
        """Gather every rank's bytes on rank 0, a chunk at a time; return ``None`` on other ranks."""
        if self.world == 1:
            return [payload]
        first = dist.get_global_rank(self._group or _default(), 0)
        payloads = [bytearray() for _ in range(self.world)]
        chunk_bytes = max(1, CHUNK_BYTES // self.world)
        lengths = self.all_gather(len(payload))
        for start in range(0, max(lengths), chunk_bytes):
            length = min(chunk_bytes, max(lengths) - start)
            chunks = (
                [torch.empty(length, dtype=torch.uint8, device=self._device) for _ in payloads]
                if not self.rank
                else None
            )
            local_chunk = self._padded(payload[start : start + length], length)
            dist.gather(local_chunk, chunks, dst=first, group=self._group)
            for rank, chunk in enumerate(chunks or ()):
                payloads[rank] += _bytes(chunk)[: max(0, lengths[rank] - start)]
        return [*map(bytes, payloads)] if self.rank == 0 else None

    @property
    def _device(self) -> torch.device:
        """Device of the tensors that the group can exchange: the CPU, if one of its backends exchanges CPU tensors."""
        return torch.device("cuda" if dist.get_backend_config(self._group).lower() in ("nccl", "cuda:nccl") else "cpu")

    def _padded(self, payload: bytes, length: int) -> torch.Tensor:
        """Return bytes as a uint8 tensor of ``length`` elements, with zeros at its end."""
        return torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=torch.uint8).to(self._device)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _default() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
