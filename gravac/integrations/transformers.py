# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A callback for Hugging Face's Trainer: ``trainer.add_callback(GravacCallback(trainer, ...))``."""

import functools
import weakref
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from gravac.adaptive import AdaptiveCompressor
from gravac.checkpoint import OnResize, save
from gravac.integrations.accelerate import connect
from gravac.integrations.frameworks import FOLDER, Every, load_if_present, metrics, recipe, warn_of_one_process


class GravacCallback(TrainerCallback):
    """Callback that trains with gravac: attaches a compressor, logs, and saves gravac's states in checkpoints.

    During outer steps, the Trainer evaluates and saves the weights that all ranks share; each rank's own weights and
    optimizer state are among gravac's states. With ``average_tokens_across_devices``, the Trainer's default, the ranks
    still sum the number of tokens in each step, also in outer steps.

    Args:
        trainer: the Trainer that the callback is added to. The callback reads the wrapped model, the scaler and the
            checkpoint from it, since a Trainer does not pass these objects to callbacks.
        every: number of steps from one exchange to the next. 1: gradients are averaged in each step; 10: ranks train on
            their own for ten steps; ``(1, 100)``: the controller decides between these bounds. ``None``: the policy's
            number; 1 without a policy.
        on_resize: what happens to loaded residuals if the number of ranks has changed: ``"mean"``, ``"keep"`` or
            ``"drop"``; see ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.

    Attributes:
        compressor: compressor of the newest ``train``; ``None`` before the first ``train``, and in a single process.

    Raises:
        SettingsError: a setting is wrong.
    """

    def __init__(self, trainer: Trainer, *, every: Every = None, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._make_compressor = recipe(settings, on_resize, every)
        self._on_resize = on_resize
        self._trainer = trainer
        self._checkpoint: Path | None = None
        self._attached_module: weakref.ref[torch.nn.Module] | None = None
        train = trainer.train

        @functools.wraps(train)
        def train_and_store_checkpoint(
            resume_from_checkpoint: str | bool | None = None, *arguments: Any, **named: Any
        ) -> Any:
            checkpoint = resume_from_checkpoint
            if checkpoint is True:
                checkpoint = get_last_checkpoint(trainer.args.output_dir)
            self._checkpoint = Path(checkpoint) if checkpoint else None
            return train(resume_from_checkpoint, *arguments, **named)

        trainer.train = train_and_store_checkpoint

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any
    ) -> None:
        """Attach a new compressor to the Trainer's model; load gravac's states if training resumes from a checkpoint.

        Raises:
            TypeError: the Trainer uses neither DistributedDataParallel nor FSDP2.
            SettingsError: the model is in shards without replicas.
        """
        self._detach()
        self.compressor = None
        accelerator = self._trainer.accelerator
        if accelerator.num_processes == 1:
            warn_of_one_process("the Trainer")
            return
        compressor = self._make_compressor()
        attached_module = connect(accelerator, self._trainer.model_wrapped, self._trainer.optimizer, compressor)
        self.compressor, self._attached_module = compressor, weakref.ref(attached_module)
        if self._checkpoint is not None:
            load_if_present(self._checkpoint / FOLDER, compressor, self._on_resize)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Exchange what outer steps have not exchanged yet, after the last step and before the Trainer saves."""
        if self._attached_module is not None and self.compressor is not None and control.should_training_stop:
            self.compressor.synchronize()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **unused: Any,
    ) -> None:
        """Report the logged loss to the compressor, and log gravac's numbers to all trackers of the Trainer."""
        if self._attached_module is not None and self.compressor is not None and logs is not None and "loss" in logs:
            self.compressor.loss(logs["loss"])
            self._trainer.log(metrics(self.compressor))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any) -> None:
        """Save gravac's states of all ranks in a folder within the Trainer's checkpoint. Called on every rank."""
        is_resumable = not args.save_only_model and not state.is_hyper_param_search
        if self._attached_module is not None and self.compressor is not None and is_resumable:
            save(Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER), self.compressor)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **unused: Any
    ) -> None:
        """Detach and close the compressor, so that another ``train`` can attach a new one to the same model.

        After outer steps, detaching makes the ranks' weights equal. If the Trainer has loaded its best model, all ranks
        then have the best model's weights.
        """
        self._detach(exchange=True)

    def _detach(self, exchange: bool = False) -> None:
        """Detach the compressor from the model, and close it.

        Args:
            exchange: whether the ranks make their weights equal after outer steps; False after an exception, which may
                have left ranks at different steps.
        """
        if self._attached_module is None or self.compressor is None:
            return
        if not exchange:
            self.compressor.close()
        if self._is_attached:
            self.compressor.detach()
        self.compressor.close()
        self._attached_module = None

    @property
    def _is_attached(self) -> bool:
        """True if the Trainer still has the model that the compressor is attached to; False after some exceptions."""
        attached_module = None if self._attached_module is None else self._attached_module()
        wrapped_model = self._trainer.model_wrapped
        return attached_module is not None and (
            attached_module is wrapped_model or attached_module is getattr(wrapped_model, "_orig_mod", None)
        )
