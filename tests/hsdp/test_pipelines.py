# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Pipelines with data parallelism, two by two: a step of a schedule is one step of gravac, within each stage."""

import math
import traceback
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, GraVAC, Static
from tests.modes.scripted import DENSE, NATIVE, Scripted, script
from tests.policies import adaptive
from tests.ranks import processes

WORLD = 4

Answers = dict[str, list[Any]]
"""What each rank returned, by question."""

WIDTH, ROWS, MICRO_BATCHES = 33, 16, 4

STEPS = 7
"""Steps of a training: 7 include a check that replicas are equal."""


def mesh_of(stages: int) -> DeviceMesh:
    """Return a mesh of all ranks: replicas, each a pipeline of stages, each stage whole on its rank."""
    shape = (dist.get_world_size() // stages, stages, 1)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "stage", "shard"))


def wrapped(mesh: DeviceMesh, how: str, **settings: Any) -> Any:
    """Return the module of this rank's stage, whose gradients are averaged over the replicas.

    Args:
        mesh: the mesh of all ranks.
        how: ``"DDP"``, ``"replicate"`` or ``"HSDP"``.
        settings: settings of ``DistributedDataParallel``.
    """
    torch.manual_seed(mesh["stage"].get_local_rank())
    hidden = 64 + 8 * mesh["stage"].get_local_rank()
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, WIDTH))
    if how == "DDP":
        return DistributedDataParallel(module, process_group=mesh["replicate"].get_group(), **settings)
    if how == "replicate":
        return replicate(module, mesh=mesh["replicate"])
    fully_shard(module[0], mesh=mesh["replicate", "shard"])
    return fully_shard(module, mesh=mesh["replicate", "shard"])


def schedule_of(mesh: DeviceMesh, module: Any, kind: Any, is_static: bool = True) -> Any:
    """Return the schedule that trains this rank's stage.

    Args:
        mesh: the mesh of all ranks.
        module: module of the stage.
        kind: class of the schedule.
        is_static: whether the stage is given shapes.
    """
    stages, stage = mesh["stage"].size(), mesh["stage"].get_local_rank()
    rows = ROWS // MICRO_BATCHES
    shapes: dict[str, Any] = {}
    if is_static:
        shapes["input_args"] = torch.zeros(rows, WIDTH, requires_grad=stage > 0)
        shapes["output_args"] = torch.zeros(rows, WIDTH, requires_grad=True)
    device, group = torch.device("cpu"), mesh["stage"].get_group()
    pipeline_stage = PipelineStage(module, stage, stages, device, group=group, **shapes)
    return kind(pipeline_stage, n_microbatches=MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)


def train(mesh: DeviceMesh, schedule: Any, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Train on this replica's own batches; return the losses, which are 0 on all but the last stage."""
    stages, stage, losses = mesh["stage"].size(), mesh["stage"].get_local_rank(), []
    for step in steps:
        chance = torch.Generator().manual_seed(1000 * step + mesh["replicate"].get_local_rank())
        x, of_step = torch.randn(ROWS, WIDTH, generator=chance), []
        target: dict[str, Any] = {"target": x.roll(1, 1), "losses": of_step} if stage == stages - 1 else {}
        schedule.step(*((x,) if stage == 0 else ()), **target)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(loss.item() for loss in of_step))
    return losses


def trained(how: str, kind: Any, compressor: AdaptiveCompressor | None, is_static: bool = True) -> tuple[Any, ...]:
    """Train two stages natively or with a compressor; return losses, weights, counted steps, and the compressor."""
    mesh = mesh_of(2)
    module = wrapped(mesh, how)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    if compressor is not None:
        compressor.attach(module, optimizer)
    losses = train(mesh, schedule_of(mesh, module, kind, is_static), optimizer, range(STEPS))
    steps = None
    if compressor is not None:
        compressor._engine.drain()
        steps = compressor._engine.state.trained
    return losses, weights_of(module), steps, compressor


def weights_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return copies of this rank's weights."""
    parameters: list[Any] = [*module.parameters()]
    return [getattr(parameter, "to_local", lambda p=parameter: p)().detach().clone() for parameter in parameters]


def same(weights: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """True if all weights are the same, bit for bit."""
    return all(torch.equal(weight, other) for weight, other in zip(weights, others, strict=True))


CASES: dict[str, tuple[str, Any, bool]] = {
    "DDP, GPipe": ("DDP", ScheduleGPipe, True),
    "DDP, 1F1B": ("DDP", Schedule1F1B, True),
    "replicate, GPipe": ("replicate", ScheduleGPipe, True),
    "HSDP, 1F1B": ("HSDP", Schedule1F1B, True),
    "HSDP, GPipe, shapes not given": ("HSDP", ScheduleGPipe, False),
}
"""How a stage is wrapped, its schedule, and whether it is given shapes."""


@cache
def native(how: str, kind: Any, is_static: bool) -> tuple[list[float], list[torch.Tensor]]:
    """Train natively, once for all comparisons of this process; return losses and weights."""
    losses, weights, _, _ = trained(how, kind, None, is_static)
    return losses, weights


def both_ways(rank: int, world: int, names: tuple[str, ...]) -> dict[str, tuple[bool, bool, int]]:
    """Train natively and with dense gradients by gravac; compare weights and losses, and count steps."""
    found = {}
    for name in names:
        how, kind, is_static = CASES[name]
        losses, weights = native(how, kind, is_static)
        dense = AdaptiveCompressor(controller=Static(cf=1), native=False)
        our_losses, our_weights, steps, _ = trained(how, kind, dense, is_static)
        dense.close()
        found[name] = same(weights, our_weights), losses == our_losses, steps
    return found


OFTEN = ("DDP, GPipe", "DDP, 1F1B", "replicate, GPipe")
"""Cases that run with all tests; ``make test-all`` runs the others, too."""


def test_dense_it_trains_as_torch_does_and_counts_a_step_for_each_of_the_schedule(answers: Answers) -> None:
    for found in answers["both_ways"]:
        assert found == dict.fromkeys(OFTEN, (True, True, STEPS))


@pytest.mark.long
def test_dense_it_trains_as_torch_does_in_the_other_cases() -> None:
    names = tuple(name for name in CASES if name not in OFTEN)
    for found in processes(both_ways, WORLD, names):
        assert found == dict.fromkeys(names, (True, True, STEPS))


def compressed() -> dict[str, tuple[Any, ...]]:
    """Train compressed, each stage deciding by itself; return losses, weights, CFs of decisions, and wire ratio."""
    found = {}
    for how in ("DDP", "HSDP"):
        compressor = adaptive("topk", (5, 20), controller=GraVAC(window=2), native=False, dense_below=64)
        losses, weights, steps, _ = trained(how, Schedule1F1B, compressor)
        cfs = [record.cf for record in compressor.history]
        found[how] = losses, weights, steps, cfs, compressor.wire_ratio
        compressor.close()
    return found


def test_compressed_the_ranks_of_a_stage_stay_equal_and_decide_alike(answers: Answers) -> None:
    ranks = answers["compressed"]
    for how in ("DDP", "HSDP"):
        for rank in range(WORLD):
            losses, weights, steps, cfs, wire_ratio = ranks[rank][how]
            replica = ranks[(rank + 2) % WORLD][how]  # the same stage of the other replica
            assert same(weights, replica[1])
            assert (steps, cfs) == (STEPS, replica[3])
            assert wire_ratio > 2
            assert math.isfinite(sum(losses))


def changed_modes() -> tuple[int, bool, list[str]]:
    """Let a script change between gravac's hook and DDP's own exchange; compare with native training.

    Returns:
        Number of counted steps, whether weights are those of native training, and the modes that began.
    """
    _, expected = native("DDP", ScheduleGPipe, True)
    scripted = Scripted(script=script((0, NATIVE), (2, DENSE), (4, NATIVE)), watch=2)
    _, weights, steps, compressor = trained("DDP", ScheduleGPipe, AdaptiveCompressor(controller=scripted))
    modes = [change.after for change in compressor.changes]
    compressor.detach()
    compressor.close()
    return steps, same(weights, expected), modes


def test_native_steps_are_counted_too(answers: Answers) -> None:
    for steps, is_same, modes in answers["changed_modes"]:
        assert is_same
        assert modes == ["hook", "native"]
        assert STEPS - 3 <= steps <= STEPS  # a stretch of native steps counts when it ends


def questions(rank: int, world: int) -> dict[str, Any]:
    """Answer the questions above about four ranks, by their functions' names."""
    return {
        "both_ways": both_ways(rank, world, OFTEN),
        "compressed": compressed(),
        "changed_modes": changed_modes(),
    }


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Each rank's answers to these questions, from one start of ranks."""
    of_ranks = processes(questions, WORLD)
    return {name: [of_rank[name] for of_rank in of_ranks] for name in of_ranks[0]}


def message_of(
    compressor: AdaptiveCompressor, is_static: bool = True, how: str = "DDP", kind: Any = ScheduleGPipe, **settings: Any
) -> str:
    """Return the texts of the errors with which a step of a pipeline of one stage fails, and the steps counted."""
    mesh = mesh_of(1)
    module = wrapped(mesh, how, **settings)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    compressor.attach(module, optimizer)
    try:
        train(mesh, schedule_of(mesh, module, kind, is_static), optimizer, range(1))
    except Exception as error:
        return f"{compressor._engine.state.trained} steps: {''.join(traceback.format_exception(error))}"
    finally:
        compressor.close()
    return "trained"


def refusals(rank: int, world: int) -> dict[str, str]:
    """Try what is refused, with one stage: all ranks fail at the same backward."""
    return {
        "no shapes": message_of(AdaptiveCompressor(native=False), is_static=False),
        "unused": message_of(AdaptiveCompressor(native=False), is_static=False, find_unused_parameters=True),
        "outer": message_of(AdaptiveCompressor(every=3)),
        "perhaps outer": message_of(AdaptiveCompressor(every=(1, 100), native=False)),
        "HSDP, outer": message_of(AdaptiveCompressor(every=3), how="HSDP", kind=Schedule1F1B),
    }


def test_refused_in_the_first_step_with_the_remedy() -> None:
    for found in processes(refusals, 2):
        for name in ("no shapes", "unused"):
            assert "SettingsError: input_args, output_args: a stage of the pipeline has no such" in found[name]
            assert "give both arguments to PipelineStage on every rank" in found[name]
        for name in ("outer", "HSDP, outer"):
            assert "SettingsError: every: (3, 3) allows outer steps, but the module is a stage" in found[name]
        assert "SettingsError: every: (1, 100) allows outer steps" in found["perhaps outer"]
        assert all(message.startswith("0 steps") for message in found.values())
