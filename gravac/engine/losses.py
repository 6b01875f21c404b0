# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averages the training losses that a program reports on this rank between two measurements."""

import math
import threading

import torch

from gravac.exchange.reading import Number


class Losses:
    """Mean of the training losses that were added since the mean was last taken; never waits for a GPU."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loss_sum: Number = 0.0
        self._loss_count = 0

    def add(self, loss: torch.Tensor | float) -> None:
        """Add the loss of a batch to the mean.

        Args:
            loss: a number, or a tensor with one element, of any real dtype and on any device; it is detached.

        Raises:
            TypeError: the loss is no real number.
            ValueError: the tensor does not have one element.
        """
        loss_number = _loss_number(loss)
        with self._lock, torch.no_grad():
            self._loss_sum, self._loss_count = self._loss_sum + loss_number, self._loss_count + 1

    def take_mean(self) -> Number:
        """Return the mean of the losses that were added since the last call; nan if there are none. Start a new mean.

        Returns:
            A float if the losses are numbers or on the CPU, otherwise a 0-d float32 tensor on the losses' device.
        """
        with self._lock, torch.no_grad():
            loss_sum, count = self._loss_sum, self._loss_count
            self._loss_sum, self._loss_count = 0.0, 0
            return loss_sum / count if count else math.nan


def _loss_number(loss: torch.Tensor | float) -> Number:
    """Return a loss as a float, or as a scalar (0-d float32 tensor) if reading it would wait for a device."""
    if isinstance(loss, torch.Tensor):
        if loss.is_complex():
            raise TypeError(f"loss: {loss.dtype} is complex; give a real number")
        if loss.numel() != 1:
            raise ValueError(f"loss: its shape is {tuple(loss.shape)}; give the mean over the batch, one number")
        scalar = loss.detach().reshape(())
        return scalar.item() if scalar.device.type == "cpu" else scalar.float()
    if isinstance(loss, (int, float)) and not isinstance(loss, bool):
        return float(loss)
    raise TypeError(f"loss: {type(loss).__name__} is not a number; give a tensor of one element, or a float")
