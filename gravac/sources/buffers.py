# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Detects which buffers of a module change in training, such as running statistics, and packs buffers into bytes."""

from collections.abc import Iterable, Sequence

import torch

from gravac.sources.ddp import canonical_name


class SentBuffers:
    """A module's buffers, some of which rank 0 sends to all ranks in each step.

    Buffers of normalization layers are sent in each step. Any other buffer is *watched*: sent in the step after it
    changed on any rank.

    Args:
        module: module with buffers, of any shapes; ``None``: there are no buffers.

    Attributes:
        watched_names: names of the watched buffers.
        changed_flags: flag for each of ``watched_names``: whether the buffer has changed on this rank between the last
            two calls of ``detect_changes``.
        sent_names: names of the buffers that are sent in the next step, the same on all ranks.
    """

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        self._owner_and_key: dict[str, tuple[torch.nn.Module, str]] = {}
        self._always_sent_names: list[str] = []
        if module is not None:
            name_by_id = {id(buffer): canonical_name(name) for name, buffer in module.named_buffers()}
            for owner in module.modules():
                for buffer_key, buffer in owner._buffers.items():
                    name = None if buffer is None else name_by_id.pop(id(buffer), None)
                    if name is not None:
                        self._owner_and_key[name] = owner, buffer_key
                        if isinstance(owner, torch.nn.modules.batchnorm._NormBase):
                            self._always_sent_names.append(name)
        self.watched_names = [name for name in self._owner_and_key if name not in self._always_sent_names]
        self.changed_flags = [False] * len(self.watched_names)
        self.sent_names = [*self._always_sent_names]
        self._last_versions = self._present_versions

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The present tensors of the module's buffers, by name."""
        buffer_by_name = {name: owner._buffers.get(key) for name, (owner, key) in self._owner_and_key.items()}
        return {name: buffer for name, buffer in buffer_by_name.items() if buffer is not None}

    def detect_changes(self) -> None:
        """Detect which watched buffers have changed since the last call, and set ``changed_flags``."""
        previous_versions, self._last_versions = self._last_versions, self._present_versions
        self.changed_flags = [
            not _is_unchanged(previous_versions.get(name), self._last_versions.get(name)) for name in self.watched_names
        ]

    def set_sent(self, rank_counts: Iterable[int]) -> None:
        """Set ``sent_names``: the names of the buffers that are sent in the next step.

        Args:
            rank_counts: number of ranks on which each watched buffer has changed, in the order of ``watched_names``.
        """
        self.sent_names = [
            *self._always_sent_names,
            *(name for name, rank_count in zip(self.watched_names, rank_counts, strict=True) if rank_count),
        ]

    def pack(self, device: torch.device) -> torch.Tensor:
        """Return the bytes of the buffers in ``sent_names``, one after the other: uint8, ``[bytes]``, on a device."""
        buffer_by_name = self.tensors
        return torch.cat([_bytes_of(buffer_by_name[name]).to(device) for name in self.sent_names])

    def overwrite(self, names: Sequence[str], packed: torch.Tensor) -> None:
        """Overwrite this rank's buffers with rank 0's, without a change of autograd's version counters.

        A pending backward therefore stays valid, and ``detect_changes`` detects no change.

        Args:
            names: names of the buffers, in the order of their bytes.
            packed: bytes that ``pack`` returned on rank 0, ``[bytes]``.
        """
        buffer_by_name, offset = self.tensors, 0
        for name in names:
            buffer = buffer_by_name[name].data
            byte_count = buffer.numel() * buffer.element_size()
            buffer_bytes = packed[offset : offset + byte_count].clone()  # aligned, as view(dtype) requires
            buffer.copy_(buffer_bytes.view(buffer.dtype).view(buffer.shape))
            offset += byte_count

    @property
    def _present_versions(self) -> dict[str, tuple[torch.Tensor, int]]:
        """The present tensor of each watched buffer, with autograd's version counter, by name."""
        buffer_by_name = self.tensors
        return {
            name: (buffer_by_name[name], _version(buffer_by_name[name]))
            for name in self.watched_names
            if name in buffer_by_name
        }


def _version(tensor: torch.Tensor) -> int:
    """Return autograd's version counter of a tensor; 0 for an inference tensor, which has none."""
    return 0 if tensor.is_inference() else tensor._version


def _is_unchanged(previous: tuple[torch.Tensor, int] | None, current: tuple[torch.Tensor, int] | None) -> bool:
    """True if a buffer is the same tensor with the same version counter as before, or is missing both times."""
    if previous is None or current is None:
        return previous is current
    return previous[0] is current[0] and previous[1] == current[1]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as bytes, ``[bytes]``, uint8."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
