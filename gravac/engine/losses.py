# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The training losses that this rank was told of, until the next measurement takes their mean along."""

import math
import threading

import torch

from gravac.exchange.executor import Number


class Losses:
    """Adds up training losses, without waiting for the device that they are on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total: Number = 0.0
        self._count = 0

    def add(self, loss: torch.Tensor | float) -> None:
        """Add the loss of a batch.

        Args:
            loss: number, or tensor of one element of any real dtype, on any device; with or without a graph.

        Raises:
            TypeError: it is neither.
            ValueError: the tensor has more elements than one, or none.
        """
        told = _number(loss)
        with self._lock, torch.no_grad():
            self._total, self._count = self._total + told, self._count + 1

    def take(self) -> Number:
        """Return the mean since the last call; nan if none was told. A scalar (0-d float32) if any is on a device."""
        with self._lock, torch.no_grad():
            total, count = self._total, self._count
            self._total, self._count = 0.0, 0
            return total / count if count else math.nan


def _number(loss: torch.Tensor | float) -> Number:
    if isinstance(loss, torch.Tensor):
        if loss.is_complex():
            raise TypeError(f"loss: {loss.dtype} is complex; give a real number")
        if loss.numel() != 1:
            raise ValueError(f"loss: its shape is {tuple(loss.shape)}; give the mean over the batch, one number")
        told = loss.detach().reshape(())
        return told.item() if told.device.type == "cpu" else told.float()
    if isinstance(loss, (int, float)) and not isinstance(loss, bool):
        return float(loss)
    raise TypeError(f"loss: {type(loss).__name__} is no number; give a tensor of one element, or a float")
