# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of models in shards: replicas train by themselves, and exchange the distance from their anchors."""

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy

import gravac
from gravac import AdaptiveCompressor, OuterSettings, Static
from tests.hsdp.test_equal import with_divide_factor
from tests.hsdp.training import MIXED, WIDTH, mesh_of, sharded, shards_of
from tests.modes.scripted import APART, DENSE, HOOK, Entry, Scripted, script
from tests.policies import adaptive
from tests.ranks import processes

WORLD, EVERY, STEPS = 4, 3, 6

MEAN = OuterSettings(optimizer=partial(torch.optim.SGD, lr=1.0), delay=0)
"""Settings by which the anchors become the mean of the replicas' weights."""

Optimizer = Callable[..., torch.optim.Optimizer]

Answers = dict[str, list[Any]]
"""What each rank returned, by question."""

ADAMW: Optimizer = partial(torch.optim.AdamW, lr=1e-2)
SGD: Optimizer = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)


def apart(**settings: Any) -> AdaptiveCompressor:
    """Return a compressor of outer steps; dense ones that average weights unless ``settings`` say otherwise."""
    given = {"base": "topk", "controller": Static(cf=1), "every": EVERY, "outer": MEAN, "dense_below": 64, **settings}
    return adaptive(**given)


class Training:
    """Training of a model in shards on this rank's own batches.

    Args:
        module: the model.
        optimizer_of: makes its optimizer.
        compressor: attached first; ``None``: none.
    """

    def __init__(self, module: Any, optimizer_of: Optimizer, compressor: AdaptiveCompressor | None = None) -> None:
        self.module, self.optimizer = module, optimizer_of(module.parameters())
        self.losses: list[float] = []
        self._chance = torch.Generator().manual_seed(dist.get_rank())
        if compressor is not None:
            compressor.attach(module, self.optimizer)

    def steps(self, number: int) -> dict[str, torch.Tensor]:
        """Make steps; return this rank's shards."""
        for _ in range(number):
            self.losses.append(self.step())
        return shards_of(self.module)

    def step(self, after_backward: Callable[[], object] = lambda: None) -> float:
        """Make a step, and call a function between backward and optimizer; return the loss."""
        x = torch.randn(8, WIDTH, generator=self._chance)
        loss = (self.module(x) - x.roll(1, 1)).square().mean()
        loss.backward()
        after_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def over_replicas(tensor: torch.Tensor, mean: bool = True) -> torch.Tensor:
    """Return the mean of a tensor over the replicas, or the first replica's. Called on every rank."""
    group, result = mesh_of(2)["replicate"].get_group(), tensor.clone()
    if mean:
        dist.all_reduce(result, group=group)
        return result / 2
    dist.broadcast(result, dist.get_global_rank(group, 0), group=group)
    return result


def same_over_replicas(tensors: dict[str, torch.Tensor]) -> bool:
    """Tell whether all replicas have the same tensors, bit for bit. Called on every rank."""
    same = [torch.equal(over_replicas(tensor, mean=False), tensor) for tensor in tensors.values()]  # on every rank
    return all(same)


def averaged_by_hand(optimizer_of: Optimizer) -> dict[str, torch.Tensor]:
    """Train each replica by FSDP2 alone, and average weights over the replicas every few steps; return the shards."""
    training = Training(sharded(mesh_of(2)["shard"]), optimizer_of)
    for _ in range(STEPS // EVERY):
        training.steps(EVERY)
        for parameter in training.module.parameters():
            parameter.to_local().detach().copy_(over_replicas(parameter.to_local().detach()))
    return shards_of(training.module)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Tell whether tensors are the same, but for rounding."""
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


MODELS: dict[str, tuple[Callable[[], Any], bool]] = {
    "two dimensions": (lambda: sharded(mesh_of(2)), False),
    "one dimension": (lambda: sharded(mesh_of(2)["shard"]), True),
    "kept gathered": (lambda: sharded(mesh_of(2), reshard_after_forward=False), False),
    "on the CPU": (lambda: sharded(mesh_of(2), offload_policy=CPUOffloadPolicy(pin_memory=False)), False),
}
"""Models in shards, and whether their mesh lacks the replicas."""


def by_hand_and_by_gravac(rank: int, world: int, optimizer_of: Optimizer, names: tuple[str, ...]) -> dict[str, Any]:
    """Compare outer steps with weights that were averaged by hand; also in which steps anything was sent."""
    expected, found = averaged_by_hand(optimizer_of), {}
    for name in names:
        build, lacks_replicas = MODELS[name]
        settings = {"process_group": mesh_of(2)["replicate"].get_group()} if lacks_replicas else {}
        compressor = apart(**settings)
        weights = Training(build(), optimizer_of, compressor).steps(STEPS)
        outer: Any = compressor.outer
        found[name] = close(weights, expected), same_over_replicas(weights), compressor.mode, outer.ended
        compressor.close()
    return found


OFTEN = ("two dimensions", "one dimension")
"""Models that run with all tests; ``make test-all`` runs the others, too."""


@pytest.mark.parametrize(
    "names",
    [OFTEN, pytest.param(tuple(name for name in MODELS if name not in OFTEN), marks=pytest.mark.long)],
    ids=["often", "others"],
)
@pytest.mark.parametrize("optimizer_of", [ADAMW, pytest.param(SGD, marks=pytest.mark.long)], ids=["AdamW", "SGD"])
def test_dense_outer_steps_are_the_average_of_the_replicas_weights(
    optimizer_of: Optimizer, names: tuple[str, ...]
) -> None:
    for found in processes(by_hand_and_by_gravac, WORLD, optimizer_of, names):
        assert found == dict.fromkeys(names, (True, True, "outer", STEPS // EVERY))


def summed_gradients(rank: int, world: int) -> bool:
    """Let torch sum gradients over the replicas: each replica's gradient counts as often as there are replicas."""
    compressor = apart()
    weights = Training(with_divide_factor(), SGD, compressor).steps(STEPS)
    compressor.close()
    return close(weights, averaged_by_hand(partial(torch.optim.SGD, lr=2e-2, momentum=0.9)))


@pytest.mark.long
def test_where_torch_sums_over_replicas_gradients_keep_their_size() -> None:
    assert processes(summed_gradients, WORLD) == [True] * WORLD


METHODS: dict[str, Callable[[], AdaptiveCompressor]] = {
    "top-k": lambda: apart(controller=Static(cf=20)),
    "4 bits, late": lambda: apart(base="quantize", controller=Static(cf=8), outer=OuterSettings(delay=2)),
    "low rank": lambda: apart(base="powersgd", controller=Static(cf=8), outer=None),
    "as it comes": lambda: adaptive(every=(2, 20), dense_below=64),
}

OFTEN_METHODS = {"top-k": 20, "as it comes": 18}
"""Steps of the methods that run with all tests: rounds in which residuals are sent, and a second decision."""


def compressed(rank: int, world: int, steps_of: dict[str, int]) -> dict[str, Any]:
    """Train with each method; return decisions and losses, and whether the replicas share their anchors."""
    found = {}
    for name, steps in steps_of.items():
        compressor = METHODS[name]()
        training = Training(sharded(mesh_of(2), mp_policy=MIXED), ADAMW, compressor)
        training.steps(steps)
        compressor.synchronize()
        with compressor.shared_weights():
            shared = same_over_replicas(shards_of(training.module))
        decisions = [(record.step, record.every, record.cf, record.compressor) for record in compressor.history]
        finite = math.isfinite(sum(training.losses)) and training.losses[-1] < training.losses[0]
        found[name] = shared, finite, decisions, compressor.wire_ratio
        compressor.close()
    return found


@pytest.mark.parametrize(
    "steps_of",
    [OFTEN_METHODS, pytest.param(dict.fromkeys(METHODS, 40), marks=pytest.mark.long)],
    ids=["often", "all"],
)
def test_compressed_outer_steps_share_anchors_and_decide_alike(steps_of: dict[str, int]) -> None:
    ranks = processes(compressed, WORLD, steps_of)
    for name in steps_of:
        for rank in ranks:
            assert rank[name][:2] == (True, True), name
            assert rank[name][2] == ranks[0][name][2], name
        if name != "as it comes":  # what that sends depends on how fast the machine is
            assert ranks[0][name][3] > 2


def evaluated() -> tuple[bool, bool, bool]:
    """Train with and without evaluations between; tell whether the weights are the same, and what was evaluated."""
    plain = Training(sharded(mesh_of(2)), ADAMW, first := apart()).steps(EVERY + 2)
    first.close()
    compressor = apart()
    training = Training(sharded(mesh_of(2)), ADAMW, compressor)
    x = torch.ones(4, WIDTH)
    outputs = []
    for steps in (EVERY + 1, 1):
        training.steps(steps)
        with torch.no_grad():
            outputs.append(training.module(x))
        saved = {name: tensor.to_local() for name, tensor in training.module.state_dict().items()}
        with compressor.shared_weights():
            shared = shards_of(training.module)
    same_saved = all(torch.equal(saved[name], weight) for name, weight in shared.items())
    again = training.module(x)  # in training, with this replica's own weights
    differs = not torch.equal(again, outputs[1])
    evaluated_alike = same_over_replicas({"output": outputs[0]}) and torch.equal(outputs[0], outputs[1])
    weights = shards_of(training.module)
    compressor.close()
    unchanged = all(torch.equal(weight, plain[name]) for name, weight in weights.items())
    return unchanged, evaluated_alike and differs, same_saved and same_over_replicas(saved)


def test_evaluations_and_state_dicts_see_the_anchors_and_change_nothing(answers: Answers) -> None:
    assert answers["evaluated"] == [(True, True, True)] * WORLD


def resumed(folder: str) -> tuple[bool, bool]:
    """Save within a round, and train on; then load into new objects, and make the same steps."""

    def made() -> tuple[Training, AdaptiveCompressor]:
        compressor = apart(base="quantize", controller=Static(cf=8), outer=OuterSettings(delay=0))
        return Training(sharded(mesh_of(2)), ADAMW, compressor), compressor

    training, compressor = made()
    training.steps(EVERY + 1)
    gravac.checkpoint.save(folder, compressor)
    saved = {name: tensor.clone() for name, tensor in training.module.state_dict().items()}
    moments = copy.deepcopy(training.optimizer.state_dict())
    chance = training._chance.get_state()
    weights = training.steps(EVERY)
    own_moments = copy.deepcopy(training.optimizer.state_dict()["state"])
    compressor.close()
    training, compressor = made()
    training.module.load_state_dict(saved)
    training.optimizer.load_state_dict(moments)
    gravac.checkpoint.load(folder, compressor)
    training._chance.set_state(chance)
    again = training.steps(EVERY)
    same_moments = all(
        torch.equal(local(entry), local(own_moments[number][key]))
        for number, entries in training.optimizer.state_dict()["state"].items()
        for key, entry in entries.items()
    )
    compressor.close()
    return all(torch.equal(weight, weights[name]) for name, weight in again.items()), same_moments


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def test_saved_and_resumed_it_is_the_run_that_went_on(answers: Answers) -> None:
    assert answers["resumed"] == [(True, True)] * WORLD


OFTEN_APART: Entry = (*APART[:-1], EVERY)
SCRIPT = script((0, DENSE), (2, OFTEN_APART), (6, HOOK), (12, OFTEN_APART))
"""Outer steps from step 4 to 11 and from step 14 on."""


def switched(rank: int, world: int, optimizer_of: Optimizer) -> tuple[list[tuple[str, str]], bool, bool, bool]:
    """Change between steps with an exchange and outer steps, detach, and train on as torch does."""
    compressor = adaptive(
        "topk", (10, 10), controller=Scripted(script=SCRIPT), every=(1, 10), outer=MEAN, dense_below=64, native=False
    )
    training = Training(sharded(mesh_of(2)), optimizer_of, compressor)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.steps(19)
        changes = [(change.before, change.after) for change in compressor.changes]
        compressor.detach()
    moments = {
        f"{number} {key}": local(entry)
        for number, entries in training.optimizer.state_dict()["state"].items()
        for key, entry in entries.items()
    }
    same = same_over_replicas(shards_of(training.module)), same_over_replicas(moments)
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 + rank))
    training.module(x).square().mean().backward()
    gradients = {name: local(parameter.grad) for name, parameter in training.module.named_parameters()}
    compressor.close()
    return changes, *same, same_over_replicas(gradients)


@pytest.mark.parametrize("optimizer_of", [ADAMW, pytest.param(SGD, marks=pytest.mark.long)], ids=["AdamW", "SGD"])
def test_modes_change_and_detach_leaves_equal_replicas(optimizer_of: Optimizer) -> None:
    for changes, *same in processes(switched, WORLD, optimizer_of):
        assert changes == [("hook", "outer"), ("outer", "hook"), ("hook", "outer")]
        assert same == [True, True, True]


def spoilt(rank: int, world: int, late: bool) -> tuple[int, bool, bool, list[str]]:
    """Let one element of one shard of one replica be NaN; return what the ranks made of it.

    Args:
        rank: number of this rank.
        world: number of ranks.
        late: whether the NaN appears in a round's last step, so that only one shard's pseudo-gradient has it.
    """
    compressor = apart(controller=Static(cf=20))
    training = Training(sharded(mesh_of(2)), ADAMW, compressor)

    def spoil() -> None:
        if rank == 3:
            dict(training.module.named_parameters())["0.first.weight"].to_local().detach()[0, 0] = math.nan

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.steps(EVERY + (EVERY - 1 if late else 1))
        training.step(spoil)
        training.steps(2 * EVERY)
        compressor.synchronize()
    with compressor.shared_weights():
        weights = shards_of(training.module)
    finite = all(bool(weight.isfinite().all()) for weight in weights.values())
    outer: Any = compressor.outer
    skipped = outer.refusals.skipped
    compressor.close()
    return skipped, finite, same_over_replicas(weights), [str(warning.message) for warning in caught]


@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.long)], ids=["one shard", "a replica"])
def test_a_nan_in_one_shard_spoils_no_anchor_of_any_shard(late: bool) -> None:
    ranks = processes(spoilt, WORLD, late)
    assert {skipped for skipped, *_ in ranks} == {1}
    for _, finite, same, messages in ranks:
        assert (finite, same) == (True, True)
        assert any("not finite and is not applied" in message for message in messages)


def replaced() -> tuple[bool, bool]:
    """Replace all parameters within a round; outer steps go on from the loaded weights."""
    compressor = apart()
    training = Training(sharded(mesh_of(2)), ADAMW, compressor)
    training.steps(EVERY + 1)
    loaded = {name: torch.full_like(tensor, 0.5) for name, tensor in training.module.state_dict().items()}
    training.module.load_state_dict(loaded, assign=True)
    with compressor.shared_weights():
        shared = shards_of(training.module)
    training.optimizer = ADAMW(training.module.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training.step()
    own = shards_of(training.module)
    compressor.close()
    return all(bool((weight == 0.5).all()) for weight in shared.values()), any(
        bool((weight != 0.5).any()) for weight in own.values()
    )


def test_replaced_parameters_become_the_anchors(answers: Answers) -> None:
    assert all(found[0] for found in answers["replaced"])


def on_another_mesh(folder: str) -> tuple[bool, str]:
    """Save in outer steps on a mesh of two replicas, and load on one of four; return whether training goes on."""
    compressor = apart()
    training = Training(sharded(mesh_of(2)), SGD, compressor)
    training.steps(EVERY + 2)
    gravac.checkpoint.save(folder, compressor)
    compressor.close()
    compressor = apart()
    training = Training(sharded(mesh_of(4)), SGD, compressor)
    gravac.checkpoint.load(folder, compressor)
    training.steps(2 * EVERY)
    outer: Any = compressor.outer
    found = outer.ended == 2 and math.isfinite(sum(training.losses)), compressor.mode
    compressor.close()
    return found


def test_on_another_mesh_outer_steps_begin_anew(answers: Answers) -> None:
    assert answers["on another mesh"] == [(True, "outer")] * WORLD


def questions(rank: int, world: int, folder: str) -> dict[str, Any]:
    """Answer four of the questions above."""
    return {
        "evaluated": evaluated(),
        "resumed": resumed(f"{folder}/resumed"),
        "replaced": replaced(),
        "on another mesh": on_another_mesh(f"{folder}/another mesh"),
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Each rank's answers to these questions, from one start of ranks."""
    of_ranks = processes(questions, WORLD, str(tmp_path_factory.mktemp("answers")))
    return {name: [of_rank[name] for of_rank in of_ranks] for name in of_ranks[0]}
