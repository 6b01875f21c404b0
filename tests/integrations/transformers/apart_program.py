# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run with Hugging Face's Trainer in which ranks train apart."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from gravac.integrations.transformers import GravacCallback
from tests.distributed.training import batch
from tests.integrations import apart
from tests.integrations.by_hand import as_torchrun_says, by_hand, flat, trained
from tests.integrations.transformers.program import Classifier

ROWS = 4
"""Samples of a batch."""


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Samples of so many batches, or those that no rank trains on."""

    def __init__(self, batches: int, of_rank: int = 0) -> None:
        self.x, self.y = batch(of_rank, 0, rows=batches * ROWS)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[at], "labels": self.y[at]}


def make(folder: Path, every: apart.Every, accumulate: int = 1, **arguments: Any) -> tuple[Trainer, GravacCallback]:
    """Return a Trainer of ``apart.STEPS`` steps, in epochs of 14."""
    module = Classifier()
    trainer = Trainer(
        module,
        TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            max_steps=apart.STEPS,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=accumulate,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            report_to="none",
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=Samples(2 * 14 * accumulate),
        eval_dataset=Samples(4, of_rank=100),
        optimizers=(torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9), None),
    )
    gravac = GravacCallback(trainer, **apart.settings(every))
    trainer.add_callback(gravac)
    return trainer, gravac


def went_on(rank: int, world: int, folder: Path, every: apart.Every, accumulate: int) -> apart.Runs:
    as_torchrun_says(rank, world)

    def run(**resume: str) -> tuple[Any, Classifier]:
        trainer, gravac = make(folder, every, accumulate, save_steps=apart.SAVED_AT)
        trainer.train(**resume)
        return trained(trainer.model.losses, trainer.model.model, gravac.compressor), trainer.model

    straight, module = run()
    resumed, _ = run(resume_from_checkpoint=str(folder / f"checkpoint-{apart.SAVED_AT}"))
    hand = by_hand(module.batches, accumulate, settings=apart.settings(every), detach=True)
    return straight, resumed, hand


def twice(rank: int, world: int, folder: Path) -> tuple[list[int], list[str], torch.Tensor]:
    """Call ``train`` twice, with one optimizer: rounds and modes of each, and the weights in the end."""
    as_torchrun_says(rank, world)
    trainer, gravac = make(folder, (1, 20))
    rounds, modes = [], []
    for _ in range(2):
        trainer.train()
        assert gravac.compressor is not None
        rounds.append(gravac.compressor.state_dict()["step"])
        modes.append(gravac.compressor.mode)
    return rounds, modes, flat(trainer.model.model.parameters())


def failed_once(rank: int, world: int, folder: Path) -> tuple[int, torch.Tensor]:
    """Memory does not suffice in the middle of a round; the Trainer begins anew with smaller batches."""
    as_torchrun_says(rank, world)
    trainer, gravac = make(folder, 5, auto_find_batch_size=True)
    trainer.model.fails_at = 7
    trainer.train()
    assert gravac.compressor is not None
    return gravac.compressor.state_dict()["step"], flat(trainer.model.model.parameters())


def saved(rank: int, world: int, folder: Path, best: bool) -> dict[str, Any]:
    """Evaluate and save every four steps; what was logged, what files hold, and what the module does in the end."""
    as_torchrun_says(rank, world)
    trainer, _ = make(
        folder,
        5,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=4,
        load_best_model_at_end=best,
        metric_for_best_model="seen",
        greater_is_better=False,
    )
    seen: dict[int, float] = {}

    class Sees(TrainerCallback):
        """Looks at the module when the Trainer has evaluated it."""

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **given: Any) -> None:
            """Keep the loss of the module, by step, as the Trainer's own is a mean over ranks."""
            seen[state.global_step] = apart.validation_loss(trainer.model.model)

    trainer.add_callback(Sees())
    trainer.compute_metrics = lambda _: {"seen": {4: 4.0, 8: 2.0}.get(trainer.state.global_step, 3.0)}
    trainer.train()
    paths = {int(path.name.partition("-")[2]): path for path in folder.glob("checkpoint-*")}
    files = {step: load_file(path / "model.safetensors") for step, path in paths.items()}
    states = {step: torch.load(next(path.glob(f"gravac/*/rank{rank}.pt"))) for step, path in paths.items()}
    return {
        "seen": seen,
        "logged": {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry},
        "of files": {step: apart.loss_of(file) for step, file in files.items()},
        "shared": [apart.holds_shared(files[step], state) for step, state in states.items()],
        "apart": {step: apart.is_apart(state) for step, state in states.items()},
        "weights": flat(trainer.model.model.parameters()),
        "best": flat(files[8][f"model.{name}"] for name, _ in trainer.model.model.named_parameters()),
    }
