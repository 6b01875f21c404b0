# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hooks of a Lightning callback, for both ``lightning`` and ``pytorch_lightning``; neither package is imported here."""

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
    """Lightning hooks: attach a compressor when training starts, log, add all ranks' states to checkpoints, and close.

    During outer steps, Lightning evaluates and saves the weights that all ranks share; each rank's own weights and
    optimizer state are among the states in the checkpoint.

    Args:
        every: number of steps from one exchange to the next: 1 averages gradients in each step; with 10 ranks train
            apart for ten steps; with ``(1, 100)`` the controller decides. ``None``: the policy's, without a policy 1.
        on_resize: what becomes of residuals at another number of ranks: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``. With ``probe`` and
            without ``total_steps``, ``total_steps`` is the Trainer's number of training steps.

    Attributes:
        compressor: compressor of the newest ``fit``; ``None`` before it, and if there is a single process.

    Raises:
        SettingsError: a setting is wrong.
    """

    simultaneous: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that end training on all ranks after the same step, so that a checkpoint can be gathered then."""

    def __init__(self, *, every: Every = None, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._build = recipe(settings, on_resize, every)
        self._on_resize = on_resize
        self._states_to_load: dict[str, Any] | None = None
        self._may_differ = False  # ranks may be at different steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach a new compressor to the strategy's DDP module, and load the states that the checkpoint held.

        Raises:
            TypeError: the strategy is not DDP.
            ValueError: there are several optimizers.
        """
        states, self._states_to_load = self._states_to_load, None
        self.compressor, self._may_differ = None, False
        if trainer.world_size == 1:
            warn_of_one_process("the Trainer")
            return
        ddp = data_parallel(trainer.strategy.model, f"strategy: {type(trainer.strategy).__name__}")
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"optimizers: {len(trainer.optimizers)} optimizers take turns, and a backward for one exchanges "
                "gradients of parameters that others step; gravac needs one optimizer of all parameters"
            )
        compressor = self._build(trainer.estimated_stepping_batches)
        compressor.attach(ddp, trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None))
        if states is not None:
            load_gathered(states, compressor, self._on_resize)
        self.compressor = compressor

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the loss, and log in steps in which the Trainer logs; after the last step, end the round."""
        if self.compressor is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):  # Lightning has divided the loss by the number of batches of a step
            self.compressor.loss(loss * trainer.accumulate_grad_batches)
        every = trainer.log_every_n_steps
        if every and trainer.global_step % every == 0:
            pl_module.log_dict(metrics(self.compressor), batch_size=1)
        if is_last_step(trainer):  # before the last validation, so that the weights saved then are those evaluated
            self.compressor.synchronize()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Exchange what ranks learned since the newest exchange, before ``ModelCheckpoint`` saves its last file."""
        if self.compressor is not None:
            self.compressor.synchronize()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Put all ranks' states into the checkpoint that rank 0 writes; called on every rank."""
        if self.compressor is None:
            return
        if self._may_differ:
            warnings.warn(
                "gravac: ranks may have been at different steps when training ended by an exception, so their states "
                "are not in this checkpoint; residuals will begin anew",
                stacklevel=2,
            )
        elif (states := gather(self.compressor)) is not None:
            checkpoint[FOLDER] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the checkpoint's states until training starts; validation does not need them."""
        if trainer.state.fn == "fit":
            self._states_to_load = checkpoint.get(FOLDER)
            if self._states_to_load is None:
                warn_of_missing_state("the checkpoint")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close, also on Ctrl-C; the weights that Lightning saves afterwards are those that all ranks share."""
        self._may_differ = not isinstance(exception, self.simultaneous)
        if self.compressor is not None and not self._may_differ:
            self.compressor.state_dict()  # waits for the exchange in flight, which a closed compressor cannot do
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close when training has ended and its last checkpoint was written."""
        self._close()

    def _close(self) -> None:
        if self.compressor is not None:
            self.compressor.close()


def is_last_step(trainer: Any) -> bool:
    """True if the batch that ended is the Trainer's last, by its settings; the same on all ranks."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if steps is not None and 0 <= steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
