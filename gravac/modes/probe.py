# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the loss on fixed batches, by a user's function, between two steps and without an effect on training."""

from collections.abc import Callable

import torch

ProbeLoss = Callable[[], "torch.Tensor | float"]
"""A user's function without arguments that returns the mean loss on this rank's fixed batches, by the present weights.

The loss is a number, or a tensor of one element, of any real dtype and on any device."""


class Probe:
    """Computes the loss on fixed batches, then restores random number generators, buffers and ``training`` flags.

    Args:
        loss: user's function that returns the loss, see ``ProbeLoss``; called under ``torch.no_grad()``.
        module: the model that ``loss`` evaluates.
    """

    def __init__(self, loss: ProbeLoss, module: torch.nn.Module) -> None:
        self._loss_function, self._module = loss, module

    def read(self) -> "torch.Tensor | float":
        """Call the user's function, and return the loss that it returns: a number, or a tensor of one element."""
        model_tensors = [*self._module.parameters(), *self._module.buffers()]
        gpu_indices = {tensor.device.index for tensor in model_tensors if tensor.device.type == "cuda"}
        buffer_copies = [(buffer, buffer.detach().clone()) for buffer in self._module.buffers()]
        training_flags = [(module, module.training) for module in self._module.modules()]
        with torch.no_grad(), torch.random.fork_rng([index for index in gpu_indices if index is not None]):
            try:
                return self._loss_function()
            finally:
                for buffer, buffer_copy in buffer_copies:
                    buffer.copy_(buffer_copy)
                for module, was_training in training_flags:
                    module.training = was_training
