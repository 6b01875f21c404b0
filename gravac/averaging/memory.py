# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors' memory: tensors that a compressor keeps for a parameter from step to step.

During a step, a compressor changes a copy; at the step's end, the copy replaces the memory.
"""

from collections.abc import Iterable

import torch

from gravac.averaging.residuals import replace_entries
from gravac.exchange.executor import Verdict, choose

Memory = dict[str, torch.Tensor]
"""A compressor's tensors for one parameter, of any shapes, by keys that the compressor chooses."""


class CompressorMemory:
    """The tensors that compressors keep from step to step, for all parameters on one rank.

    Attributes:
        stored: a dict for each parameter, by parameter name: the compressor's tensors by key, as of the end of the last
            step; saved with a checkpoint.
    """

    def __init__(self) -> None:
        self.stored: dict[str, Memory] = {}
        self._changed_memories: dict[str, Memory] = {}

    def of(self, name: str) -> Memory:
        """Return this step's copy of a parameter's memory, in which the compressor may replace and add tensors."""
        return self._changed_memories.setdefault(name, dict(self.stored.get(name, {})))

    def undo(self, names: Iterable[str]) -> None:
        """Undo this step's changes to the memory of the named parameters."""
        for name in names:
            self._changed_memories.pop(name, None)

    def undo_on_device(self, names: Iterable[str], finite: torch.Tensor) -> None:
        """Undo this step's changes to the memory of some parameters, given by name, if ``finite`` is false.

        ``finite`` is a 0-d bool tensor that only the device reads: the device selects between new and previous tensors.
        If both have the same shape and dtype, the selected numbers are written into the previous tensor.
        """
        for name in names:
            previous_memory, changed_memory = self.stored.get(name, {}), self._changed_memories.get(name, {})
            changed_memory.update(
                {
                    key: _overwrite_if_finite(finite, new, previous_memory.get(key))
                    for key, new in changed_memory.items()
                }
            )

    def commit(self, finite: Verdict) -> None:
        """End a step: store the memory that the step changed, if ``finite``; otherwise drop the changes.

        ``finite`` says whether all gradients were finite: a bool, or a 0-d bool tensor that only the device reads. In
        the latter case, a tensor that had no predecessor is stored even if ``finite`` is false.
        """
        if finite is not False:
            for name, changed_memory in self._changed_memories.items():
                previous_memory = self.stored.get(name, {})
                self.stored[name] = {
                    key: _select_if_finite(finite, new, previous_memory.get(key)) for key, new in changed_memory.items()
                }
        self._changed_memories.clear()

    def to_device(self, device: torch.device) -> None:
        """Move the memory of all parameters to a device."""
        moved_memories = {
            name: {key: tensor.to(device) for key, tensor in memory.items()} for name, memory in self.stored.items()
        }
        replace_entries(self.stored, moved_memories)

    def load(self, memories: dict[str, Memory]) -> None:
        """Replace the memory of all parameters by copies of ``memories``: for each parameter, tensors by key."""
        memory_copies = {
            name: {key: tensor.clone() for key, tensor in memory.items()} for name, memory in memories.items()
        }
        replace_entries(self.stored, memory_copies)
        self._changed_memories.clear()


def _overwrite_if_finite(finite: torch.Tensor, new: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
    """Write ``new`` into ``previous`` if all gradients were ``finite``, a 0-d bool tensor; return ``previous``.

    If there is no previous tensor of the same shape and dtype, return ``new``.
    """
    if previous is None or previous.shape != new.shape or previous.dtype != new.dtype:
        return new
    return previous if previous is new else torch.where(finite, new, previous, out=previous)


def _select_if_finite(finite: Verdict, new: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
    """Return ``new`` if all gradients were ``finite``, otherwise ``previous``.

    If there is no previous tensor of the same shape, return ``new`` in either case.
    """
    return new if previous is None or previous is new or previous.shape != new.shape else choose(finite, new, previous)
