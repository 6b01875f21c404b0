# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a Lightning callback does, for ``lightning`` and ``pytorch_lightning`` alike; neither is imported here."""

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
    tell_of_no_state,
    tell_of_one_process,
)


class LightningHooks:
    """Attaches to the model when training starts, logs, keeps all ranks' states in the checkpoint, and closes.

    If ranks train apart, what Lightning evaluates and saves are the weights that all ranks share; each rank's own
    weights and optimizer state are among the states in the checkpoint.

    Args:
        every: number of steps from one exchange to the next: 1 averages gradients in each step; with 10 ranks train
            apart for ten steps; ``(1, 100)`` has the controller decide. ``None``: 1, or what ``policy`` says.
        on_resize: what becomes of residuals at another number of ranks: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``. With a
            probe and without ``total_steps`` the Trainer's number of training steps is taken.

    Attributes:
        compressor: compressor of the last ``fit``; ``None`` before, and where there is one process.

    Raises:
        SettingsError: a setting is wrong.
    """

    together: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that end training on all ranks after the same step, so that a checkpoint can be gathered then."""

    def __init__(self, *, every: Every = None, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._make = recipe(settings, on_resize, every)
        self._on_resize = on_resize
        self._loaded: dict[str, Any] | None = None
        self._apart = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach a new compressor to the DDP module that the strategy made, and load what the checkpoint held.

        Raises:
            TypeError: the strategy is not DDP.
            ValueError: there are several optimizers.
        """
        loaded, self._loaded = self._loaded, None
        self.compressor, self._apart = None, False
        if trainer.world_size == 1:
            tell_of_one_process("the Trainer")
            return
        ddp = data_parallel(trainer.strategy.model, f"strategy: {type(trainer.strategy).__name__}")
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"optimizers: {len(trainer.optimizers)} optimizers take turns, and a backward for one exchanges "
                "gradients of parameters that others step; gravac needs one optimizer of all parameters"
            )
        compressor = self._make(trainer.estimated_stepping_batches)
        compressor.attach(ddp, trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None))
        if loaded is not None:
            load_gathered(loaded, compressor, self._on_resize)
        self.compressor = compressor

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the loss, and log in the steps in which the Trainer does; after the last step, end the round."""
        if self.compressor is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):  # which Lightning has divided by the number of batches of a step
            self.compressor.loss(loss * trainer.accumulate_grad_batches)
        every = trainer.log_every_n_steps
        if every and trainer.global_step % every == 0:
            pl_module.log_dict(metrics(self.compressor), batch_size=1)
        if is_last_step(trainer):  # before the last validation, so that what is saved then is what was evaluated
            self.compressor.synchronize()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Exchange what ranks learned apart since the last exchange, before ``ModelCheckpoint`` saves the last file."""
        if self.compressor is not None:
            self.compressor.synchronize()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Put all ranks' states into the checkpoint that rank 0 writes; called on every rank."""
        if self.compressor is None:
            return
        if self._apart:
            warnings.warn(
                "gravac: ranks may have been at different steps when training ended by an exception, so their states "
                "are not in this checkpoint; residuals will begin anew",
                stacklevel=2,
            )
        elif (states := gather(self.compressor)) is not None:
            checkpoint[FOLDER] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep what the checkpoint holds until training starts; validation needs nothing of it."""
        if trainer.state.fn == "fit":
            self._loaded = checkpoint.get(FOLDER)
            if self._loaded is None:
                tell_of_no_state("the checkpoint")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close, also on Ctrl-C; what is saved then are the weights that all ranks share."""
        self._apart = not isinstance(exception, self.together)
        if self.compressor is not None and not self._apart:
            self.compressor.state_dict()  # finishes what is under way, which a closed compressor cannot
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close when training has ended and its last checkpoint was written."""
        self._close()

    def _close(self) -> None:
        if self.compressor is not None:
            self.compressor.close()


def is_last_step(trainer: Any) -> bool:
    """Whether a batch ended after which the Trainer is known to train no more; the same on all ranks."""
    steps, epochs = trainer.max_steps, trainer.max_epochs
    if steps is not None and 0 <= steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
