# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Turns gravac's exchange of the gradients of a module without DDP on and off, between steps."""

from collections.abc import Sequence
from concurrent.futures import Future

import torch

from gravac.candidate import Candidate
from gravac.sources.hooked import HookedSource
from gravac.sources.local_model import LocalModel, innermost


class SteeredModule:
    """A module without DDP, whose gradients are exchanged by gravac or not at all.

    See ``gravac.modes.source.Source`` for the methods.

    Args:
        source: object that hands the module's gradients to the engine.
        module: module that is trained.
        shares_buffers: whether all ranks get rank 0's buffers in each training step.
        forward_exchanges: whether ranks exchange tensors in forward.
    """

    def __init__(
        self,
        source: HookedSource,
        module: torch.nn.Module,
        shares_buffers: bool = True,
        forward_exchanges: bool = False,
    ) -> None:
        self.called_module = self.inner_module = module
        self.in_join, self.forward_exchanges = False, forward_exchanges
        self.shares_buffers = shares_buffers
        self.source = source

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the module and its optimizers, which this rank trains by itself in outer steps."""
        return LocalModel(innermost(self.inner_module), optimizers)

    @property
    def decided_candidate(self) -> "Future[Candidate] | None":
        """Future of the candidate that the controller had chosen when the last hook step began.

        ``None`` before the first hook step.
        """
        return self.source.decided_candidate

    @decided_candidate.setter
    def decided_candidate(self, candidate: "Future[Candidate] | None") -> None:
        self.source.decided_candidate = candidate

    @property
    def send_residuals(self) -> bool:
        """True if the next hook step sends all residuals (unsent parts of earlier gradients), without compression."""
        return self.source.send_residuals

    @send_residuals.setter
    def send_residuals(self, send_residuals: bool) -> None:
        self.source.send_residuals = send_residuals

    @property
    def in_pipeline(self) -> bool:
        """Always False: without DDP, it is known when a forward begins whether its backward exchanges."""
        return False

    @property
    def will_exchange(self) -> bool:
        """True if the next backward is to exchange gradients, not just accumulate them; read when a forward begins."""
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
            "native: a module without DistributedDataParallel has no exchange of its own; wrap the module in "
            "DistributedDataParallel, or use native=False"
        )

    def stop_exchange(self) -> None:
        """Stop the exchange: from the next backward on, gravac exchanges no gradients."""
        self.source.is_stopped = True

    def silence_exchange(self) -> None:
        """Do nothing, since ``stop_exchange`` has already stopped the exchange of all backwards."""

    def restore_exchange(self) -> None:
        """Do nothing, since ``silence_exchange`` changed nothing."""

    def has_averaged(self) -> bool:
        """Return ``False``, since only gravac averages gradients."""
        return False

    def forward_starts(self) -> None:
        """Do nothing, since the source's own hook records when a forward begins."""

    def step_ended(self) -> None:
        """Do nothing, since the source's own hook records when an optimizer's step ends."""
