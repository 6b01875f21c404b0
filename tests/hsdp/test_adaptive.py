# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressed, replicas stay bit for bit the same, all ranks decide alike, and only the replicas' bytes fall."""

import copy
import json
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac import Accordion, AdaptiveCompressor, Static
from tests import flight_recorder
from tests.hsdp.training import MIXED, Run, mesh_of, sharded, shards_of, train
from tests.ranks import processes

WORLD = 4

METHODS: dict[str, Any] = {
    "top-k": lambda: AdaptiveCompressor("topk", controller=Static(cf=20), native=False, dense_below=64),
    "4 bits": lambda: AdaptiveCompressor("quantize", controller=Static(cf=8), native=False, dense_below=64),
    "low rank": lambda: AdaptiveCompressor("powersgd", controller=Static(cf=8), native=False, dense_below=64),
    "accordion": lambda: AdaptiveCompressor(
        "topk", (2, 20), controller=Accordion(every=4), native=False, dense_below=64
    ),
    "as it comes": lambda: AdaptiveCompressor(dense_below=64),
    "gravac": lambda: AdaptiveCompressor("topk", controller="gravac", window=3, native=False, dense_below=64),
}


def compressed(rank: int, world: int, replicas: int, names: tuple[str, ...]) -> dict[str, Run]:
    """Train with each method on a mesh."""
    return {name: train(sharded(mesh_of(replicas)), METHODS[name]()) for name in names}


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.long)])
def test_replicas_stay_equal_and_all_ranks_decide_alike(replicas: int) -> None:
    ranks = processes(compressed, WORLD, replicas, tuple(METHODS))
    shards = WORLD // replicas
    for name in METHODS:
        runs = [run[name] for run in ranks]
        for rank, run in enumerate(runs):
            same_shard = runs[rank % shards]
            assert all(torch.equal(weight, same_shard.weights[key]) for key, weight in run.weights.items()), name
            assert (run.cfs, run.candidates, run.steps) == (runs[0].cfs, runs[0].candidates, 20), name
        assert math.isfinite(sum(runs[0].losses)), name
        assert runs[0].losses[-1] < runs[0].losses[0], name
    assert ranks[0]["top-k"].wire_ratio is not None
    assert ranks[0]["top-k"].wire_ratio > 2


def with_scaler(rank: int, world: int) -> tuple[bool, bool]:
    """Spoil one rank's gradient in one step; return whether residuals stayed, and weights did."""
    module = sharded(mesh_of(2))
    compressor = AdaptiveCompressor("topk", controller=Static(cf=20), native=False, dense_below=64)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    compressor.attach(module, optimizer, scaler)
    chance = torch.Generator().manual_seed(rank)
    before: dict[str, torch.Tensor] = {}
    for step in range(4):
        x = torch.randn(8, 33, generator=chance)
        if step == 3:
            before = {name: each.clone() for name, each in compressor._engine.residuals().items()}
        loss = (module(x) - x.roll(1, 1)).square().mean()
        scaler.scale(loss * (float("inf") if step == 3 and rank == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    compressor._engine.drain()
    after = compressor._engine.residuals()
    kept = bool(before) and all(torch.equal(each, after[name]) for name, each in before.items())
    compressor.close()
    return kept, scaler.get_scale() == 4.0


def test_a_step_that_is_not_finite_changes_no_residual_of_any_rank() -> None:
    assert processes(with_scaler, WORLD) == [(True, True)] * WORLD


class _SpoiltShard(torch.autograd.Function):
    """The identity, whose gradient has an infinity in its last row."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        spoilt = gradient.clone()
        spoilt[-1] = math.inf
        return spoilt


def one_shard_spoilt(rank: int, world: int) -> list[bool]:
    """Let the gradient of one shard be infinite; return which ranks' residuals stayed as they were."""
    module = sharded(mesh_of(2))
    compressor = AdaptiveCompressor(
        "topk", controller=Static(cf=20), native=False, dense_below=64, overflow_safety=True
    )
    compressor.attach(module, torch.optim.SGD(module.parameters(), lr=1e-2))
    chance = torch.Generator().manual_seed(rank)
    before: dict[str, torch.Tensor] = {}
    for step in range(4):
        before = compressor._engine.residuals() if step == 3 else {}
        x = torch.randn(8, 33, generator=chance)
        if step < 3:
            loss = module(x).square().mean()
        else:
            first: Any = module[0]
            first.second.register_forward_pre_hook(lambda layer, inputs: (_scaled(inputs[0]),))
            loss = module(x).square().mean()
        loss.backward()
    compressor._engine.drain()
    after = compressor._engine.residuals()
    compressor.close()
    return [torch.equal(each, after[name]) for name, each in before.items()]


def _scaled(hidden: torch.Tensor) -> torch.Tensor:
    """Make the last hidden unit infinite in backward, which reaches the rows of one shard alone."""
    columns = list(hidden.unbind(-1))
    columns[-1] = _SpoiltShard.apply(columns[-1])
    return torch.stack(columns, -1)


def test_an_infinity_in_one_shard_leaves_the_residuals_of_all_shards() -> None:
    assert all(all(kept) for kept in processes(one_shard_spoilt, WORLD))


def logged(rank: int, world: int, folder: str) -> int:
    """Train with a log."""
    train(sharded(mesh_of(2)), AdaptiveCompressor(log_dir=folder, dense_below=64), steps=12)
    return rank


def test_there_is_one_log(tmp_path: Path) -> None:
    processes(logged, WORLD, str(tmp_path))
    (log,) = tmp_path.glob("*.jsonl")
    steps = [record["step"] for line in log.read_text().splitlines() if "step" in (record := json.loads(line))]
    assert steps
    assert len([line for line in log.read_text().splitlines() if '"kind": "run"' in line or '"run"' in line[:20]]) <= 1


def recorded(rank: int, world: int) -> list[list[Counter[tuple[str, int]]]]:
    """Return, natively and with gravac, torch's collectives of ten steps within a replica, and those over replicas."""
    runs = []
    for compressor in (None, METHODS["top-k"]()):
        mesh = mesh_of(2)
        module = sharded(mesh)
        started_at = flight_recorder.newest()
        train(module, compressor, steps=10)
        groups = [mesh.get_group("shard"), mesh.get_group("replicate")]
        by_group = [flight_recorder.collectives_of(group, started_at) for group in groups]
        runs.append([Counter((each.name, each.input_bytes) for each in recorded) for recorded in by_group])
    return runs


@pytest.mark.skipif(not flight_recorder.IS_THERE, reason="this torch does not record what gloo sends")
def test_within_a_replica_torch_exchanges_as_before_and_over_replicas_no_longer() -> None:
    """What ``attach`` copies and gathers is the only exchange left in torch's group of replicas."""
    for (native_within, native_over), (within, over) in processes(recorded, WORLD):
        assert within == native_within and native_within.total() > 50
        assert any("all_reduce" in name for name, _ in native_over)
        assert over and not any("all_reduce" in name for name, _ in over)


def replicas_apart(rank: int, world: int) -> tuple[bool, bool]:
    """Train on a mesh of one dimension per replica, with the replicas as a group; compare with a mesh of two."""
    two = train(sharded(mesh_of(2)), AdaptiveCompressor(controller=Static(cf=1), native=False))
    mesh = mesh_of(2)
    replicas, own = mesh["replicate"].get_group(), mesh["shard"]
    compressor = AdaptiveCompressor(controller=Static(cf=1), native=False, process_group=replicas)
    one = train(sharded(own), compressor)
    accumulated = AdaptiveCompressor(controller=Static(cf=1), native=False, process_group=replicas)
    module = sharded(own)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    accumulated.attach(module, optimizer)
    x = torch.randn(8, 33, generator=torch.Generator().manual_seed(rank))
    with accumulated.accumulate():
        module(x).square().mean().backward()
    module(x).square().mean().backward()
    steps = accumulated._engine.state.step
    accumulated.close()
    return all(torch.allclose(weight, two.weights[name], atol=1e-6) for name, weight in one.weights.items()), steps == 1


def test_on_a_mesh_of_one_dimension_the_replicas_may_be_a_group_of_their_own() -> None:
    assert processes(replicas_apart, WORLD) == [(True, True)] * WORLD


def replaced(rank: int, world: int) -> tuple[list[str], bool]:
    """Replace all parameters by ``load_state_dict(assign=True)`` after three steps, and train on."""
    module = sharded(mesh_of(2))
    compressor = AdaptiveCompressor(controller=Static(cf=1), native=False)
    compressor.attach(module, ())
    chance = torch.Generator().manual_seed(rank)

    def backward() -> None:
        module(torch.randn(8, 33, generator=chance)).square().mean().backward()

    backward()
    module.load_state_dict({name: each.clone() for name, each in module.state_dict().items()}, assign=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backward()
    gradients = [parameter.grad.to_local() for parameter in module.parameters()]  # type: ignore[union-attr]
    mine = [gradient.clone() for gradient in gradients]
    replicas = mesh_of(2)["replicate"].get_group()
    for gradient in gradients:
        dist.all_reduce(gradient, group=replicas)
    equal = all(torch.allclose(2 * own, total) for own, total in zip(mine, gradients, strict=True))
    steps = compressor._engine.state.step
    compressor.close()
    return [str(warning.message) for warning in caught if "gravac" in str(warning.message)], equal and steps == 2


def test_parameters_that_were_replaced_are_hooked_anew_and_it_says_so() -> None:
    for messages, equal in processes(replaced, WORLD):
        assert equal
        (message,) = messages
        assert "load_state_dict(assign=True)" in message


def half(rank: int, world: int) -> Run:
    """Train in bfloat16, compressed, without padding on one shard."""
    compressor = AdaptiveCompressor("quantize", controller=Static(cf=8), native=False, dense_below=64)
    return train(sharded(mesh_of(2), mp_policy=MIXED), compressor, micro=2)


def test_compressed_in_mixed_precision_with_accumulation() -> None:
    runs = processes(half, WORLD)
    assert all(run.steps == 20 for run in runs)
    assert runs[0].losses[-1] < runs[0].losses[0]


def resumed(rank: int, world: int, folder: str) -> tuple[bool, bool]:
    """Train ten steps, save, and train on; then load into a new model and compressor and train the same steps."""

    def made(seed: int) -> tuple[Any, Any, AdaptiveCompressor]:
        module = sharded(mesh_of(2))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        compressor = AdaptiveCompressor("topk", controller=Static(cf=20), native=False, dense_below=64)
        compressor.attach(module, optimizer)
        return module, optimizer, compressor

    def steps(module: Any, optimizer: Any, number: int, seed: int) -> dict[str, torch.Tensor]:
        chance = torch.Generator().manual_seed(seed + rank)
        for _ in range(number):
            module(torch.randn(8, 33, generator=chance)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return shards_of(module)

    module, optimizer, compressor = made(0)
    steps(module, optimizer, 10, 0)
    gravac.checkpoint.save(folder, compressor)
    saved = {name: each.clone() for name, each in module.state_dict().items()}
    of_optimizer = copy.deepcopy(optimizer.state_dict())
    residuals = bool(compressor._engine.residuals())
    on = steps(module, optimizer, 5, 100)
    compressor.close()
    module, optimizer, compressor = made(0)
    module.load_state_dict(saved)
    optimizer.load_state_dict(of_optimizer)
    gravac.checkpoint.load(folder, compressor)
    again = steps(module, optimizer, 5, 100)
    compressor.close()
    return residuals, all(torch.equal(weight, on[name]) for name, weight in again.items())


def test_saved_and_resumed_it_is_the_run_that_went_on(tmp_path: Path) -> None:
    assert processes(resumed, WORLD, str(tmp_path / "gravac")) == [(True, True)] * WORLD


def closed(rank: int, world: int) -> bool:
    """Close the compressor and train on: torch averages over the replicas again."""
    module = sharded(mesh_of(2))
    compressor = AdaptiveCompressor("topk", controller=Static(cf=20), native=False, dense_below=64)
    compressor.attach(module, ())
    x = torch.randn(8, 33, generator=torch.Generator().manual_seed(rank))
    module(x).square().mean().backward()
    compressor.close()
    module.zero_grad()
    module(x).square().mean().backward()
    gradients = [parameter.grad.to_local() for parameter in module.parameters()]  # type: ignore[union-attr]
    mine = [gradient.clone() for gradient in gradients]
    for gradient in gradients:
        dist.all_reduce(gradient, group=mesh_of(2)["replicate"].get_group())
    return all(torch.allclose(2 * own, total) for own, total in zip(mine, gradients, strict=True))


def test_closed_torch_averages_again() -> None:
    assert processes(closed, WORLD) == [True] * WORLD


def evaluated_before(rank: int, world: int) -> int:
    """Evaluate before ``attach``, which leaves gathered parameters in the root's place; return how many are known."""
    whole = torch.nn.Linear(33, 33)
    fully_shard(whole, mesh=mesh_of(2))
    with torch.no_grad():
        whole(torch.ones(2, 33))
    compressor = AdaptiveCompressor(controller=Static(cf=1), native=False)
    compressor.attach(whole, ())
    known = len(compressor._engine.shapes)
    compressor.close()
    return known


def test_gathered_parameters_are_found_too() -> None:
    assert processes(evaluated_before, WORLD) == [2] * WORLD


class Parallel(torch.nn.Module):
    """An embedding that all ranks hold, and two layers for tensor parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 64)
        self.up, self.down = torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return predictions of the next tokens, ``[batch, 32]``."""
        hidden: torch.Tensor = self.embedding(tokens)
        return (hidden + self.down(torch.relu(self.up(hidden)))) @ self.embedding.weight.T


def tensor_parallel(rank: int, world: int, sharded_too: bool) -> tuple[torch.Tensor, list[float], list[str]]:
    """Train with tensor parallelism and data parallelism, two by two; return the embedding, and decisions."""
    mesh = init_device_mesh("cpu", (2, 1, 2) if sharded_too else (2, 2), mesh_dim_names=NAMES[sharded_too])
    torch.manual_seed(0)
    module: Any = parallelize_module(
        Parallel(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Replicate())}
    )
    settings: dict[str, Any] = {}
    if sharded_too:
        fully_shard(module, mesh=mesh["replicate", "shard"])
    else:
        module = DistributedDataParallel(module, device_mesh=mesh["replicate"])
        settings["agree_group"] = dist.group.WORLD
    compressor = AdaptiveCompressor("topk", (5, 20), controller="gravac", window=2, native=False, dense_below=64)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    compressor.attach(module, optimizer, **settings)
    chance, cfs = torch.Generator().manual_seed(mesh["replicate"].get_local_rank()), []
    for _ in range(16):
        tokens = torch.randint(32, (8,), generator=chance)
        torch.nn.functional.cross_entropy(module(tokens), (tokens + 1) % 32).backward()
        optimizer.step()
        optimizer.zero_grad()
        cfs.append(compressor.cf)
    embedding = dict(module.named_parameters())["embedding.weight" if sharded_too else "module.embedding.weight"]
    local = embedding.full_tensor() if sharded_too else embedding
    candidates = [str(candidate) for candidate in compressor._engine.deciding.candidates]
    compressor.close()
    return local.detach().clone(), cfs, candidates


NAMES = {True: ("replicate", "shard", "tp"), False: ("replicate", "tp")}
"""Names of the mesh's dimensions, with shards and without."""


@pytest.mark.parametrize("sharded_too", [False, True], ids=["DDP", "HSDP"])
def test_with_tensor_parallelism_all_ranks_decide_alike(sharded_too: bool) -> None:
    ranks = processes(tensor_parallel, WORLD, sharded_too)
    for embedding, cfs, candidates in ranks:
        assert torch.equal(embedding, ranks[0][0])
        assert (cfs, candidates) == ranks[0][1:]
    assert len(set(ranks[0][1])) > 1


def residuals_on_another_mesh(rank: int, world: int, folder: str, on_resize: Any) -> tuple[bool, int]:
    """Save residuals on a mesh of two replicas, and load them on meshes of four and of one; compare whole tensors.

    Returns:
        Whether the means over the replicas are those that were saved, and how many parameters have residuals.
    """

    def attached(replicas: int) -> AdaptiveCompressor:
        module = sharded(mesh_of(replicas)) if replicas > 1 else sharded(mesh_of(1))
        compressor = AdaptiveCompressor("topk", controller=Static(cf=20), native=False, dense_below=64)
        compressor.attach(module, ())
        chance = torch.Generator().manual_seed(rank)
        for _ in range(3 if replicas == 2 else 0):
            module(torch.randn(8, 33, generator=chance)).square().mean().backward()
        return compressor

    first = attached(2)
    gravac.checkpoint.save(folder, first)
    expected = whole_means(first, on_resize, 2)
    first.close()
    found = []
    for replicas in (4,):
        compressor = attached(replicas)
        gravac.checkpoint.load(folder, compressor, on_resize=on_resize)
        loaded = whole_means(compressor, on_resize, 2)
        found.append(
            loaded.keys() == expected.keys()
            and all(torch.allclose(loaded[name], whole, atol=1e-7) for name, whole in expected.items())
        )
        compressor.close()
    return all(found), len(expected)


def whole_means(compressor: AdaptiveCompressor, on_resize: str, kept: int) -> dict[str, torch.Tensor]:
    """Return the mean of residuals over the replicas, as whole parameters, by name. Called on every rank.

    Args:
        compressor: attached to a model in shards.
        on_resize: ``"mean"``: over all replicas; ``"keep"``: the sum over all, divided by ``kept``.
        kept: number of replicas that had residuals.
    """
    shards: Any = compressor.shards
    own = {name: (shards.places[name], flat.clone()) for name, flat in compressor._engine.residuals().items()}
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, own)
    wholes: dict[str, torch.Tensor] = {}
    for entries in of_ranks:
        for name, (place, flat) in entries.items():
            ends = [start + size for start, size in zip(place.offset, place.shape, strict=True)]
            sizes = [WHOLE_SIZE] * len(ends)
            whole = wholes.setdefault(name, torch.zeros(sizes))
            region = tuple(slice(start, end) for start, end in zip(place.offset, ends, strict=True))
            whole[region] += flat.view(place.padded_shape)[tuple(slice(size) for size in place.shape)]
    return {name: whole / (shards.replicas if on_resize == "mean" else kept) for name, whole in wholes.items()}


WHOLE_SIZE = 40
"""Size that no dimension of a parameter exceeds."""


@pytest.mark.parametrize("on_resize", ["mean", "keep"])
def test_residuals_load_on_another_mesh(on_resize: str, tmp_path: Path) -> None:
    for same, count in processes(residuals_on_another_mesh, WORLD, str(tmp_path / "gravac"), on_resize):
        assert same
        assert count > 3
