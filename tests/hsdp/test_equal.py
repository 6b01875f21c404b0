# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""With dense gradients, training by gravac is bit for bit torch's own HSDP."""

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import fsdp
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module

from gravac import AdaptiveCompressor
from tests.hsdp.training import MIXED, Block, dense, mesh_of, model, sharded, shards_of, train
from tests.ranks import processes

WORLD = 4

MESH_NUMBERS = itertools.count()


def wrapped_in_checkpoints() -> torch.nn.Module:
    """Return the model with activation checkpointing, in shards."""
    mesh, whole = mesh_of(2), model()
    blocks = torch.nn.Sequential(*[fully_shard(checkpoint_wrapper(block), mesh=mesh) for block in whole])
    return fully_shard(blocks, mesh=mesh)


def backward_within_backward() -> torch.nn.Module:
    """Return the model whose second block is computed again, and differentiated, in a backward of its own."""
    mesh, whole = mesh_of(2), model()
    blocks = [fully_shard(block, mesh=mesh) for block in whole]
    whole[1] = checkpoint_wrapper(blocks[1], CheckpointImpl.REENTRANT)
    return fully_shard(whole, mesh=mesh)


def compiled_blocks() -> torch.nn.Module:
    """Return the model with compiled blocks, in shards."""
    mesh, whole = mesh_of(2), model()
    for block in whole:
        block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh)
    return fully_shard(whole, mesh=mesh)


def compiled_as_a_whole() -> torch.nn.Module:
    """Return the compiled model in shards, as Accelerate makes it: the wrapper of ``torch.compile`` is the unit."""
    wrapper: Any = torch.compile(model(), backend="aot_eager")
    return fully_shard(wrapper, mesh=mesh_of(2))


def with_divide_factor() -> torch.nn.Module:
    """Return the model in shards whose gradients are summed over the replicas, and divided by two only."""
    module: Any = sharded(mesh_of(2))
    for child in (module, *module):
        child.set_gradient_divide_factor(2.0)
        child.set_force_sum_reduction_for_comms(True)
    return module


def replicated() -> torch.nn.Module:
    """Return the model with a copy on each rank, by FSDP2's ``replicate``."""
    whole = model()
    for block in whole:
        replicate(block)
    return replicate(whole)


def units_of_two_groups() -> torch.nn.Module:
    """Return the model whose second layers are cut over all ranks, as experts are, in units that have replicas."""
    over_all_ranks = FSDPMeshInfo(init_device_mesh("cpu", (dist.get_world_size(),)), shard_mesh_dim=0)
    whole, mesh = model(), mesh_of(2)
    for block in whole:
        assert isinstance(block, Block)
        expert = block.second.weight

        def placed(parameter: torch.nn.Parameter, expert: torch.nn.Parameter = expert) -> Any:
            return ShardPlacementResult(Shard(0), over_all_ranks) if parameter is expert else None

        fully_shard(block, mesh=mesh, shard_placement_fn=placed)
    return fully_shard(whole, mesh=mesh)


def on_one_mesh() -> torch.nn.Module:
    """Return the model in shards by names of a mesh's dimensions; gathered, a parameter is on that mesh, too."""
    number = next(MESH_NUMBERS)  # other names for each mesh: torch takes an equal, older mesh for a parameter's
    replicate_name, shard_name = f"replicate{number}", f"shard{number}"
    mesh, whole = init_device_mesh("cpu", (2, 2), mesh_dim_names=(replicate_name, shard_name)), model()
    distribute_module(whole, mesh)
    dimensions = fsdp.DataParallelMeshDims(shard=shard_name, replicate=replicate_name)
    # one unit, which torch gathers before gravac's hook at the start of a forward
    fully_shard(whole, mesh=mesh, dp_mesh_dims=dimensions)

    def on_mesh(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (DTensor.from_local(inputs[0], mesh, [Replicate(), Replicate()], run_check=False),)

    def off_mesh(_: torch.nn.Module, inputs: Any, output: Any) -> torch.Tensor:
        local: torch.Tensor = output.to_local()
        return local

    whole.register_forward_pre_hook(on_mesh)
    whole.register_forward_hook(off_mesh)
    return whole


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (lambda: sharded(mesh_of(2)), {}),
    "one rank a replica": (lambda: sharded(mesh_of(4)), {}),
    "kept gathered": (lambda: sharded(mesh_of(2), reshard_after_forward=False), {}),
    "accumulation": (lambda: sharded(mesh_of(2)), {"micro": 3}),
    "accumulation in shards": (lambda: sharded(mesh_of(2)), {"micro": 3, "flag": "set_requires_all_reduce"}),
    "clipped": (lambda: sharded(mesh_of(2)), {"clip": 0.1}),
    "activation checkpointing": (wrapped_in_checkpoints, {}),
    "backward within backward": (backward_within_backward, {}),
    "compiled": (compiled_blocks, {}),
    "compiled as a whole": (compiled_as_a_whole, {}),
    "bfloat16": (lambda: sharded(mesh_of(2), mp_policy=MIXED), {}),
    "on the CPU": (lambda: sharded(mesh_of(2), offload_policy=CPUOffloadPolicy(pin_memory=False)), {}),
    "divide factor": (with_divide_factor, {}),
    "replicate": (replicated, {}),
    "units of two groups": (units_of_two_groups, {}),
}
if hasattr(fsdp, "DataParallelMeshDims"):
    CASES["one mesh"] = on_one_mesh, {"optimizer_of": torch.optim.SGD}

OFTEN = {
    "plain": 7,
    "accumulation in shards": 4,
    "backward within backward": 2,
    "bfloat16": 4,
    "divide factor": 4,
    "one mesh": 3,
}
"""Steps of the cases that run with all tests: 7 include a check of replicas. ``make test-all`` runs all cases."""

EXCHANGED: dict[str, tuple[Any, dict[str, Any]]] = {
    "mean": (lambda: sharded(mesh_of(2)), {"micro": 3, "flag": "", "optimizer_of": torch.optim.SGD}),
    "sum": (with_divide_factor, {"micro": 3, "flag": "", "optimizer_of": torch.optim.SGD}),
}
"""Cases in which each backward of a step exchanges, as with torchtitan: the means are of other summands, and round."""


def both_ways(rank: int, world: int, steps_of: dict[str, int]) -> dict[str, Any]:
    """Train natively and with dense gradients by gravac.

    Returns:
        Of each case of ``steps_of``, the weights that differ, whether the losses are the same, and counted steps; of
        each case of ``EXCHANGED``, whether all weights are the same but for rounding.
    """
    found: dict[str, Any] = {}
    for name, steps in steps_of.items():
        build, settings = CASES[name]
        native, ours = train(build(), None, steps=steps, **settings), train(build(), dense(), steps=steps, **settings)
        found[name] = (
            [key for key, weight in native.weights.items() if not torch.equal(weight, ours.weights[key])],
            native.losses == ours.losses,
            ours.steps,
        )
    for name, (build, settings) in EXCHANGED.items():
        native, ours = train(build(), None, steps=2, **settings), train(build(), dense(), steps=2, **settings)
        pairs = [(native.weights[key], weight) for key, weight in ours.weights.items()]
        found[name] = all(torch.allclose(*pair, atol=1e-6) for pair in pairs)
    return found


@pytest.mark.parametrize(
    "steps_of",
    [
        {name: steps for name, steps in OFTEN.items() if name in CASES},
        pytest.param(dict.fromkeys(CASES, 20), marks=pytest.mark.long),
    ],
    ids=["often", "all"],
)
def test_dense_it_trains_as_torch_does_and_counts_once_what_was_exchanged_already(steps_of: dict[str, int]) -> None:
    expected = {name: ([], True, steps) for name, steps in steps_of.items()} | dict.fromkeys(EXCHANGED, True)
    for found in processes(both_ways, WORLD, steps_of):
        assert found == expected


def three_replicas(rank: int, world: int) -> float:
    native = train(sharded(mesh_of(3)), None, steps=4, optimizer_of=torch.optim.SGD)
    ours = train(sharded(mesh_of(3)), dense(), steps=4, optimizer_of=torch.optim.SGD)
    return max(float((native.weights[name] - weight).abs().max()) for name, weight in ours.weights.items())


def test_three_replicas_differ_by_rounding_alone() -> None:
    assert max(processes(three_replicas, 3)) < 1e-6


def detached(rank: int, world: int) -> tuple[bool, bool]:
    """Train three steps with gravac, detach, and train three more; compare with native steps from there on."""
    module = sharded(mesh_of(2))
    compressor = AdaptiveCompressor(native=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    compressor.attach(module, optimizer)
    state = train_plain(module, optimizer, 3)
    compressor.detach()
    hooks = any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in module.parameters())
    twin: Any = sharded(mesh_of(2))
    with torch.no_grad():
        for parameter, weight in zip(twin.parameters(), state.values(), strict=True):
            parameter.to_local().copy_(weight)
    after = train_plain(module, optimizer, 3)
    of_twin = train_plain(twin, torch.optim.SGD(twin.parameters(), lr=1e-2), 3)
    compressor.close()
    return hooks, all(torch.equal(weight, of_twin[name]) for name, weight in after.items())


def train_plain(module: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        module(torch.randn(8, 33, generator=chance)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return shards_of(module)


def test_detached_torch_averages_again() -> None:
    assert processes(detached, WORLD) == [(False, True)] * WORLD
