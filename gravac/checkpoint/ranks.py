# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ranks whose states make one checkpoint, and the little that they tell each other while it is made.

All ranks make the same calls in the same order, when nothing of the exchange is under way: ``state_dict`` waits for
that. What they tell goes over the group that they train with, so that NCCL gets all in one order. It goes as JSON or as
bytes: nothing that a peer sends is unpickled here.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from gravac.settings import SettingsError

T = TypeVar("T")

CHUNK_BYTES = 64 * 2**20  # that ``collect`` has under way at a time, of all ranks: over NCCL they lie on the GPU


class Checkpointed(Protocol):
    """What a checkpoint is made of, and loaded into: an ``AdaptiveCompressor``."""

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Ranks whose states make one checkpoint; ``None``: the default group, or one process without any."""

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, once the exchange's work is done."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""


class Ranks:
    """The ranks of a process group.

    Args:
        group: process group; ``None``: the default group, or this process alone where there is none.

    Attributes:
        rank: number of this rank.
        world: number of ranks.
        place: both.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        alone = not dist.is_initialized()
        self.place = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        self.rank, self.world = self.place

    def tell(self, value: T) -> list[T]:
        """Return every rank's value: small and plain, as JSON has it (tuples become lists); one for each rank."""
        if self.world == 1:
            return [value]
        mine = json.dumps(value).encode()
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device=self._device), group=self._group)
        lengths = [int(size) for size in sizes]
        texts = [torch.empty(max(lengths), dtype=torch.uint8, device=self._device) for _ in lengths]
        dist.all_gather(texts, self._padded(mine, max(lengths)), group=self._group)
        return [json.loads(_bytes(text)[:length]) for text, length in zip(texts, lengths, strict=True)]

    def together(self, action: Callable[[], T]) -> T:
        """Do something on every rank, and return what came of it on this one.

        Raises:
            SettingsError: a rank found a setting wrong; raised on all ranks alike, and names that rank.
            RuntimeError: it failed on a rank in another way.
        """
        failure: Exception | None = None
        try:
            done = action()
        except Exception as raised:
            failure = raised
        told: list[Any] = self.tell(None if failure is None else [isinstance(failure, SettingsError), str(failure)])
        failures = {rank: text for rank, text in enumerate(told) if text is not None}
        if not failures:
            return done
        rank, (wrong, text) = next(iter(failures.items()))
        others = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        where = f" (on rank {rank} of {self.world}{others})" if self.world > 1 else ""
        raise (SettingsError if wrong else RuntimeError)(text + where) from failure

    def collect(self, payload: bytes) -> list[bytes] | None:
        """Bring every rank's bytes to rank 0, a piece at a time; ``None`` on the others."""
        if self.world == 1:
            return [payload]
        first = dist.get_global_rank(self._group or _default(), 0)
        whole = [bytearray() for _ in range(self.world)]
        size = max(1, CHUNK_BYTES // self.world)
        lengths = self.tell(len(payload))
        for start in range(0, max(lengths), size):
            most = min(size, max(lengths) - start)
            pieces = (
                [torch.empty(most, dtype=torch.uint8, device=self._device) for _ in whole] if not self.rank else None
            )
            mine = self._padded(payload[start : start + most], most)
            dist.gather(mine, pieces, dst=first, group=self._group)
            for rank, piece in enumerate(pieces or ()):
                whole[rank] += _bytes(piece)[: max(0, lengths[rank] - start)]
        return [*map(bytes, whole)] if self.rank == 0 else None

    @property
    def _device(self) -> torch.device:
        """Where the group's backend takes tensors from: the CPU, if one of its backends does."""
        return torch.device("cuda" if dist.get_backend_config(self._group).lower() in ("nccl", "cuda:nccl") else "cpu")

    def _padded(self, payload: bytes, length: int) -> torch.Tensor:
        """Return bytes as a tensor of that length, uint8, zeros at its end."""
        return torch.frombuffer(bytearray(payload.ljust(length, b"\0")), dtype=torch.uint8).to(self._device)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _default() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
