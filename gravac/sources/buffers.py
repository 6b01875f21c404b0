# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Detects which of a module's buffers training changes, such as running statistics, and sends rank 0's as bytes."""

from collections.abc import Iterable, Sequence

import torch

from gravac.sources.ddp import canonical


class SentBuffers:
    """A module's buffers, and the names of those that rank 0 sends.

    Buffers of normalization layers are sent in each step. Any other buffer is sent in the step after it changed on any
    rank.

    Args:
        module: module with buffers, of any shapes; ``None``: there are none.

    Attributes:
        watched: names of the buffers whose changes are detected.
        changed: whether each watched buffer has changed on this rank between the last two calls of ``look``.
        sent: names of the buffers that are sent in the next step, the same on all ranks.
    """

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self._owners: dict[str, tuple[torch.nn.Module, str]] = {}
        self._normalizing: list[str] = []
        if module is not None:
            first = {id(buffer): canonical(name) for name, buffer in module.named_buffers()}
            for owner in module.modules():
                for key, buffer in owner._buffers.items():
                    name = None if buffer is None else first.pop(id(buffer), None)
                    if name is not None:
                        self._owners[name] = owner, key
                        if isinstance(owner, torch.nn.modules.batchnorm._NormBase):
                            self._normalizing.append(name)
        self.watched = [name for name in self._owners if name not in self._normalizing]
        self.changed = [False] * len(self.watched)
        self.sent = [*self._normalizing]
        self._seen = self._versions

    @property
    def present(self) -> dict[str, torch.Tensor]:
        """The module's current buffers, by name."""
        by_name = {name: owner._buffers.get(key) for name, (owner, key) in self._owners.items()}
        return {name: buffer for name, buffer in by_name.items() if buffer is not None}

    def look(self) -> None:
        """Detect the buffers that have changed since the last call, and set ``changed``."""
        previous, self._seen = self._seen, self._versions
        self.changed = [not _same(previous.get(name), self._seen.get(name)) for name in self.watched]

    def learn(self, rank_counts: Iterable[int]) -> None:
        """Set the names of the buffers that are sent in the next step.

        Args:
            rank_counts: number of ranks on which each watched buffer has changed.
        """
        self.sent = [
            *self._normalizing,
            *(name for name, count in zip(self.watched, rank_counts, strict=True) if count),
        ]

    def flat(self, device: torch.device) -> torch.Tensor:
        """Return the buffers that are sent, one after the other, as bytes, ``[bytes]``, on a device."""
        present = self.present
        return torch.cat([_bytes(present[name]).to(device) for name in self.sent])

    def put(self, names: Sequence[str], flat: torch.Tensor) -> None:
        """Overwrite buffers with rank 0's; a pending backward stays valid, and ``look`` detects no change.

        Args:
            names: names of the buffers.
            flat: bytes that ``flat`` returned on rank 0, ``[bytes]``.
        """
        present, offset = self.present, 0
        for name in names:
            buffer = present[name].data
            size = buffer.numel() * buffer.element_size()
            buffer_bytes = flat[offset : offset + size].clone()  # aligned
            buffer.copy_(buffer_bytes.view(buffer.dtype).view(buffer.shape))
            offset += size

    @property
    def _versions(self) -> dict[str, tuple[torch.Tensor, int]]:
        present = self.present
        return {name: (present[name], _version(present[name])) for name in self.watched if name in present}


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _same(previous: tuple[torch.Tensor, int] | None, current: tuple[torch.Tensor, int] | None) -> bool:
    """True if a buffer, given with its version counter, is still the same tensor and unchanged."""
    if previous is None or current is None:
        return previous is current
    return previous[0] is current[0] and previous[1] == current[1]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as bytes, ``[bytes]``."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
