# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Buffers of a module that training changes, such as running statistics: found, and sent from rank 0 as bytes."""

from collections.abc import Iterable, Sequence

import torch

from gravac.sources.ddp import canonical


class Buffers:
    """A module's buffers, and which of them rank 0 sends.

    Args:
        module: has them; ``None``: there are none.

    Attributes:
        names: of all buffers.
        sent: names of those that are sent, the same on all ranks.
        changed: of each buffer, whether it is not sent, and has changed since ``look`` was called the time before.
    """

    def __init__(self, module: torch.nn.Module | None = None) -> None:
        named = {} if module is None else {canonical(name): buffer for name, buffer in module.named_buffers()}
        owners = dict(module.named_modules()) if module is not None else {}
        self._owners: dict[str, tuple[torch.nn.Module, str]] = {}
        normalizing: set[str] = set()
        for path, owner in owners.items():
            for key, buffer in owner._buffers.items():
                name = canonical(f"{path}.{key}" if path else key)
                if buffer is not None and name in named:
                    self._owners[name] = owner, key
                    if isinstance(owner, torch.nn.modules.batchnorm._NormBase):
                        normalizing.add(name)
        self.names = list(self._owners)
        self.sent = [name for name in self.names if name in normalizing]
        self.changed = [False] * len(self.names)
        self._seen = {name: (buffer, _version(buffer)) for name, buffer in self.present.items()}

    @property
    def present(self) -> dict[str, torch.Tensor]:
        """The buffers that the module has now, by name."""
        held = {name: owner._buffers.get(key) for name, (owner, key) in self._owners.items()}
        return {name: buffer for name, buffer in held.items() if buffer is not None}

    def look(self) -> None:
        """Note which buffers have changed."""
        seen = {name: (buffer, _version(buffer)) for name, buffer in self.present.items()}
        sent = set(self.sent)
        self.changed = [name not in sent and not _same(self._seen.get(name), seen.get(name)) for name in self.names]
        self._seen = seen

    def add(self, counts: Iterable[int]) -> None:
        """Send from now on those that have changed on any rank."""
        new = {name for name, count in zip(self.names, counts, strict=True) if count}
        self.sent = [name for name in self.names if name in self.sent or name in new]

    def flat(self, device: torch.device) -> torch.Tensor:
        """Return those that are sent as bytes, ``[bytes]``, on a device."""
        present = self.present
        return torch.cat([_bytes(present[name]).to(device) for name in self.sent])

    def put(self, names: Sequence[str], flat: torch.Tensor) -> None:
        """Overwrite buffers by bytes, ``[bytes]``; a graph that holds them for another backward stays valid."""
        present, offset = self.present, 0
        for name in names:
            buffer = present[name].data
            size = buffer.numel() * buffer.element_size()
            part = flat[offset : offset + size].clone()  # aligned
            buffer.copy_(part.view(buffer.dtype).view(buffer.shape))
            offset += size


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _same(before: tuple[torch.Tensor, int] | None, now: tuple[torch.Tensor, int] | None) -> bool:
    """Whether a buffer is the same tensor, unchanged."""
    return before is now or (before is not None and now is not None and before[0] is now[0] and before[1] == now[1])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as bytes, ``[bytes]``."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
