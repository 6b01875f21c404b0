# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bytes that tensors take, followed from operator to operator: what a caching allocator would be asked for.

A mode sees every tensor that an operator makes, and knows by weak references which of their storages still live. What
an operator takes within itself (a sort, a QR) is not seen, nor how an allocator rounds.
"""

from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device.counting import tensors_in


class Storages(TorchDispatchMode):
    """Follows the storages of tensors made within, fake or real.

    Args:
        device: kind of the device on which they count.

    Attributes:
        peak: most bytes that lived at once, since ``begin``.
        kept: bytes that lived at ``end``.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.peak = self.kept = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def live(self) -> int:
        """Bytes that live now."""
        # a weak reference keeps the address from being another storage's
        self._made = {at: (one, size) for at, (one, size) in self._made.items() if not one.expired()}
        return sum(size for _, size in self._made.values())

    def begin(self) -> None:
        """What is asked about begins: forget what the peak was."""
        self.peak = self.live

    def end(self) -> None:
        """It ends."""
        self.kept = self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        grown = False
        for one in tensors_in(made):
            if one.device.type == self.device:
                storage = one.untyped_storage()
                if storage._cdata not in self._made or self._made[storage._cdata][0].expired():
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                    grown = True
        if grown:  # with no new storage no more bytes live than before; asking each for whether it lives takes long
            self.peak = max(self.peak, self.live)
        return made
