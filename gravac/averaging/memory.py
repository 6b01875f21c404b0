# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What compressors remember of a tensor from step to step: copied for a step, put in place at its end, or never."""

from collections.abc import Iterable

import torch

from gravac.averaging.residuals import replace
from gravac.exchange.executor import Verdict, choose

Memory = dict[str, torch.Tensor]


class CompressorMemory:
    """The memories of one rank, by tensor name.

    Attributes:
        kept: the memories that the last step left; tensors of any shape, saved with a checkpoint.
    """

    def __init__(self) -> None:
        self.kept: dict[str, Memory] = {}
        self._changed: dict[str, Memory] = {}

    def of(self, name: str) -> Memory:
        """Return a copy for this step, in which a compressor may put other tensors in place of those there."""
        return self._changed.setdefault(name, dict(self.kept.get(name, {})))

    def forget(self, names: Iterable[str]) -> None:
        """Undo what this step changed of some tensors' memories."""
        for name in names:
            self._changed.pop(name, None)

    def mask(self, names: Iterable[str], finite: torch.Tensor) -> None:
        """Undo what this step changed of some tensors' memories where only the device knows whether it was finite.

        What is new is put in the old one's place, where that has its form, so that only one of them is there.
        """
        for name in names:
            old, changed = self.kept.get(name, {}), self._changed.get(name, {})
            changed.update({key: _into(finite, new, old.get(key)) for key, new in changed.items()})

    def commit(self, finite: Verdict) -> None:
        """Keep what the step changed where it was ``finite``; what it started keeping in either case."""
        if finite is not False:
            for name, changed in self._changed.items():
                old = self.kept.get(name, {})
                self.kept[name] = {key: _chosen(finite, new, old.get(key)) for key, new in changed.items()}
        self._changed.clear()

    def place(self, device: torch.device) -> None:
        """Have all memories lie on a device."""
        moved = {name: {key: tensor.to(device) for key, tensor in memory.items()} for name, memory in self.kept.items()}
        replace(self.kept, moved)

    def load(self, kept: dict[str, Memory]) -> None:
        """Replace all by copies of what is given."""
        copies = {name: {key: tensor.clone() for key, tensor in memory.items()} for name, memory in kept.items()}
        replace(self.kept, copies)
        self._changed.clear()


def _into(finite: torch.Tensor, new: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    if old is None or old.shape != new.shape or old.dtype != new.dtype:
        return new
    return old if old is new else torch.where(finite, new, old, out=old)


def _chosen(finite: Verdict, new: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    return new if old is None or old is new or old.shape != new.shape else choose(finite, new, old)
