# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run in which ranks train apart, with Lightning as ``lightning.pytorch`` or ``pytorch_lightning``."""

import importlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from tests.distributed.training import batch
from tests.integrations import apart
from tests.integrations.by_hand import Trained, as_torchrun_says, by_hand, flat, model, trained
from tests.integrations.lightning.program import CALLBACKS


def parts(package: str) -> tuple[Any, type[Any], type[Any]]:
    """Return a package, its class of modules with two ways to optimize, and gravac's callback for it."""
    pl = importlib.import_module(package)

    class Module(pl.LightningModule):  # type: ignore[misc]
        """Takes its batches by rank and position."""

        def __init__(self, rank: int, by_hand: bool = False, end: BaseException | None = None) -> None:
            super().__init__()
            self.model = model()
            self.rank, self.end = rank, end
            self.automatic_optimization = not by_hand
            self.losses: list[float] = []
            self.validated: dict[int, float] = {}

        def training_step(self, _: torch.Tensor, position: int) -> torch.Tensor:
            """Return the loss of a batch, or step by it."""
            if self.end is not None and position == apart.SAVED_AT + 2:
                raise self.end
            x, y = batch(self.rank, position)
            loss = cross_entropy(self.model(x), y)
            self.losses.append(float(loss.detach()))
            if not self.automatic_optimization:
                optimizer = self.optimizers()
                self.manual_backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def validation_step(self, _: torch.Tensor, position: int) -> None:
            """Log a loss that the file which is saved then is to have."""
            x, y = batch(100, 0)
            loss = cross_entropy(self.model(x), y)
            self.validated[self.trainer.global_step] = float(loss)
            self.log("validation_loss", loss)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """Return the one optimizer."""
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    return pl, Module, importlib.import_module(CALLBACKS[package]).GravacCallback


def fit(
    package: str,
    module: Any,
    gravac: Any,
    folder: Path,
    callbacks: Sequence[Any] = (),
    batches: int = apart.STEPS,
    checkpoint: Path | None = None,
    **settings: Any,
) -> Any:
    """Train for an epoch, and return the trainer."""
    pl = importlib.import_module(package)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        use_distributed_sampler=False,
        callbacks=[*callbacks, gravac],
        logger=False,
        default_root_dir=folder,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    loaders = [DataLoader(TensorDataset(torch.zeros(number)), batch_size=None) for number in (batches, 1)]
    trainer.fit(module, *loaders, ckpt_path=checkpoint)
    return trainer


def went_on(rank: int, world: int, package: str, folder: Path, every: apart.Every, accumulate: int) -> apart.Runs:
    as_torchrun_says(rank, world)
    pl, module, callback = parts(package)

    def run(checkpoint: Path | None = None) -> Trained:
        gravac, trains = callback(**apart.settings(every)), module(rank)
        saves = pl.callbacks.ModelCheckpoint(
            dirpath=folder, filename="{step}", every_n_train_steps=apart.SAVED_AT, save_top_k=-1
        )
        callbacks = [saves] if checkpoint is None else []
        fit(
            package,
            trains,
            gravac,
            folder,
            callbacks,
            apart.STEPS * accumulate,
            checkpoint,
            accumulate_grad_batches=accumulate,
            limit_val_batches=0,
        )
        return trained(trains.losses, trains.model, gravac.compressor)

    straight = run()
    resumed = run(folder / f"step={apart.SAVED_AT}.ckpt")
    batches = [batch(rank, position) for position in range(apart.STEPS * accumulate)]
    return straight, resumed, by_hand(batches, accumulate, settings=apart.settings(every))


def stepped_by_hand(rank: int, world: int, package: str, folder: Path) -> tuple[Trained, Trained]:
    """A run whose training_step makes the optimizer's steps, and a plain loop."""
    as_torchrun_says(rank, world)
    _, module, callback = parts(package)
    gravac, trains = callback(**apart.settings((1, 20))), module(rank, by_hand=True)
    fit(package, trains, gravac, folder, limit_val_batches=0)
    batches = [batch(rank, position) for position in range(apart.STEPS)]
    lightning = trained(trains.losses, trains.model, gravac.compressor)
    return lightning, by_hand(batches, settings=apart.settings((1, 20)))


def saved(
    rank: int, world: int, package: str, folder: Path, end: BaseException | int | None = None
) -> tuple[dict[int, float], torch.Tensor]:
    """Save whenever Lightning does; the loss validated after each step, and the weights in the end."""
    as_torchrun_says(rank, world)
    pl, module, callback = parts(package)
    gravac = callback(**apart.settings(5))
    trains = module(rank, end=end if isinstance(end, BaseException) else None)

    class Terminate(pl.Callback):  # type: ignore[misc]
        """Tells the Trainer of each rank to end, as a cluster does."""

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, position: int) -> None:
            if position == apart.SAVED_AT + 1:
                signal.raise_signal(signal.SIGTERM)

    def saves(name: str, **when: Any) -> Any:
        filename = name + "-{step}"
        return pl.callbacks.ModelCheckpoint(folder, filename, auto_insert_metric_name=False, **when)

    callbacks = [
        saves("validated", monitor="validation_loss", save_top_k=-1),
        saves("stepped", every_n_train_steps=4, save_top_k=-1),
        saves("epoch", every_n_epochs=1, save_on_train_epoch_end=True),
        saves("exception", every_n_train_steps=10**6, save_on_exception=True),
        saves("never", save_last=True, every_n_train_steps=10**7),  # and so in on_train_end
        *([Terminate()] if end is signal.SIGTERM else []),
    ]
    try:
        fit(package, trains, gravac, folder, callbacks, batches=18, val_check_interval=3)
    except SystemExit:
        if end is None:
            raise
    torch.distributed.barrier()
    return trains.validated, flat(trains.model.parameters())
