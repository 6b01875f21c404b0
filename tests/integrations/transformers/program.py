# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run with Hugging Face's Trainer."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from gravac.integrations.transformers import GravacCallback
from tests.distributed.training import batch
from tests.integrations.by_hand import SETTINGS, Batch, Trained, as_torchrun_says, by_hand, model, trained

STEPS, SAVED_EVERY, SAMPLES = 12, 3, 64  # an epoch is eight batches a rank, and ends within a run


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Single samples, which the Trainer shuffles and hands out to ranks."""

    def __init__(self) -> None:
        self.x, self.y = batch(0, 0, rows=SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[at], "labels": self.y[at]}


class Classifier(torch.nn.Module):
    """A model as the Trainer wants it; it keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()
        self.batches: list[Batch] = []
        self.losses: list[float] = []
        self.fails_at: int | None = None

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(self.losses) == self.fails_at:
            self.fails_at = None
            raise RuntimeError("CUDA out of memory. Or so it says.")
        loss = cross_entropy(self.model(x), labels)
        self.batches.append((x, labels))
        self.losses.append(float(loss.detach()))
        return {"loss": loss}


class Kill(TrainerCallback):
    """Ends the process after a step."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == self.step:
            torch.distributed.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def make(
    folder: Path, accumulate: int = 1, kill_at: int | None = None, smaller: bool = False, **settings: Any
) -> tuple[Trainer, GravacCallback]:
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        logging_steps=2,
        save_steps=SAVED_EVERY,
        save_total_limit=2,
        report_to="none",
        auto_find_batch_size=smaller,
        disable_tqdm=True,
    )
    module = Classifier()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    trainer = Trainer(
        module, arguments, train_dataset=Samples(), optimizers=(optimizer, None), callbacks=[Kill(kill_at)]
    )
    gravac = GravacCallback(trainer, **{**SETTINGS, **settings})
    trainer.add_callback(gravac)
    return trainer, gravac


def train(
    rank: int,
    world: int,
    folder: Path,
    accumulate: int = 1,
    resume: bool | str | None = None,
    kill_at: int | None = None,
) -> Trained:
    as_torchrun_says(rank, world)
    trainer, gravac = make(folder, accumulate, kill_at)
    trainer.train(resume_from_checkpoint=resume)
    return trained(trainer.model.losses, trainer.model.model, gravac.compressor)


def told(rank: int, world: int, folder: Path) -> list[float]:
    """Losses of a run that is logged."""
    as_torchrun_says(rank, world)
    trainer, _ = make(folder, log_dir=folder)
    trainer.train()
    return list(trainer.model.losses)


def train_and_by_hand(rank: int, world: int, folder: Path, accumulate: int) -> tuple[Trained, Trained]:
    as_torchrun_says(rank, world)
    trainer, gravac = make(folder, accumulate)
    trainer.train()
    module = trainer.model
    return trained(module.losses, module.model, gravac.compressor), by_hand(module.batches, accumulate)


def logged(rank: int, world: int, folder: Path) -> list[dict[str, float]]:
    as_torchrun_says(rank, world)
    trainer, _ = make(folder)
    trainer.train()
    return list(trainer.state.log_history)


def twice(rank: int, world: int, folder: Path) -> list[int]:
    """Steps exchanged by the compressors of two calls of ``train``; the Trainer keeps the DDP module between them."""
    as_torchrun_says(rank, world)
    trainer, gravac = make(folder)
    exchanged = []
    for _ in range(2):
        trainer.train()
        exchanged.append(gravac.compressor.state_dict()["step"])
    return exchanged


def smaller_batches(rank: int, world: int, folder: Path) -> tuple[int, int]:
    """Steps exchanged, and samples in the last batch, when memory does not suffice in the third step."""
    as_torchrun_says(rank, world)
    trainer, gravac = make(folder, smaller=True)
    trainer.model.fails_at = 2
    trainer.train()
    return gravac.compressor.state_dict()["step"], len(trainer.model.batches[-1][0])
