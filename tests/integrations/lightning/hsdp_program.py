# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run with Lightning's ModelParallelStrategy: two replicas, each in shards on two ranks."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader, TensorDataset

from tests.hsdp.training import mesh_of, model, sharded
from tests.integrations import in_shards
from tests.integrations.by_hand import Trained, as_torchrun_says
from tests.integrations.lightning.program import CALLBACKS


def number_of_batches(accumulate: int) -> int:
    """Return the number of a rank's batches; the last step has a single batch."""
    return (in_shards.STEPS - 1) * accumulate + 1


def fit(
    rank: int,
    package: str,
    folder: Path,
    settings: dict[str, Any],
    accumulate: int = 1,
    checkpoint: Path | None = None,
    shards: str = "replicas",
    **strategy: Any,
) -> Trained:
    """Train, saving in the middle; or go on from there; the model has replicas, or does not, or is two modules."""
    pl = importlib.import_module(package)
    losses = []

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def configure_model(self) -> None:
            if any(isinstance(module, FSDPModule) for module in self.modules()):
                return
            mesh = self.device_mesh["data_parallel"] if shards == "one replica" else mesh_of(2)
            for block in self.model:
                fully_shard(block, mesh=mesh)
            if shards != "two modules":
                fully_shard(self.model, mesh=mesh)

        def training_step(self, _: object, position: int) -> torch.Tensor:
            x, y = in_shards.batch(rank, position)
            loss = in_shards.loss_of(self.model(x), y)
            losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return in_shards.optimizer_of(self)

    module = Module()
    gravac = importlib.import_module(CALLBACKS[package]).GravacCallback(**settings)
    strategies = importlib.import_module(f"{package}.strategies")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=in_shards.WORLD,
        strategy=strategies.ModelParallelStrategy(
            data_parallel_size=in_shards.WORLD, tensor_parallel_size=1, **strategy
        ),
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        callbacks=[
            pl.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=in_shards.SAVED_AT),
            gravac,
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    positions = DataLoader(TensorDataset(torch.arange(number_of_batches(accumulate))), batch_size=1)
    trainer.fit(module, positions, ckpt_path=checkpoint)
    return in_shards.trained(losses, module.model, gravac.compressor)


def fit_and_by_hand(
    rank: int, world: int, package: str, folder: Path, accumulate: int
) -> dict[str, tuple[Trained, Trained]]:
    """Train with Lightning and by hand: with dense gradients and natively, and with compressed gradients."""
    as_torchrun_says(rank, world)
    batches = [in_shards.batch(rank, position) for position in range(number_of_batches(accumulate))]
    return {
        name: (
            fit(rank, package, folder / name, settings, accumulate),
            in_shards.train(sharded(mesh_of(2)), batches, by_hand, accumulate, "set_requires_all_reduce"),
        )
        for name, settings, by_hand in (
            ("dense", in_shards.DENSE, None),
            ("compressed", in_shards.COMPRESSED, in_shards.COMPRESSED),
        )
    }


def straight_and_resumed(
    rank: int, world: int, package: str, folder: Path, settings: dict[str, Any], distributed: bool
) -> tuple[Trained, Trained]:
    """Train without a stop, and go on from what was saved in the middle."""
    as_torchrun_says(rank, world)
    straight = fit(rank, package, folder, settings, save_distributed_checkpoint=distributed)
    checkpoint = folder / f"step={in_shards.SAVED_AT}.ckpt"
    return straight, fit(
        rank, package, folder / "resumed", settings, checkpoint=checkpoint, save_distributed_checkpoint=distributed
    )


def refusals(rank: int, world: int, package: str, folder: Path) -> dict[str, str]:
    """Return the texts of the errors with which the callback refuses shards."""
    as_torchrun_says(rank, world)
    messages = {}
    for shards in ("one replica", "two modules"):
        try:
            fit(rank, package, folder, {}, shards=shards)
        except (TypeError, ValueError) as error:
            messages[shards] = f"{type(error).__name__}: {error}"
    return messages
