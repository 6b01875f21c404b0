# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""SentBuffers of a module that training changes, such as running statistics: found, and sent from rank 0 as bytes."""

from collections.abc import Iterable, Sequence

import torch

from gravac.sources.ddp import canonical


class SentBuffers:
    """A module's buffers, and which of them rank 0 sends.

    Those of normalization layers are sent in each step. A change of another one is noticed, on any rank, and sent with
    the step after.

    Args:
        module: has the buffers, of any shapes; ``None``: there are none.

    Attributes:
        watched: names of the buffers whose changes are noticed.
        changed: whether each of these has changed on this rank between the last two calls of ``look``.
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
        """The buffers that the module has now, by name."""
        held = {name: owner._buffers.get(key) for name, (owner, key) in self._owners.items()}
        return {name: buffer for name, buffer in held.items() if buffer is not None}

    def look(self) -> None:
        """Note which buffers have changed since the last call."""
        before, self._seen = self._seen, self._versions
        self.changed = [not _same(before.get(name), self._seen.get(name)) for name in self.watched]

    def learn(self, counts: Iterable[int]) -> None:
        """Choose what is sent in the next step.

        Args:
            counts: number of ranks on which each watched buffer has changed.
        """
        self.sent = [*self._normalizing, *(name for name, n in zip(self.watched, counts, strict=True) if n)]

    def flat(self, device: torch.device) -> torch.Tensor:
        """Return the buffers that are sent, one after the other, as bytes, ``[bytes]``, on a device."""
        present = self.present
        return torch.cat([_bytes(present[name]).to(device) for name in self.sent])

    def put(self, names: Sequence[str], flat: torch.Tensor) -> None:
        """Overwrite buffers. A graph that holds them for another backward stays valid, and no change is noticed.

        Args:
            names: names of the buffers.
            flat: what ``flat`` returned on rank 0, ``[bytes]``.
        """
        present, offset = self.present, 0
        for name in names:
            buffer = present[name].data
            size = buffer.numel() * buffer.element_size()
            part = flat[offset : offset + size].clone()  # aligned
            buffer.copy_(part.view(buffer.dtype).view(buffer.shape))
            offset += size

    @property
    def _versions(self) -> dict[str, tuple[torch.Tensor, int]]:
        present = self.present
        return {name: (present[name], _version(present[name])) for name in self.watched if name in present}


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _same(before: tuple[torch.Tensor, int] | None, now: tuple[torch.Tensor, int] | None) -> bool:
    """Whether a buffer is the same tensor, unchanged."""
    return before is now or (before is not None and now is not None and before[0] is now[0] and before[1] == now[1])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as bytes, ``[bytes]``."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
