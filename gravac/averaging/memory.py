# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors' memory of tensors from step to step: changed in a copy during a step, and replaced at its end."""

from collections.abc import Iterable

import torch

from gravac.averaging.residuals import replace
from gravac.exchange.executor import Verdict, choose

Memory = dict[str, torch.Tensor]
"""Memory of one tensor, by names that the compressor chooses."""


class CompressorMemory:
    """The memories of one rank, by tensor name.

    Attributes:
        stored: memories at the end of the last step; tensors of any shape, saved with a checkpoint.
    """

    def __init__(self) -> None:
        self.stored: dict[str, Memory] = {}
        self._changed: dict[str, Memory] = {}

    def of(self, name: str) -> Memory:
        """Return a copy of the memory of a tensor; a compressor may replace and add entries in this step."""
        return self._changed.setdefault(name, dict(self.stored.get(name, {})))

    def forget(self, names: Iterable[str]) -> None:
        """Undo what this step changed of some tensors' memories."""
        for name in names:
            self._changed.pop(name, None)

    def mask(self, names: Iterable[str], finite: torch.Tensor) -> None:
        """Undo what this step changed of some tensors' memories if ``finite`` is false, which only the device knows.

        A new tensor overwrites the previous one if both have the same shape and dtype: only one of them remains.
        """
        for name in names:
            previous, changed = self.stored.get(name, {}), self._changed.get(name, {})
            changed.update({key: _overwritten(finite, new, previous.get(key)) for key, new in changed.items()})

    def commit(self, finite: Verdict) -> None:
        """Store the tensors that the step changed, if all its gradients were ``finite``.

        If only the device knows ``finite``, tensors that the step added are stored in either case.
        """
        if finite is not False:
            for name, changed in self._changed.items():
                previous = self.stored.get(name, {})
                self.stored[name] = {key: _selected(finite, new, previous.get(key)) for key, new in changed.items()}
        self._changed.clear()

    def to_device(self, device: torch.device) -> None:
        """Move all memories to a device."""
        moved = {
            name: {key: tensor.to(device) for key, tensor in memory.items()} for name, memory in self.stored.items()
        }
        replace(self.stored, moved)

    def load(self, memories: dict[str, Memory]) -> None:
        """Replace all memories by copies of the given ones."""
        copies = {name: {key: tensor.clone() for key, tensor in memory.items()} for name, memory in memories.items()}
        replace(self.stored, copies)
        self._changed.clear()


def _overwritten(finite: torch.Tensor, new: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
    if previous is None or previous.shape != new.shape or previous.dtype != new.dtype:
        return new
    return previous if previous is new else torch.where(finite, new, previous, out=previous)


def _selected(finite: Verdict, new: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
    return new if previous is None or previous is new or previous.shape != new.shape else choose(finite, new, previous)
