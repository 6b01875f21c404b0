# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""When the host may read a number that a device computes: at once, or only some steps later.

Every executor is of one of two kinds. Code that averages gradients asks its executor to choose between two tensors by a
flag, and does not know whether the host has read the flag or the device selects.

- ``ReadsAtOnce``: the host may wait for the device that computes the tensors, such as a CPU. A choice is a Python
  ``if``.
- ``ReadsLater``: the host must not wait for the device, such as a GPU with streams. The device computes both tensors
  and selects between them (``torch.where``).
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch

Number = float | torch.Tensor
"""A number: a float, or a 0-d tensor whose value the host may not know yet."""

Finite = torch.Tensor | None
"""Whether numbers are finite: a 0-d bool tensor; ``None``: not checked, and taken as finite."""


class HostCopy(Protocol):
    """A copy of a tensor's numbers on the host, which may still be on its way."""

    def read(self) -> list[float]:
        """Return the numbers of a flat tensor, or its flags as bools; waits until they have arrived."""


class Reads(Protocol):
    """How flags and numbers that a device computes are used.

    Attributes:
        lag: number of steps after which the host may read a step's numbers; 0: at once.
    """

    lag: int

    def known(self, flag: Finite) -> bool | None:
        """Return a flag's value, a 0-d bool tensor; ``None`` if the host must not read it."""

    def choose(self, finite: Finite, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """Return ``new`` if ``finite``, otherwise ``old``: one of the two tensors, or a new tensor of their shape."""

    def settle(self, finite: Finite, new: torch.Tensor | None, old: torch.Tensor | None) -> torch.Tensor | None:
        """Return what is stored from now on: ``new`` if ``finite``, otherwise ``old``; may overwrite both.

        ``None`` stands for no tensor, which means the same as zeros.
        """

    def sum_in_place(self, kept: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return ``kept + added``, in the memory of ``kept`` if the host can subtract ``added`` again when need be."""

    def spoil(self, finite: Finite, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite tensors with NaN unless ``finite``."""

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return numbers as floats; 0-d tensors that the host must not read are returned unchanged."""

    def vector(self, numbers: Sequence[Number]) -> torch.Tensor:
        """Return numbers as one flat float64 tensor, on the device whose collectives sum it."""

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Start to copy a flat tensor to the host."""

    def catch_up(self) -> None:
        """Wait until the host may read the numbers of the step that ended ``lag`` steps ago; called before a step."""


class _Copied:
    """A copy that has arrived."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def read(self) -> list[float]:
        """Return the numbers."""
        return list(self._tensor.tolist())


class ReadsAtOnce:
    """The host may read every number at once, and waits for the device. See ``Reads`` for the methods."""

    lag = 0

    def known(self, flag: Finite) -> bool | None:
        """Return a flag's value."""
        return flag is None or bool(flag)

    def choose(self, finite: Finite, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """Return ``new`` if ``finite``, otherwise ``old``."""
        return new if self.known(finite) else old

    def settle(self, finite: Finite, new: torch.Tensor | None, old: torch.Tensor | None) -> torch.Tensor | None:
        """Return ``new`` if ``finite``, otherwise ``old``."""
        return new if self.known(finite) else old

    def sum_in_place(self, kept: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Add ``added`` to ``kept``, in place, and return ``kept``."""
        return kept.add_(added)

    def spoil(self, finite: Finite, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite tensors with NaN unless ``finite``."""
        if not self.known(finite):
            for tensor in tensors:
                tensor.fill_(math.nan)

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return numbers as floats."""
        return [float(number) for number in numbers]

    def vector(self, numbers: Sequence[Number]) -> torch.Tensor:
        """Return numbers as one flat float64 tensor on the CPU."""
        return torch.tensor([*map(float, numbers)], dtype=torch.float64, device="cpu")

    def to_host(self, tensor: torch.Tensor) -> HostCopy:
        """Copy a flat tensor to the host."""
        return _Copied(tensor.cpu())

    def catch_up(self) -> None:
        """Do nothing: the host may read every number at any time."""


class ReadsLater(ReadsAtOnce):
    """The host must not read a number that the device computes, until a later step. See ``Reads`` for the methods."""

    lag = 1

    def known(self, flag: Finite) -> bool | None:
        """Return ``None``: the host does not know the flag; True if nothing was checked."""
        return True if flag is None else None

    def choose(self, finite: Finite, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """Let the device select; return a new tensor."""
        return new if finite is None else torch.where(finite, new, old)

    def settle(self, finite: Finite, new: torch.Tensor | None, old: torch.Tensor | None) -> torch.Tensor | None:
        """Let the device select; the result is in the memory of ``old``, or of ``new`` if there is no old tensor.

        Memory that is freed within a step may be given to a stream while another stream reads it, so old memory stays
        in use.
        """
        if finite is None:
            return new
        if old is None:
            return None if new is None else new.masked_fill_(~finite, 0.0)
        return old.masked_fill_(finite, 0.0) if new is None else torch.where(finite, new, old, out=old)

    def sum_in_place(self, kept: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the sum as a new tensor: ``kept`` is needed if the device finds that a gradient was not finite."""
        return torch.add(kept, added)

    def spoil(self, finite: Finite, tensors: Sequence[torch.Tensor]) -> None:
        """Let the device overwrite tensors with NaN unless ``finite``."""
        if finite is None:
            return
        one_or_nan = torch.div(finite, finite)  # 1 / 1 or 0 / 0
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same_dtype_tensors = [tensor for tensor in tensors if tensor.dtype == dtype]
            torch._foreach_mul_(same_dtype_tensors, one_or_nan.to(dtype))

    def numbers(self, numbers: Sequence[Number]) -> list[Number]:
        """Return the numbers unchanged."""
        return [*numbers]


AT_ONCE = ReadsAtOnce()
"""How numbers are read without an executor."""


def both(first: Finite, second: Finite) -> Finite:
    """Return whether two sets of numbers are finite."""
    if first is None or second is None:
        return second if first is None else first
    return first & second
