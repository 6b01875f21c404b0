# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the loss on fixed batches between two steps, without any effect on training."""

from collections.abc import Callable

import torch

ProbeLoss = Callable[[], "torch.Tensor | float"]
"""A user's function that returns the mean loss on this rank's fixed batches, by the model's current weights: a number,
or a tensor of one element, of any real dtype and on any device."""


class Probe:
    """Computes the loss on fixed batches, and restores random number generators, buffers and training mode.

    Args:
        loss: user's function that returns the loss; called without gradients.
        module: the model that ``loss`` evaluates.
    """

    def __init__(self, loss: ProbeLoss, module: torch.nn.Module) -> None:
        self._loss, self._module = loss, module

    def read(self) -> "torch.Tensor | float":
        """Return the loss as the user's function returned it: a number, or a tensor of one element."""
        tensors = [*self._module.parameters(), *self._module.buffers()]
        devices = {tensor.device.index for tensor in tensors if tensor.device.type == "cuda"}
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._module.buffers()]
        modes = [(module, module.training) for module in self._module.modules()]
        with torch.no_grad(), torch.random.fork_rng([device for device in devices if device is not None]):
            try:
                return self._loss()
            finally:
                for buffer, saved in buffers:
                    buffer.copy_(saved)
                for module, training in modes:
                    module.training = training
