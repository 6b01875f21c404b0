# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""An adapter over ``named_parameters()``, without DDP: the shortest there is, and an example for others."""

from collections.abc import Callable

import torch

from gravac import AdaptiveCompressor
from gravac.engine.engine import Engine


class Averaged:
    """Averages a module's gradients over the ranks between backward and the optimizer's step.

    Args:
        module: trained; the same weights on every rank.
        compressor: decides how.
        attach: gives these parameters to a compressor: its ``attach_parameters``, if need be with an executor.
    """

    def __init__(self, module: torch.nn.Module, attach: Callable[[dict[str, torch.Tensor]], Engine]) -> None:
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.engine = attach(self.parameters)

    def hand_over(self) -> None:
        """Hand all gradients over, last layers first."""
        self.engine.begin()
        for name, parameter in reversed(self.parameters.items()):
            if parameter.grad is not None:
                self.handle = self.engine.ready([(name, parameter.grad)])
        self.engine.end()

    def wait(self) -> None:
        """Return when the gradients hold their means."""
        self.handle.wait()


def over_network(module: torch.nn.Module, compressor: AdaptiveCompressor) -> Averaged:
    """Average over the default process group."""
    return Averaged(module, compressor.attach_parameters)
