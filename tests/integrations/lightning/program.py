# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a Lightning run, of the package ``lightning.pytorch`` or ``pytorch_lightning``."""

import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset

from tests.distributed.training import batch
from tests.integrations.by_hand import SETTINGS, Batch, Trained, as_torchrun_says, by_hand, model, trained

EPOCH = 6
CALLBACKS = {
    "lightning.pytorch": "gravac.integrations.lightning",
    "pytorch_lightning": "gravac.integrations.pytorch_lightning",
}


class Batches(IterableDataset[Batch]):
    """An epoch's batches of a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Batch]:
        return iter(batches(self.rank, 1))

    def __len__(self) -> int:
        return EPOCH


def batches(rank: int, epochs: int) -> list[Batch]:
    return [batch(rank, step) for step in range(EPOCH)] * epochs


def fit(
    rank: int,
    world: int,
    package: str,
    folder: Path,
    epochs: int,
    accumulate: int = 1,
    checkpoint: str | None = None,
    end: BaseException | int | None = None,
    scaler: torch.amp.GradScaler | None = None,
    **settings: Any,
) -> Trained:
    """Train; ``end`` is raised in the last epoch's second batch, or is the signal that kills the process there."""
    as_torchrun_says(rank, world)
    pl = importlib.import_module(package)
    losses = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch: Batch, position: int) -> torch.Tensor:
            if end is not None and self.current_epoch == epochs - 1 and position == 1:
                if isinstance(end, BaseException):
                    raise end
                torch.distributed.barrier()
                os.kill(os.getpid(), end)
            x, y = batch
            loss = cross_entropy(self.model(x), y)
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    module = Module()
    gravac = importlib.import_module(CALLBACKS[package]).GravacCallback(**{**SETTINGS, **settings})
    saves = pl.callbacks.ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp",
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        log_every_n_steps=2,
        callbacks=[saves, gravac],
        plugins=[pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)] if scaler else None,
        logger=pl.loggers.CSVLogger(folder, name="", version="csv"),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Batches(rank), batch_size=None), ckpt_path=checkpoint and str(folder / checkpoint))
    trainer.save_checkpoint(folder / "after.ckpt")
    return trained(losses, module.model, gravac.compressor)


def fit_and_by_hand(rank: int, world: int, *arguments: Any) -> tuple[Trained, Trained]:
    package, folder, epochs, accumulate = arguments
    return fit(rank, world, package, folder, epochs, accumulate), by_hand(batches(rank, epochs), accumulate)


def told(rank: int, world: int, package: str, folder: Path, accumulate: int) -> list[float]:
    """Losses of a run that is logged."""
    return fit(rank, world, package, folder, 2, accumulate, log_dir=folder).losses


def killed(rank: int, world: int, package: str, folder: Path, epochs: int) -> None:
    fit(rank, world, package, folder, epochs, end=signal.SIGKILL)


def scaled_and_by_hand(rank: int, world: int, package: str, folder: Path) -> tuple[Trained, Trained, float]:
    """Runs in float16 with a scale that grows until it overflows, time and again; and the scale at the end."""
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=1) for _ in range(2)]
    lightning = fit(rank, world, package, folder, 2, scaler=scalers[0])
    return lightning, by_hand(batches(rank, 2), scaler=scalers[1]), scalers[0].get_scale()


def interrupted(rank: int, world: int, package: str, folder: Path, end: BaseException) -> str:
    """How a fit ends that an exception interrupts on all ranks."""
    try:
        fit(rank, world, package, folder, 1, end=end, log_dir=folder)
    except BaseException as raised:
        return repr(raised)
    return "nothing was raised"
