# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressed, replicas stay bit for bit the same, all ranks decide alike, and only the replicas' bytes fall."""

import copy
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import gravac
from gravac import Accordion, AdaptiveCompressor, GraVAC, Static
from tests import flight_recorder
from tests.hsdp.training import MIXED, Run, dense, mesh_of, sharded, shards_of, train
from tests.policies import adaptive
from tests.ranks import processes

WORLD = 4

Answers = dict[str, list[Any]]
"""What each rank returned, by question."""

METHODS: dict[str, tuple[Callable[..., AdaptiveCompressor], int]] = {
    "top-k": (lambda: adaptive("topk", controller=Static(cf=20), native=False, dense_below=64), 9),
    "low rank": (lambda: adaptive("powersgd", controller=Static(cf=8), native=False, dense_below=64), 9),
    "accordion": (
        lambda: adaptive("topk", (2, 20), controller=Accordion(every=3), native=False, dense_below=64),
        8,
    ),
    "gravac": (lambda: adaptive("topk", controller=GraVAC(window=3), native=False, dense_below=64), 10),
    "4 bits, bfloat16, accumulated": (
        lambda: adaptive("quantize", controller=Static(cf=8), native=False, dense_below=64),
        5,
    ),
    "as it comes, logged": (lambda **settings: adaptive(dense_below=64, **settings), 10),
}
"""Compressors, and steps in which each decides twice or sends what earlier steps left over."""


def compressed(rank: int, world: int, replicas: int, is_long: bool, folder: str) -> dict[str, Run]:
    """Train with each method on a mesh; in bfloat16 with two backwards a step, or with a log, if its name says so."""
    runs = {}
    for name, (make, steps) in METHODS.items():
        module = sharded(mesh_of(replicas), **({"mp_policy": MIXED} if "bfloat16" in name else {}))
        compressor = make(log_dir=folder) if "logged" in name else make()
        runs[name] = train(module, compressor, steps=20 if is_long else steps, micro=2 if "accumulated" in name else 1)
    return runs


@pytest.mark.parametrize(
    ("replicas", "is_long"), [(2, False), *(pytest.param(number, True, marks=pytest.mark.long) for number in (2, 4))]
)
def test_replicas_stay_equal_all_ranks_decide_alike_and_there_is_one_log(
    replicas: int, is_long: bool, tmp_path: Path
) -> None:
    ranks = processes(compressed, WORLD, replicas, is_long, str(tmp_path))
    shards = WORLD // replicas
    for name, (_, steps) in METHODS.items():
        runs = [run[name] for run in ranks]
        for rank, run in enumerate(runs):
            same_shard = runs[rank % shards]
            assert all(torch.equal(weight, same_shard.weights[key]) for key, weight in run.weights.items()), name
            assert (run.cfs, run.candidates) == (runs[0].cfs, runs[0].candidates), name
            assert run.steps == (20 if is_long else steps), name
        assert math.isfinite(sum(runs[0].losses)), name
        assert runs[0].losses[-1] < runs[0].losses[0], name
    assert ranks[0]["top-k"].wire_ratio is not None
    assert ranks[0]["top-k"].wire_ratio > 2
    (log,) = tmp_path.glob("*.jsonl")
    steps_in_log = [record["step"] for line in log.read_text().splitlines() if "step" in (record := json.loads(line))]
    assert steps_in_log
    assert len([line for line in log.read_text().splitlines() if '"kind": "run"' in line or '"run"' in line[:20]]) <= 1


def with_scaler(rank: int) -> tuple[bool, bool]:
    """Spoil one rank's gradient in one step; return whether residuals stayed, and weights did."""
    module = sharded(mesh_of(2))
    compressor = adaptive("topk", controller=Static(cf=20), native=False, dense_below=64)
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


def test_a_step_that_is_not_finite_changes_no_residual_of_any_rank(answers: Answers) -> None:
    assert answers["with_scaler"] == [(True, True)] * WORLD


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


def one_shard_spoilt(rank: int) -> list[bool]:
    """Let the gradient of one shard be infinite; return which ranks' residuals stayed as they were."""
    module = sharded(mesh_of(2))
    compressor = adaptive("topk", controller=Static(cf=20), native=False, dense_below=64, overflow_safety=True)
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


def test_an_infinity_in_one_shard_leaves_the_residuals_of_all_shards(answers: Answers) -> None:
    assert all(kept and all(kept) for kept in answers["one_shard_spoilt"])


def recorded(rank: int, world: int) -> list[list[Counter[tuple[str, int]]]]:
    """Return, natively and with gravac, torch's collectives of nine steps within a replica, and those over replicas."""
    runs = []
    top_k, _ = METHODS["top-k"]
    for compressor in (None, top_k()):
        mesh = mesh_of(2)
        module = sharded(mesh)
        started_at = flight_recorder.newest()
        train(module, compressor, steps=9, optimizer_of=torch.optim.SGD)
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


def replicas_apart(rank: int) -> tuple[bool, bool]:
    """Train on a mesh of one dimension per replica, with the replicas as a group; compare with a mesh of two."""
    settings: dict[str, Any] = {"steps": 3, "optimizer_of": torch.optim.SGD}
    two = train(sharded(mesh_of(2)), dense(), **settings)
    mesh = mesh_of(2)
    replicas, own = mesh["replicate"].get_group(), mesh["shard"]
    one = train(sharded(own), dense(process_group=replicas), **settings)
    accumulated = dense(process_group=replicas)
    module = sharded(own)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)
    accumulated.attach(module, optimizer)
    x = torch.randn(8, 33, generator=torch.Generator().manual_seed(rank))
    with accumulated.no_sync():
        module(x).square().mean().backward()
    module(x).square().mean().backward()
    steps = accumulated._engine.state.step
    accumulated.close()
    return all(torch.allclose(weight, two.weights[name], atol=1e-6) for name, weight in one.weights.items()), steps == 1


def test_on_a_mesh_of_one_dimension_the_replicas_may_be_a_group_of_their_own(answers: Answers) -> None:
    assert answers["replicas_apart"] == [(True, True)] * WORLD


def replaced(rank: int) -> tuple[list[str], bool]:
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


def test_parameters_that_were_replaced_are_hooked_anew_and_it_says_so(answers: Answers) -> None:
    for messages, equal in answers["replaced"]:
        assert equal
        (message,) = messages
        assert "load_state_dict(assign=True)" in message


def resumed(rank: int, folder: str) -> tuple[bool, bool]:
    """Train three steps, save, and train on; then load into a new model and compressor and train the same steps."""

    def made() -> tuple[Any, Any, AdaptiveCompressor]:
        module = sharded(mesh_of(2))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        compressor = adaptive("topk", controller=Static(cf=20), native=False, dense_below=64)
        compressor.attach(module, optimizer)
        return module, optimizer, compressor

    def steps(module: Any, optimizer: Any, number: int, seed: int) -> dict[str, torch.Tensor]:
        chance = torch.Generator().manual_seed(seed + rank)
        for _ in range(number):
            module(torch.randn(8, 33, generator=chance)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return shards_of(module)

    module, optimizer, compressor = made()
    steps(module, optimizer, 3, 0)
    gravac.checkpoint.save(folder, compressor)
    saved = {name: each.clone() for name, each in module.state_dict().items()}
    of_optimizer = copy.deepcopy(optimizer.state_dict())
    residuals = bool(compressor._engine.residuals())
    on = steps(module, optimizer, 2, 100)
    compressor.close()
    module, optimizer, compressor = made()
    module.load_state_dict(saved)
    optimizer.load_state_dict(of_optimizer)
    gravac.checkpoint.load(folder, compressor)
    again = steps(module, optimizer, 2, 100)
    compressor.close()
    return residuals, all(torch.equal(weight, on[name]) for name, weight in again.items())


def test_saved_and_resumed_it_is_the_run_that_went_on(answers: Answers) -> None:
    assert answers["resumed"] == [(True, True)] * WORLD


def closed(rank: int) -> bool:
    """Close the compressor and train on: torch averages over the replicas again."""
    module = sharded(mesh_of(2))
    compressor = adaptive("topk", controller=Static(cf=20), native=False, dense_below=64)
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


def test_closed_torch_averages_again(answers: Answers) -> None:
    assert answers["closed"] == [True] * WORLD


def evaluated_before() -> int:
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


def test_gathered_parameters_are_found_too(answers: Answers) -> None:
    assert answers["evaluated_before"] == [2] * WORLD


def residuals_on_another_mesh(rank: int, folder: str) -> dict[str, tuple[bool, int]]:
    """Save residuals on a mesh of two replicas, and load them on a mesh of four; compare whole tensors.

    Returns:
        By ``on_resize``, whether the means over the replicas are those that were saved, and how many parameters have
        residuals.
    """

    def attached(replicas: int) -> tuple[torch.nn.Module, AdaptiveCompressor]:
        module = sharded(mesh_of(replicas))
        compressor = adaptive("topk", controller=Static(cf=20), native=False, dense_below=64)
        compressor.attach(module, ())
        return module, compressor

    module, first = attached(2)
    chance = torch.Generator().manual_seed(rank)
    for _ in range(3):
        module(torch.randn(8, 33, generator=chance)).square().mean().backward()
    gravac.checkpoint.save(folder, first)
    expected_by_way = {on_resize: whole_means(first, on_resize, 2) for on_resize in ("mean", "keep")}
    first.close()
    found = {}
    for on_resize, expected in expected_by_way.items():
        _, compressor = attached(4)
        gravac.checkpoint.load(folder, compressor, on_resize=on_resize)
        loaded = whole_means(compressor, on_resize, 2)
        same = all(torch.allclose(loaded[name], whole, atol=1e-7) for name, whole in expected.items())
        found[on_resize] = loaded.keys() == expected.keys() and same, len(expected)
        compressor.close()
    return found


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


def test_residuals_load_on_another_mesh(answers: Answers) -> None:
    for found in answers["residuals_on_another_mesh"]:
        assert found.keys() == {"mean", "keep"}
        for same, count in found.values():
            assert same
            assert count > 3


def questions(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Answer the questions above that need a few steps only, by their functions' names."""
    return {
        "with_scaler": with_scaler(rank),
        "one_shard_spoilt": one_shard_spoilt(rank),
        "replicas_apart": replicas_apart(rank),
        "replaced": replaced(rank),
        "resumed": resumed(rank, f"{folder}/resumed"),
        "closed": closed(rank),
        "evaluated_before": evaluated_before(),
        "residuals_on_another_mesh": residuals_on_another_mesh(rank, f"{folder}/residuals"),
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Each rank's answers to these questions, from one start of ranks."""
    of_ranks = processes(questions, WORLD, str(tmp_path_factory.mktemp("answers")))
    return {name: [of_rank[name] for of_rank in of_ranks] for name in of_ranks[0]}
