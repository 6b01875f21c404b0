# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Steers a module without DDP: gravac exchanges its gradients, or nobody; changeable at each step."""

from concurrent.futures import Future

import torch

from gravac.candidate import Candidate
from gravac.sources.hooked import HookedSource


class SteeredModule:
    """A module without DDP as a source of gradients; see ``gravac.modes.switch.Source``.

    Args:
        source: hands gradients to the engine.
        module: module that is trained.
        shares_buffers: whether ranks copy rank 0's buffers in each training step.
    """

    def __init__(self, source: HookedSource, module: torch.nn.Module, shares_buffers: bool = True) -> None:
        self.outside = self.inside = module
        self.in_join = False
        self.shares_buffers = shares_buffers
        self.source = source

    @property
    def decided(self) -> "Future[Candidate] | None":
        """Future of the candidate of the last exchanged step that began."""
        return self.source.decided

    @decided.setter
    def decided(self, decided: "Future[Candidate] | None") -> None:
        self.source.decided = decided

    @property
    def send_residuals(self) -> bool:
        """True if the next exchanged step sends all residuals, dense."""
        return self.source.send_residuals

    @send_residuals.setter
    def send_residuals(self, send_residuals: bool) -> None:
        self.source.send_residuals = send_residuals

    @property
    def synced(self) -> bool:
        """True if the backward that follows the forward that now begins will exchange gradients."""
        return not self.source.accumulating

    def use_hook(self) -> None:
        """Exchange gradients by gravac from the next backward on."""
        self.source.quiet = False

    def use_native(self, cf: float) -> None:
        """Refuse: a module without DDP has no native steps.

        Raises:
            RuntimeError: always, since only gravac exchanges the gradients of such a module.
        """
        raise RuntimeError("a module without DistributedDataParallel has no exchange of its own")

    def stop_exchange(self) -> None:
        """Exchange nothing from the next backward on."""
        self.source.quiet = True

    def silence(self) -> None:
        """Do nothing: after ``stop_exchange`` nothing is exchanged anyway."""

    def restore(self) -> None:
        """Do nothing: ``silence`` changed nothing."""

    def has_averaged(self) -> bool:
        """Return ``False``: only gravac averages."""
        return False

    def forward_starts(self) -> None:
        """Do nothing: the source sees forwards by itself."""

    def step_ended(self) -> None:
        """Do nothing: the source sees the optimizer by itself."""
