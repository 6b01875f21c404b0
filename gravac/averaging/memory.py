# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors' memory: tensors that a compressor keeps for a parameter from step to step.

During a step, a compressor changes a copy; at the step's end, the copy replaces the memory if gradients were finite.
"""

from collections.abc import Iterable

import torch

from gravac.averaging.residuals import replace_entries
from gravac.exchange.reading import AT_ONCE, Finite, Reads, both

Memory = dict[str, torch.Tensor]
"""A compressor's tensors for one parameter, of any shapes, by keys that the compressor chooses."""


class CompressorMemory:
    """The tensors that compressors keep from step to step, for all parameters on one rank.

    Attributes:
        stored: a dict for each parameter, by parameter name: the compressor's tensors by key, as of the end of the last
            step; saved with a checkpoint.
        reads: when the host may read whether gradients were finite.
    """

    def __init__(self) -> None:
        self.stored: dict[str, Memory] = {}
        self.reads: Reads = AT_ONCE
        self._changed_memories: dict[str, Memory] = {}
        self._finite_by_name: dict[str, torch.Tensor] = {}

    def of(self, name: str) -> Memory:
        """Return this step's copy of a parameter's memory, in which the compressor may replace and add tensors."""
        return self._changed_memories.setdefault(name, dict(self.stored.get(name, {})))

    def keep_if(self, finite: Finite, names: Iterable[str]) -> None:
        """Let ``commit`` store this step's changes to some parameters' memory only if gradients were ``finite``."""
        if finite is not None:
            self._finite_by_name.update(dict.fromkeys(names, finite))

    def commit(self, finite: Finite) -> None:
        """End a step: store the memory that the step changed, unless gradients were not finite.

        If the host must not read whether they were, a tensor that had no predecessor is stored in any case.

        Args:
            finite: whether all gradients of the step were finite.
        """
        for name, changed_memory in self._changed_memories.items():
            parameter_finite = both(finite, self._finite_by_name.get(name))
            if self.reads.known(parameter_finite) is False:
                continue
            previous_memory = self.stored.get(name, {})
            self.stored[name] = {
                key: self._settled(parameter_finite, new, previous_memory.get(key))
                for key, new in changed_memory.items()
            }
        self._changed_memories.clear()
        self._finite_by_name.clear()

    def _settled(self, finite: Finite, new: torch.Tensor, previous: torch.Tensor | None) -> torch.Tensor:
        """Return the tensor to store; always ``new`` if there is no previous tensor of the same shape and dtype."""
        if previous is None or previous is new or previous.shape != new.shape or previous.dtype != new.dtype:
            return new
        settled = self.reads.settle(finite, new, previous)
        assert settled is not None
        return settled

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
        self._finite_by_name.clear()
