# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hooks of a Lightning callback, for ``lightning`` and for ``pytorch_lightning``; neither package is imported here."""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from gravac.adaptive import AdaptiveCompressor
from gravac.checkpoint import OnResize, gather, load_gathered
from gravac.integrations.frameworks import (
    FOLDER,
    Every,
    data_parallel,
    metrics,
    recipe,
    warn_of_missing_state,
    warn_of_one_process,
)


class LightningHooks:
    """Base class of callbacks, which attach a compressor when training starts, log, and add its states to checkpoints.

    During outer steps, Lightning evaluates and saves the weights that all ranks share; each rank's own weights and
    optimizer state are among the states in the checkpoint.

    Args:
        every: number of steps from one exchange to the next. 1: gradients are averaged in each step; 10: ranks train on
            their own for ten steps; ``(1, 100)``: the controller decides between these bounds. ``None``: the policy's
            number; 1 without a policy.
        on_resize: what becomes of residuals if another number of ranks loads: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``. With ``probe`` and
            without ``total_steps``, ``total_steps`` becomes the Trainer's number of training steps.

    Attributes:
        compressor: compressor of the newest ``fit``; ``None`` before it, and if there is a single process.

    Raises:
        SettingsError: a setting is wrong.
    """

    simultaneous: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that end training on all ranks after the same step; all ranks' states can then still be saved."""

    def __init__(self, *, every: Every = None, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._build = recipe(settings, on_resize, every)
        self._on_resize = on_resize
        self._states_to_load: dict[str, Any] | None = None
        self._steps_may_differ = False  # whether ranks may be at different steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach a new compressor to the strategy's DDP module, and load the checkpoint's states, if there are any.

        Raises:
            TypeError: the strategy is not DDP.
            ValueError: there are several optimizers.
        """
        states, self._states_to_load = self._states_to_load, None
        self.compressor, self._steps_may_differ = None, False
        if trainer.world_size == 1:
            warn_of_one_process("the Trainer")
            return
        ddp = data_parallel(trainer.strategy.model, f"strategy: {type(trainer.strategy).__name__}")
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"optimizers: the module has {len(trainer.optimizers)}, but gravac supports one: each backward would "
                "also exchange gradients of the other optimizers' parameters; use one optimizer for all parameters"
            )
        compressor = self._build(trainer.estimated_stepping_batches)
        compressor.attach(ddp, trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None))
        if states is not None:
            load_gathered(states, compressor, self._on_resize)
        self.compressor = compressor

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the loss, log numbers when the Trainer logs, and after the last step end the round of outer steps."""
        if self.compressor is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):  # Lightning has divided the loss by the number of batches of a step
            self.compressor.loss(loss * trainer.accumulate_grad_batches)
        log_interval = trainer.log_every_n_steps
        if log_interval and trainer.global_step % log_interval == 0:
            pl_module.log_dict(metrics(self.compressor), batch_size=1)
        if is_last_step(trainer):  # before the last validation, which evaluates the weights that are saved
            self.compressor.synchronize()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """End the round of outer steps with an exchange, before ``ModelCheckpoint`` saves its last file."""
        if self.compressor is not None:
            self.compressor.synchronize()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add all ranks' states to the checkpoint that rank 0 writes; called on every rank."""
        if self.compressor is None:
            return
        if self._steps_may_differ:
            warnings.warn(
                "gravac: ranks may have been at different steps when training ended by an exception, so their states "
                "are not in this checkpoint; residuals will begin anew",
                stacklevel=2,
            )
        elif (states := gather(self.compressor)) is not None:
            checkpoint[FOLDER] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Store the checkpoint's states until training starts; only ``fit`` needs these states."""
        if trainer.state.fn == "fit":
            self._states_to_load = checkpoint.get(FOLDER)
            if self._states_to_load is None:
                warn_of_missing_state("the checkpoint")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the compressor after an exception or Ctrl-C; Lightning then saves the weights that all ranks share."""
        self._steps_may_differ = not isinstance(exception, self.simultaneous)
        if self.compressor is not None and not self._steps_may_differ:
            self.compressor.state_dict()  # waits for the exchange in flight, which a closed compressor cannot do
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the compressor, when training has ended and its last checkpoint was written."""
        self._close()

    def _close(self) -> None:
        if self.compressor is not None:
            self.compressor.close()


def is_last_step(trainer: Any) -> bool:
    """True if the Trainer's ``max_steps`` or ``max_epochs`` ends training after this batch; the same on all ranks."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if steps is not None and 0 <= steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
