# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What sources need to know when a backward begins and ends: a forward's outputs, and autograd's callback."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch


class AtEnd:
    """Callback that autograd calls when a backward has ended; it is freed when the backward fails.

    Args:
        function: called without arguments.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __call__(self) -> None:
        """Call the function."""
        self._function()


def tensors_in(outputs: object) -> Iterator[torch.Tensor]:
    """Yield the tensors, of any shapes, in a forward's outputs.

    The outputs are a tensor, or lists, tuples, dicts and dataclasses of tensors.

    Example:
        >>> [tensor.numel() for tensor in tensors_in({"loss": torch.zeros(()), "parts": [torch.zeros(2)]})]
        [1, 2]
    """
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        yield from (tensor for entry in outputs.values() for tensor in tensors_in(entry))
    elif isinstance(outputs, list | tuple):
        yield from (tensor for entry in outputs for tensor in tensors_in(entry))
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        yield from (tensor for entry in fields(outputs) for tensor in tensors_in(getattr(outputs, entry.name)))
