# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Steers a module without DDP: gradients are exchanged by gravac, or not at all, as set for each step."""

from collections.abc import Sequence
from concurrent.futures import Future

import torch

from gravac.candidate import Candidate
from gravac.sources.hooked import HookedSource
from gravac.sources.local_model import LocalModel, innermost


class SteeredModule:
    """A module without DDP as a source of gradients; see ``gravac.modes.switch.Source``.

    Args:
        source: hands the module's gradients to the engine.
        module: module that is trained.
        shares_buffers: whether ranks copy rank 0's buffers in each training step.
    """

    def __init__(self, source: HookedSource, module: torch.nn.Module, shares_buffers: bool = True) -> None:
        self.called_module = self.inner_module = module
        self.in_join = False
        self.shares_buffers = shares_buffers
        self.source = source

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the module and its optimizers, which this rank trains by itself in outer steps."""
        return LocalModel(innermost(self.inner_module), optimizers)

    @property
    def decided_candidate(self) -> "Future[Candidate] | None":
        """Candidate that the controller had chosen when the last hook step began; ``None`` before the first."""
        return self.source.decided_candidate

    @decided_candidate.setter
    def decided_candidate(self, candidate: "Future[Candidate] | None") -> None:
        self.source.decided_candidate = candidate

    @property
    def send_residuals(self) -> bool:
        """True if the next hook step sends, dense, all residuals: what earlier steps did not send."""
        return self.source.send_residuals

    @send_residuals.setter
    def send_residuals(self, send_residuals: bool) -> None:
        self.source.send_residuals = send_residuals

    @property
    def in_pipeline(self) -> bool:
        """False, since forwards tell which backward exchanges."""
        return False

    @property
    def will_exchange(self) -> bool:
        """True if the backward of the forward that begins is to exchange gradients, and not only to accumulate them."""
        return not self.source.is_accumulating

    def use_hook(self) -> None:
        """Let gravac exchange gradients from the next backward on."""
        self.source.is_stopped = False

    def use_native(self, cf: float) -> None:
        """Raise, since a module without DDP has no native steps.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "native: a module without DistributedDataParallel has no exchange of its own; wrap the module, or use "
            "native=False"
        )

    def stop_exchange(self) -> None:
        """Exchange nothing from the next backward on."""
        self.source.is_stopped = True

    def silence_exchange(self) -> None:
        """Do nothing, since ``stop_exchange`` has stopped the exchange of all forwards."""

    def restore_exchange(self) -> None:
        """Do nothing, since ``silence_exchange`` changed nothing."""

    def has_averaged(self) -> bool:
        """Return ``False``, since only gravac averages gradients."""
        return False

    def forward_starts(self) -> None:
        """Do nothing, since the source has its own hook on forwards."""

    def step_ended(self) -> None:
        """Do nothing, since the source has its own hook on the optimizer."""
