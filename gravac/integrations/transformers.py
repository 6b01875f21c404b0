# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer: ``trainer.add_callback(GravacCallback(trainer, ...))``."""

import functools
import weakref
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from gravac.adaptive import AdaptiveCompressor
from gravac.checkpoint import OnResize, save
from gravac.integrations.accelerate import connect, load_if_there
from gravac.integrations.frameworks import FOLDER, Every, metrics, recipe, tell_of_one_process


class GravacCallback(TrainerCallback):
    """Attaches when training starts, logs when the Trainer logs, and saves and goes on with the Trainer's checkpoints.

    If ranks train apart, what the Trainer evaluates and saves are the weights that all ranks share; each rank's own
    weights and optimizer state are among gravac's states. With ``average_tokens_across_devices``, the Trainer's
    default, the ranks still sum a number in each step.

    Args:
        trainer: the Trainer that it is added to: what that hands its callbacks is neither the wrapped model, nor the
            scaler, nor the checkpoint that training goes on from.
        every: number of steps from one exchange to the next: 1 averages gradients in each step; with 10 ranks train
            apart for ten steps; ``(1, 100)`` has the controller decide. ``None``: 1, or what ``policy`` says.
        on_resize: what becomes of residuals at another number of ranks: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``. With a
            probe and without ``total_steps`` the Trainer's number of training steps is taken.

    Attributes:
        compressor: compressor of the last ``train``; ``None`` before, and where there is one process.

    Raises:
        SettingsError: a setting is wrong.
    """

    def __init__(self, trainer: Trainer, *, every: Every = None, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._make = recipe(settings, on_resize, every)
        self._on_resize = on_resize
        self._trainer = trainer
        self._resumed: Path | None = None
        self._attached: weakref.ref[DistributedDataParallel] | None = None
        train = trainer.train

        @functools.wraps(train)
        def noted(resume_from_checkpoint: str | bool | None = None, *given: Any, **named: Any) -> Any:
            checkpoint = resume_from_checkpoint
            if checkpoint is True:
                checkpoint = get_last_checkpoint(trainer.args.output_dir)
            self._resumed = Path(checkpoint) if checkpoint else None
            return train(resume_from_checkpoint, *given, **named)

        trainer.train = noted

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Attach a new compressor to the model that the Trainer prepared, and load what the checkpoint holds.

        Raises:
            TypeError: the Trainer trains with something else than DistributedDataParallel.
        """
        self._leave()
        self.compressor = None
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            tell_of_one_process("the Trainer")
            return
        compressor = self._make(state.max_steps)
        ddp = connect(accelerator, self._trainer.model_wrapped, self._trainer.optimizer, compressor)
        self.compressor, self._attached = compressor, weakref.ref(ddp)
        if self._resumed is not None:
            load_if_there(self._resumed / FOLDER, compressor, self._on_resize)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Exchange what ranks learned apart, after the last step: the Trainer evaluates and saves after this."""
        if self._attached is not None and self.compressor is not None and control.should_training_stop:
            self.compressor.synchronize()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **given: Any,
    ) -> None:
        """Log after the loss, to all that the Trainer reports to, and report that loss to the compressor."""
        if self._attached is not None and self.compressor is not None and logs is not None and "loss" in logs:
            self.compressor.loss(logs["loss"])
            self._trainer.log(metrics(self.compressor))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Save all ranks' states into the checkpoint, which takes them along when the Trainer removes it."""
        resumable = not args.save_only_model and not state.is_hyper_param_search
        if self._attached is not None and self.compressor is not None and resumable:
            save(Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER), self.compressor)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Leave the model as it was, and close: the Trainer trains on with it when ``train`` is called again.

        Ranks that trained apart are one again. They stay at the best model, if the Trainer has just loaded that.
        """
        self._leave(exchange=True)

    def _leave(self, exchange: bool = False) -> None:
        """Take the hook off, and close.

        Args:
            exchange: whether ranks that train apart become one again; not after an exception, which may have left them
                at different steps.
        """
        if self._attached is None or self.compressor is None:
            return
        if not exchange:
            self.compressor.close()
        if self._is_attached:
            self.compressor.detach()
        self.compressor.close()
        self._attached = None

    @property
    def _is_attached(self) -> bool:
        """Whether the compressor is attached to what the Trainer trains: after an exception that may be another."""
        ddp = None if self._attached is None else self._attached()
        wrapped = self._trainer.model_wrapped
        return ddp is not None and ddp is getattr(wrapped, "_orig_mod", wrapped)
