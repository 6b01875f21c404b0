# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run with Hugging Face's Trainer in shards by FSDP2: two replicas, each on two ranks.

Accelerate, which the Trainer uses, trains in shards on accelerators only. So the programs say that the CPU is one.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, ParallelismConfig, PartialState
from accelerate.state import AcceleratorState
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from gravac.integrations.transformers import GravacCallback
from tests.hsdp.training import mesh_of, model, sharded
from tests.integrations import in_shards
from tests.integrations.by_hand import Batch, Trained, as_torchrun_says

ROWS = 4
"""Samples of a batch."""


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Single samples, which the Trainer shuffles and hands out to ranks."""

    def __init__(self, number: int) -> None:
        batches = [in_shards.batch(0, position) for position in range(number // 8)]
        self.x, self.y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[at], "labels": self.y[at]}


class Regressor(torch.nn.Module):
    """A model as the Trainer wants it; it keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()
        self.batches: list[Batch] = []
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = in_shards.loss_of(self.model(x), labels)
        self.batches.append((x, labels))
        self.losses.append(float(loss.detach()))
        return {"loss": loss}


def train(
    folder: Path, settings: dict[str, Any], accumulate: int = 1, replicas: int = 2, resume: bool = False
) -> tuple[Trained, list[Batch]]:
    """Train, saving in the middle; or go on from there. Also return the batches."""
    AcceleratorState._reset_state(reset_partial_state=True)
    arguments = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        max_steps=in_shards.STEPS,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=accumulate,
        optim="adamw_torch",
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        save_steps=in_shards.SAVED_AT,
        report_to="none",
        disable_tqdm=True,
        fsdp=True,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["Block"]},
        parallelism_config=ParallelismConfig(dp_replicate_size=replicas, dp_shard_size=in_shards.WORLD // replicas),
    )
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
    module = Regressor()
    trainer = Trainer(module, arguments, train_dataset=Samples(in_shards.WORLD * ROWS * accumulate * 10))
    gravac = GravacCallback(trainer, **settings)
    trainer.add_callback(gravac)
    checkpoint = folder / f"checkpoint-{in_shards.SAVED_AT}"
    trainer.train(resume_from_checkpoint=str(checkpoint) if resume else None)
    assert gravac.compressor is not None
    return in_shards.trained(module.losses, module, gravac.compressor), module.batches


def train_and_by_hand(rank: int, world: int, folder: Path, accumulate: int) -> dict[str, tuple[Trained, Trained]]:
    """Train with the Trainer and by hand: with dense gradients and natively, and with compressed gradients."""
    as_torchrun_says(rank, world)
    runs = {}
    for name, settings, by_hand in (
        ("dense", in_shards.DENSE, None),
        ("compressed", in_shards.COMPRESSED, in_shards.COMPRESSED),
    ):
        run, batches = train(folder / name, settings, accumulate)
        runs[name] = run, in_shards.train(sharded(mesh_of(2)), batches, by_hand, accumulate)
    return runs


def straight_and_resumed(rank: int, world: int, folder: Path, settings: dict[str, Any]) -> tuple[Trained, Trained]:
    """Train without a stop, and go on from what was saved in the middle."""
    as_torchrun_says(rank, world)
    return train(folder, settings)[0], train(folder, settings, resume=True)[0]


def refusal(rank: int, world: int, folder: Path) -> str:
    """Return the text of the error with which the callback refuses shards without replicas."""
    as_torchrun_says(rank, world)
    try:
        train(folder, {}, replicas=1)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return "trained"
