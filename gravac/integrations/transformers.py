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
from gravac.integrations.frameworks import FOLDER, metrics, recipe, tell_of_one_process


class GravacCallback(TrainerCallback):
    """Attaches when training starts, logs when the Trainer logs, and saves and goes on with the Trainer's checkpoints.

    Args:
        trainer: the Trainer that it is added to: what that hands its callbacks is neither the wrapped model, nor the
            scaler, nor the checkpoint that training goes on from.
        on_resize: what becomes of residuals at another number of ranks: ``"mean"``, ``"keep"`` or ``"drop"``; see
            ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` with ``policy``.

    Attributes:
        compressor: compressor of the last ``train``; ``None`` before, and where there is one process.

    Raises:
        SettingsError: a setting is wrong.
    """

    def __init__(self, trainer: Trainer, *, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._make = recipe(settings, on_resize)
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
        compressor = self._make()
        ddp = connect(accelerator, self._trainer.model_wrapped, self._trainer.optimizer, compressor)
        self.compressor, self._attached = compressor, weakref.ref(ddp)
        if self._resumed is not None:
            load_if_there(self._resumed / FOLDER, compressor, self._on_resize)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **given: Any,
    ) -> None:
        """Log after the loss, to all that the Trainer reports to."""
        if self._attached is not None and self.compressor is not None and "loss" in (logs or {}):
            self._trainer.log(metrics(self.compressor))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Save all ranks' states into the checkpoint, which takes them along when the Trainer removes it."""
        resumable = not args.save_only_model and not state.is_hyper_param_search
        if self._attached is not None and self.compressor is not None and resumable:
            save(Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER), self.compressor)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Close, and leave the model as it was: the Trainer trains on with it when ``train`` is called again."""
        self._leave()

    def _leave(self) -> None:
        if self._attached is None or self.compressor is None:
            return
        ddp, self._attached = self._attached(), None
        self.compressor.close()
        wrapped = self._trainer.model_wrapped
        if ddp is not None and ddp is getattr(wrapped, "_orig_mod", wrapped):  # after an exception it may be another
            self.compressor.detach()
