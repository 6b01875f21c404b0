# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism with data parallelism, two by two: what all ranks hold stays equal, and shards may be uneven."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from gravac import Accordion, AdaptiveCompressor, GraVAC, Static
from tests.hsdp.training import shards_of
from tests.modes.scripted import DENSE, NATIVE, Scripted, script
from tests.policies import adaptive
from tests.ranks import processes

WORLD = 4

Answers = dict[str, list[Any]]
"""What each rank returned, by question."""

WIDTH = 32

EVEN, UNEVEN = 36, 35
"""Numbers of hidden units: two ranks hold 18 each, or 18 and 17."""

BETWEEN_SHARDS = 560
"""Number of elements between those of the two uneven shards, 18 x 32 and 17 x 32."""


class Parallel(torch.nn.Module):
    """An embedding and a norm, which all ranks hold, and two layers for tensor parallelism."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding, self.norm = torch.nn.Embedding(32, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, hidden), torch.nn.Linear(hidden, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return predictions of the next tokens, ``[batch, 32]``."""
        x: torch.Tensor = self.norm(self.embedding(tokens))
        return (x + self.down(torch.relu(self.up(x)))) @ self.embedding.weight.T


def mesh_of_four() -> DeviceMesh:
    """Return a mesh of two replicas, each of which two ranks hold."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def in_shards(mesh: DeviceMesh, hidden: int) -> Any:
    """Return the model with tensor parallelism."""
    torch.manual_seed(0)
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel(output_layouts=Replicate())}
    return parallelize_module(Parallel(hidden), mesh["tp"], plan)


def wrapped(mesh: DeviceMesh, hidden: int) -> Any:
    """Return the model with tensor parallelism and data parallelism."""
    return DistributedDataParallel(in_shards(mesh, hidden), device_mesh=mesh["dp"])


def train(
    mesh: DeviceMesh, module: Any, optimizer: torch.optim.Optimizer, steps: range, cf_of: Any = lambda: None
) -> list[Any]:
    """Train on this replica's own batches; return what ``cf_of`` returns after each step."""
    seen = []
    for step in steps:
        chance = torch.Generator().manual_seed(1000 * step + mesh["dp"].get_local_rank())
        tokens = torch.randint(32, (8,), generator=chance)
        torch.nn.functional.cross_entropy(module(tokens), (tokens + 1) % 32).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(cf_of())
    return seen


def trained(compressor: AdaptiveCompressor | None, hidden: int, steps: int) -> tuple[dict[str, torch.Tensor], Any]:
    """Train with DDP, natively or with a compressor.

    Returns:
        This rank's weights by name, and CFs, candidates, and the number of steps that the engine counted.
    """
    mesh = mesh_of_four()
    module = wrapped(mesh, hidden)
    parameters = dict(module.module.named_parameters())  # the first forward takes shards out of the module
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    if compressor is not None:
        compressor.attach(module, optimizer, agree_group=dist.group.WORLD)
    cfs = train(mesh, module, optimizer, range(steps), lambda: None if compressor is None else compressor.cf)
    numbers: Any = None
    if compressor is not None:
        candidates = [str(candidate) for candidate in compressor._engine.deciding.candidates]
        numbers = (cfs, candidates, compressor._engine.state.trained)
        compressor.close()
    return {name: parameter.detach().clone() for name, parameter in parameters.items()}, numbers


def both_ways() -> dict[int, tuple[list[str], int]]:
    """Train natively and with dense gradients by gravac; return the parameters that differ, and counted steps."""
    found = {}
    for hidden in (EVEN, UNEVEN):
        native, _ = trained(None, hidden, 7)
        ours, numbers = trained(AdaptiveCompressor(controller=Static(cf=1), native=False), hidden, 7)
        found[hidden] = [name for name in native if not torch.equal(native[name], ours[name])], numbers[2]
    return found


def test_dense_it_trains_as_ddp_does_with_even_and_uneven_shards(answers: Answers) -> None:
    for found in answers["both_ways"]:
        assert found == {EVEN: ([], 7), UNEVEN: ([], 7)}


METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "4 bits": ({"base": "quantize", "controller": Static(cf=8)}, 5),
    "low rank": ({"base": "powersgd", "controller": Static(cf=8), "dense_below": 64}, 5),
    "accordion": ({"base": "topk", "cf_range": (2, 20), "controller": Accordion(every=3)}, 7),
    "gravac": ({"base": "topk", "cf_range": (5, 20), "controller": GraVAC(window=2)}, 9),
    "as it comes": ({}, 10),
}
"""Settings of ways to compress, and steps in which each decides twice, if it decides at all.

With ``BETWEEN_SHARDS``, some send the larger of two uneven shards dense, if each rank decides by its own.
"""


def compressed(rank: int, world: int) -> dict[str, Any]:
    """Train with each method, with uneven shards."""
    return {
        name: trained(adaptive(**{"native": False, "dense_below": BETWEEN_SHARDS, **settings}), UNEVEN, steps)
        for name, (settings, steps) in METHODS.items()
    }


def test_compressed_uneven_shards_stay_one_model_and_all_ranks_decide_alike() -> None:
    ranks = processes(compressed, WORLD)
    for name in METHODS:
        for rank, run in enumerate(ranks):
            weights, numbers = run[name]
            other_replica, other_shard = ranks[(rank + 2) % 4][name][0], ranks[rank ^ 1][name][0]
            assert all(torch.equal(weight, other_replica[key]) for key, weight in weights.items()), name
            for key in ("embedding.weight", "norm.weight", "norm.bias", "down.bias"):
                assert torch.equal(weights[key], other_shard[key]), (name, key)
            assert weights["up.weight"].shape[0] == (18, 17)[rank % 2]
            assert numbers == ranks[0][name][1], name
    cfs, *_ = ranks[0]["gravac"][1]
    assert len(set(cfs)) > 1


def changed_modes() -> tuple[list[str], list[str], int]:
    """Let a script change between gravac's hook and DDP's own exchange, and detach; compare with native training.

    Returns:
        Modes that began, parameters that differ from those of native training, and steps that the engine counted.
    """
    native, _ = trained(None, UNEVEN, 12)
    mesh = mesh_of_four()
    module = wrapped(mesh, UNEVEN)
    parameters = dict(module.module.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    compressor = adaptive(
        controller=Scripted(script=script((0, DENSE), (2, NATIVE), (5, DENSE)), watch=2), sixteen_bit=False
    )
    compressor.attach(module, optimizer, agree_group=dist.group.WORLD)
    train(mesh, module, optimizer, range(10))
    modes = [change.after for change in compressor.changes]
    compressor.detach()
    train(mesh, module, optimizer, range(10, 12))
    differing = [name for name, parameter in parameters.items() if not torch.equal(parameter, native[name])]
    steps = compressor._engine.state.trained
    compressor.close()
    return modes, differing, steps


def test_ddps_own_exchange_comes_back_with_all_shards(answers: Answers) -> None:
    for run in answers["changed_modes"]:
        assert run == (["native", "hook"], [], 10)


def fsdp2_both_ways() -> dict[str, tuple[list[str], int]]:
    """Train in shards or replicated by FSDP2, natively and with dense gradients by gravac.

    Returns:
        The parameters that differ, and the number of steps that the engine counted.
    """
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "shard", "tp"))
    found = {}
    for name in ("HSDP", "replicate"):
        runs, steps = [], 0
        for is_native in (True, False):
            module = in_shards(mesh, EVEN)
            if name == "HSDP":
                fully_shard(module, mesh=mesh["dp", "shard"])
            else:
                replicate(module, mesh=mesh["dp"])
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            compressor = AdaptiveCompressor(controller=Static(cf=1), native=False)
            if not is_native:
                compressor.attach(module, optimizer)
            train(mesh, module, optimizer, range(3))
            compressor._engine.drain()
            runs.append(shards_of(module))
            steps = compressor._engine.state.trained
            compressor.close()
        native, ours = runs
        found[name] = [key for key in native if not torch.equal(native[key], ours[key])], steps
    return found


def test_with_fsdp2_every_shard_of_tensor_parallelism_is_averaged(answers: Answers) -> None:
    for found in answers["fsdp2_both_ways"]:
        assert found == {"HSDP": ([], 3), "replicate": ([], 3)}


def fsdp2_compressed() -> tuple[torch.Tensor, list[float], list[str]]:
    """Train in shards by FSDP2, compressed; return the embedding, CFs and candidates."""
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "shard", "tp"))
    module = fully_shard(in_shards(mesh, EVEN), mesh=mesh["dp", "shard"])
    compressor = adaptive("topk", (5, 20), controller=GraVAC(window=2), native=False, dense_below=64)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    compressor.attach(module, optimizer)
    cfs = train(mesh, module, optimizer, range(9), lambda: compressor.cf)
    embedding = module.embedding.weight.full_tensor().detach().clone()
    candidates = [str(candidate) for candidate in compressor._engine.deciding.candidates]
    compressor.close()
    return embedding, cfs, candidates


def test_with_fsdp2_all_ranks_decide_alike(answers: Answers) -> None:
    ranks = answers["fsdp2_compressed"]
    for embedding, cfs, candidates in ranks:
        assert torch.equal(embedding, ranks[0][0])
        assert (cfs, candidates) == ranks[0][1:]
    assert len(set(ranks[0][1])) > 1


def questions(rank: int, world: int) -> dict[str, Any]:
    """Answer four of the questions above, by their functions' names."""
    return {question.__name__: question() for question in (both_ways, changed_modes, fsdp2_both_ways, fsdp2_compressed)}


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Each rank's answers to these questions, from one start of ranks."""
    of_ranks = processes(questions, WORLD)
    return {name: [of_rank[name] for of_rank in of_ranks] for name in of_ranks[0]}


def outer(rank: int, world: int) -> tuple[bool, dict[str, torch.Tensor]]:
    """Make outer steps with HSDP and tensor parallelism.

    Returns:
        Whether weights moved apart before they were synchronized, and the weights after that.
    """
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "shard", "tp"))
    module = fully_shard(in_shards(mesh, EVEN), mesh=mesh["dp", "shard"])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    compressor = adaptive("topk", every=3, controller=Static(cf=5), dense_below=64)
    compressor.attach(module, optimizer)
    train(mesh, module, optimizer, range(8))
    before = shards_of(module)
    compressor.synchronize()
    after = shards_of(module)
    compressor.close()
    return any(not torch.equal(before[name], weight) for name, weight in after.items()), after


@pytest.mark.long
def test_outer_steps_of_hsdp_with_tensor_parallelism() -> None:
    ranks = processes(outer, WORLD)
    for rank, (moved, weights) in enumerate(ranks):
        assert moved
        assert all(torch.equal(weight, ranks[rank ^ 2][1][name]) for name, weight in weights.items())
        assert torch.equal(weights["embedding.weight"], ranks[0][1]["embedding.weight"])


def message_of(module: Any, compressor: AdaptiveCompressor | None = None, **settings: Any) -> str:
    """Return the text of the error with which ``attach`` refuses a module."""
    try:
        (compressor or AdaptiveCompressor()).attach(module, (), **settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "attached"


def refusals(rank: int, world: int) -> dict[str, str]:
    """Try what is refused."""
    mesh = mesh_of_four()
    everyone: Any = {"agree_group": dist.group.WORLD}
    after_forward = wrapped(mesh, EVEN)
    after_forward(torch.zeros(2, dtype=torch.long))
    stage = torch.nn.Sequential(torch.nn.Linear(4, 4))
    if rank % 2:
        stage.append(torch.nn.Linear(4, 4))
    stages = DistributedDataParallel(stage, device_mesh=mesh["dp"])
    not_wrapped = in_shards(mesh, EVEN)
    assert any(isinstance(parameter, DTensor) for parameter in not_wrapped.parameters())
    return {
        "alone": message_of(wrapped(mesh, EVEN)),
        "outer": message_of(wrapped(mesh, EVEN), AdaptiveCompressor(every=10), **everyone),
        "late": message_of(after_forward, **everyone),
        "stages": message_of(stages, **everyone),
        "not wrapped": message_of(not_wrapped, AdaptiveCompressor(process_group=mesh["dp"].get_group()), **everyone),
    }


def test_refused_by_name_with_the_remedy() -> None:
    for found in processes(refusals, WORLD):
        assert "agree_group: not given, but up.weight is a shard" in found["alone"]
        assert "every: outer steps are impossible here" in found["outer"]
        assert "up.weight, a shard of tensor parallelism" in found["outer"]
        assert "attach before the first forward" in found["late"]
        assert "agree_group: ranks 0 and 1 of the group do not both have a parameter 1." in found["stages"]
        assert "DistributedDataParallel(module, device_mesh=...)" in found["not wrapped"]
