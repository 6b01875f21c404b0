# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Interface by which the switch controls the exchange of a module's gradients."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import torch

from gravac.candidate import Candidate
from gravac.sources.local_model import LocalModel


class Source(Protocol):
    """Interface by which the switch controls who exchanges a module's gradients: DDP, gravac, or nobody.

    Attributes:
        decided_candidate: future of the candidate that the controller chose when the last hook step began; ``None``
            before the first hook step.
        send_residuals: whether the next hook step sends all residuals (unsent parts of earlier gradients), without
            compression.
    """

    decided_candidate: "Future[Candidate] | None"
    send_residuals: bool

    @property
    def called_module(self) -> torch.nn.Module:
        """Module that the training loop calls; its forwards begin steps."""

    @property
    def inner_module(self) -> torch.nn.Module:
        """Module without wrappers, whose weights are trained."""

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the object by which this rank trains the model on its own in outer steps.

        Args:
            optimizers: torch's optimizers that train the module.
        """

    @property
    def forward_exchanges(self) -> bool:
        """True if ranks exchange tensors in forward, such as the shards of parameters."""

    @property
    def in_join(self) -> bool:
        """True if ranks may run out of inputs (``join()``), and would then miss exchanges of outer steps."""

    @property
    def shares_buffers(self) -> bool:
        """True if all ranks take over rank 0's buffers in each training step, as DDP does by broadcasts."""

    @property
    def will_exchange(self) -> bool:
        """True if gradients will be exchanged in the backward of the forward that begins; False if they accumulate."""

    def use_hook(self) -> None:
        """Let gravac exchange gradients from the next forward on."""

    def use_native(self, cf: float) -> None:
        """Let DDP itself average gradients from the next forward on, in float32 (``cf`` 1) or float16 (``cf`` 2)."""

    def stop_exchange(self) -> None:
        """Exchange nothing from the next forward on."""

    def silence_exchange(self) -> None:
        """Turn the exchange off for one forward and its backward. Called when the forward of an outer step begins."""

    def restore_exchange(self) -> None:
        """Undo ``silence_exchange``. Called when the forward of an outer step has ended."""

    def watch_gradients(self, gradient_accumulated: "Callable[[torch.Tensor], None] | None") -> None:
        """Call a function with each parameter (any shape) that gets a gradient in a backward; ``None``: no longer.

        Called before each forward of an outer step, since parameters may have been unfrozen or replaced.
        """

    def has_averaged(self) -> bool:
        """Return whether DDP, without gravac's hook, averaged gradients after the last call of this method."""

    def forward_starts(self) -> None:
        """Record the begin of a forward. Called when the forward of a hook step begins."""

    def step_ended(self) -> None:
        """Record the end of an optimizer's step. Called after each step of an optimizer in hook mode."""
