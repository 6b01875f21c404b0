# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank of a run with Accelerate's FSDP2 plugin: two replicas, each in shards on two ranks.

Accelerate trains in shards on accelerators only. So the programs say that the CPU is one.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, ParallelismConfig, PartialState
from accelerate.state import AcceleratorState

from gravac.integrations.accelerate import attach
from tests.hsdp.training import mesh_of, model, sharded, shards_of
from tests.integrations import apart, in_shards
from tests.integrations.by_hand import Trained, as_torchrun_says


def accelerator_of(version: int = 2, replicas: int = 2, **settings: Any) -> Accelerator:
    """Return an accelerator that trains in shards."""
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
    PartialState._shared_state["device"] = torch.device("cpu")
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
    )
    parallelism = None
    if version == 2:
        parallelism = ParallelismConfig(dp_replicate_size=replicas, dp_shard_size=in_shards.WORLD // replicas)
    return Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=parallelism, **settings)


def train(
    rank: int, world: int, folder: Path, settings: dict[str, Any], accumulate: int = 1, resume: bool = False
) -> Trained:
    """Train, saving in the middle; or go on from there."""
    as_torchrun_says(rank, world)
    accelerator = accelerator_of(gradient_accumulation_steps=accumulate)
    module = model()
    module, optimizer = accelerator.prepare(module, in_shards.optimizer_of(module))
    losses = []
    compressor = attach(accelerator, module, optimizer, **settings)
    if resume:
        accelerator.load_state(str(folder))
    for position in range(in_shards.SAVED_AT * accumulate if resume else 0, in_shards.STEPS * accumulate):
        x, y = in_shards.batch(rank, position)
        with accelerator.accumulate(module):
            loss = in_shards.loss_of(module(x), y)
            accelerator.backward(loss)
            losses.append(float(loss.detach()))
            optimizer.step()
            optimizer.zero_grad()
        if not resume and position + 1 == in_shards.SAVED_AT * accumulate:
            accelerator.save_state(str(folder))
    return in_shards.trained(losses, module, compressor)


def train_and_by_hand(rank: int, world: int, folder: Path, accumulate: int) -> dict[str, tuple[Trained, Trained]]:
    """Train with Accelerate and by hand: with dense gradients and natively, and with compressed gradients."""
    batches = [in_shards.batch(rank, position) for position in range(in_shards.STEPS * accumulate)]
    return {
        "dense": (
            train(rank, world, folder / "dense", in_shards.DENSE, accumulate),
            in_shards.train(sharded(mesh_of(2)), batches, None, accumulate),
        ),
        "compressed": (
            train(rank, world, folder / "compressed", in_shards.COMPRESSED, accumulate),
            in_shards.train(sharded(mesh_of(2)), batches, in_shards.COMPRESSED, accumulate),
        ),
    }


def saved(rank: int, world: int, folder: Path) -> tuple[bool, bool]:
    """Save in the middle of a round; whether a rank's own weights are among gravac's states, and shared ones saved."""
    train(rank, world, folder, in_shards.OUTER)
    accelerator = accelerator_of()
    module = model()
    module, _ = accelerator.prepare(module, in_shards.optimizer_of(module))
    accelerator.load_state(str(folder))
    (path,) = folder.glob(f"gravac/*/rank{rank}.pt")
    state = torch.load(path)
    return apart.is_apart(state), apart.holds_shared(shards_of(module), state)


def refusals(rank: int, world: int) -> dict[str, str]:
    """Return the texts of the errors with which ``attach`` refuses what has no replicas, or is FSDP1."""
    as_torchrun_says(rank, world)
    messages = {}
    for name, version, replicas in (("one replica", 2, 1), ("FSDP1", 1, 1)):
        accelerator = accelerator_of(version, replicas)
        module = model()
        module, optimizer = accelerator.prepare(module, in_shards.optimizer_of(module))
        try:
            attach(accelerator, module, optimizer)
        except (TypeError, ValueError) as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages
