# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A module without DDP whose gradients are exchanged by gravac, or not at all, from step to step."""

from concurrent.futures import Future

import torch

from gravac.candidate import Candidate
from gravac.sources.module import ModuleSource


class SteeredModule:
    """See ``gravac.modes.switch.Source``.

    Args:
        source: hands gradients to the engine.
        module: module that is trained.
    """

    def __init__(self, source: ModuleSource, module: torch.nn.Module) -> None:
        self.outside = self.inside = module
        self.in_join = False
        self.shares_buffers = True
        self.source = source

    @property
    def decided(self) -> "Future[Candidate] | None":
        """Candidate that was decided when the last step by the hook began."""
        return self.source.runs

    @decided.setter
    def decided(self, decided: "Future[Candidate] | None") -> None:
        self.source.runs = decided

    @property
    def send_whole(self) -> bool:
        """Whether the next exchanged step sends all residuals, dense."""
        return self.source.send_whole

    @send_whole.setter
    def send_whole(self, send_whole: bool) -> None:
        self.source.send_whole = send_whole

    @property
    def synced(self) -> bool:
        """Whether the backward of a forward that begins now is a step."""
        return not self.source.accumulating

    def use_hook(self) -> None:
        """Exchange gradients."""
        self.source.quiet = False

    def use_native(self, cf: float) -> None:
        """See ``Source``.

        Raises:
            RuntimeError: always: nothing but gravac exchanges a module's gradients.
        """
        raise RuntimeError("a module without DistributedDataParallel has no exchange of its own")

    def part(self) -> None:
        """Exchange nothing."""
        self.source.quiet = True

    def silence(self) -> None:
        """Do nothing: the source is quiet."""

    def restore(self) -> None:
        """Do nothing."""

    def averaged(self) -> bool:
        """Return ``False``: nothing else averages."""
        return False

    def forward_starts(self) -> None:
        """Do nothing: the source sees forwards by itself."""

    def step_ended(self) -> None:
        """Do nothing: the source sees the optimizer by itself."""
