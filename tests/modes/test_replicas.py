# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""In hook and native mode ranks hold the same weights, or every rank says within some steps that they do not."""

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, ReplicasDifferError, Static, topk
from gravac.exchange import memory
from gravac.modes import replica_differences
from gravac.modes.replica_differences import ReplicatedTensor, Verdict, allowed_distance, differences_from_first
from gravac.modes.replicas import LARGEST_INTERVAL, checksums_are_equal, due_steps, numbers_to_sum
from tests.distributed.training import batch, network, parallel
from tests.hsdp.training import WIDTH, dense, mesh_of, sharded
from tests.modes.scripted import APART, HOOK, NATIVE, Entry, Scripted, same, script
from tests.ranks import processes

PLANTED = 9
"""Step after which a difference is planted; the next check is due after step 12, and read a step later."""

STEPS = 16
"""Number of steps of a run with two checks, after steps 4 and 12."""

FOUND = 13
"""Step whose forward raises, counted from 0: one after the check."""

PLANTED_NAME = "4.weight"

Plant = Callable[[torch.nn.Parameter, torch.optim.Optimizer], None]


@dataclass
class Outcome:
    """How a run ended on one rank.

    Attributes:
        step: step whose forward raised; the number of all steps if none did.
        message: the error's text; empty if none was raised.
        warned: warnings of gravac.
        steps_when_equal: number of steps at the newest check that found all ranks the same.
    """

    step: int = 0
    message: str = ""
    warned: list[str] = field(default_factory=list)
    steps_when_equal: int = 0


def guard_of(compressor: AdaptiveCompressor) -> Any:
    switch = compressor._connection.switch
    assert switch is not None
    return switch._replicas


def compressor_of(*entries: Entry, every: int | tuple[int, int] = 1) -> AdaptiveCompressor:
    return AdaptiveCompressor(
        topk, (10, 10), controller=Scripted(script=script(*((entry[0], entry) for entry in entries))), every=every,
        dense_below=0,
    )  # fmt: skip


def run(
    compressor: AdaptiveCompressor, one_step: Callable[[int], None], steps: int, has_switch: bool = True
) -> Outcome:
    """Make steps until one raises."""
    outcome = Outcome(step=steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            try:
                one_step(step)
            except ReplicasDifferError as error:
                outcome.step, outcome.message = step, str(error)
                break
    outcome.warned = [str(warning.message) for warning in caught if "gravac" in str(warning.message)]
    if has_switch:
        outcome.steps_when_equal = guard_of(compressor)._steps_when_equal
    compressor.close()
    return outcome


def plain_step(
    rank: int,
    ddp: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    plant: Plant | None = None,
    keeps_weights: bool = False,
) -> Callable[[int], None]:
    """Return a function that makes a step, and plants a difference on the last rank after step ``PLANTED``.

    If it ``keeps_weights``, the learning rate is 0 from then on.
    """

    def one_step(step: int) -> None:
        if keeps_weights and step == PLANTED:
            optimizer.param_groups[0]["lr"] = 0.0
        optimizer.zero_grad()
        x, y = batch(rank, step)
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
        if plant is not None and step == PLANTED and rank == dist.get_world_size() - 1:
            plant(dict(ddp.named_parameters())[f"module.{PLANTED_NAME}"], optimizer)

    return one_step


# a difference is found


def weight(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    parameter.data[0, 0] += 0.01


def state(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[parameter]["exp_avg_sq"][0, 0] += 1e-3


def last_bit(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    parameter.data.view(torch.int32)[0, 0] ^= 1


PLANTS: dict[str, Plant] = {
    "weight": weight,
    "state": state,
    "state_alone": state,
    "last_bit": last_bit,
}

MODES = {"native": NATIVE, "hook": HOOK, "hook_without_switch": None}


def planted(rank: int, world: int, mode: str) -> dict[str, Outcome]:
    outcomes, entry = {}, MODES[mode]
    for kind, plant in PLANTS.items():
        ddp = parallel()
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        if entry is None:  # decided by no times: later steps may round the planted difference away
            compressor = AdaptiveCompressor(topk, controller=Static(cf=10), native=False)
        else:
            compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        step = plain_step(rank, ddp, optimizer, plant, keeps_weights=kind == "state_alone")
        outcomes[kind] = run(compressor, step, FOUND + 3, has_switch=entry is not None)
    return outcomes


@pytest.mark.parametrize("mode", MODES)
def test_a_difference_ends_the_run_on_all_ranks_by_name_but_one_unit_in_the_last_place_is_a_warning(mode: str) -> None:
    first, second = processes(planted, 2, mode)
    assert first == second
    weights, states, state_alone, last_bit = (first[kind] for kind in PLANTS)
    begins = f"gravac: after {FOUND} training steps, "
    differs = "on rank 1 differs from that on rank 0 by up to "
    for outcome in (weights, states, state_alone):
        assert outcome.step == FOUND and not outcome.warned
    assert weights.message.startswith(f"{begins}parameter {PLANTED_NAME} {differs}0.01 ")
    assert states.message.startswith(f"{begins}parameter {PLANTED_NAME} {differs}")
    assert "number of further tensors that differ: 1" in states.message
    state_text = f"the state 'exp_avg_sq' of parameter {PLANTED_NAME} in Adam"
    assert state_alone.message.startswith(f"{begins}{state_text} {differs}")
    (warned,) = last_bit.warned
    assert last_bit.step == FOUND + 3
    assert f"parameter {PLANTED_NAME} {differs}" in warned and "no more than rounding" in warned


def checked_every_step(rank: int, world: int) -> list[Outcome]:
    os.environ["GRAVAC"] = "check"
    outcomes = []
    for entry in (NATIVE, HOOK):
        ddp = parallel()
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        outcomes.append(run(compressor, plain_step(rank, ddp, optimizer, weight), 20))
    return outcomes


def test_with_gravac_check_the_next_forward_after_a_step_with_other_weights_raises() -> None:
    for ranks in zip(*processes(checked_every_step, 2), strict=True):
        for outcome in ranks:
            # the optimizer's step ended before the difference was planted, so the next step's checksum shows it
            assert outcome.step == PLANTED + 2
            assert outcome.steps_when_equal == PLANTED + 1
            assert f"parameter {PLANTED_NAME} on rank 1" in outcome.message


# likely causes


def unfrozen(rank: int, world: int) -> Outcome:
    """A layer that was frozen when DDP was created trains later, so that DDP does not average its gradient."""
    module = network()
    for parameter in module[4].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    ddp = parallel(module)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of(NATIVE)
    compressor.attach(ddp, optimizer)
    step = plain_step(rank, ddp, optimizer)

    def one_step(number: int) -> None:
        if number == PLANTED:
            for parameter in module[4].parameters():  # type: ignore[index]
                parameter.requires_grad_(True)
        step(number)

    return run(compressor, one_step, 30)


def renewed_optimizer(rank: int, world: int) -> Outcome:
    """An optimizer that is not given to ``attach`` trains in outer steps and after them, and weights come to differ."""
    ddp = parallel()
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of((0, *APART[1:]), (20, *HOOK[1:]), every=(1, 5))
    compressor.attach(ddp, optimizer)
    step = plain_step(rank, ddp, optimizer)
    further_optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    def one_step(number: int) -> None:
        step(number)
        if number >= 8:
            further_optimizer.step()
        if number == 40 and rank == 1:
            next(ddp.parameters()).detach().add_(0.1)

    return run(compressor, one_step, 80)


def with_known_causes(rank: int, world: int) -> list[Outcome]:
    return [unfrozen(rank, world), renewed_optimizer(rank, world)]


def test_known_causes_are_named() -> None:
    (unfrozen_first, renewed_first), second = processes(with_known_causes, 2)
    assert [unfrozen_first, renewed_first] == second
    assert unfrozen_first.step == FOUND
    assert f"the parameter {PLANTED_NAME} required no gradient when attach was called" in unfrozen_first.message
    assert "the cause is probably that AdamW made steps but was not given to attach" in renewed_first.message


# no alarm


class SAM(torch.optim.SGD):
    """Sharpness-aware minimization: each rank moves its weights by its own gradient, and keeps the way back."""

    @torch.no_grad()
    def climb(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["e_w"] = 0.05 * parameter.grad / (parameter.grad.norm() + 1e-9)
            self.state[parameter]["old_p"] = parameter.detach().clone()
            parameter.add_(self.state[parameter]["e_w"])

    @torch.no_grad()
    def descend(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(self.state[parameter]["old_p"])
        self.step()


class ShardedMuon(torch.optim.Optimizer):
    """Each rank keeps the momentum of some parameters, and sends these parameters to the other ranks."""

    def __init__(self, parameters: Iterator[torch.nn.Parameter]) -> None:
        super().__init__([*parameters], {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for position, parameter in enumerate(self.param_groups[0]["params"]):
            owner = position % dist.get_world_size()
            if owner == dist.get_rank():
                momentum = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                momentum.mul_(0.9).add_(parameter.grad)
                parameter.sub_(0.01 * momentum)
            dist.broadcast(parameter.detach(), owner)


class DifferentMoments(torch.optim.AdamW):
    """An optimizer that is not of torch, whose states come to differ between ranks without an effect on weights."""


def without_alarm(rank: int, world: int) -> dict[str, Outcome]:
    outcomes = {}

    def add(name: str, entry: Entry, make: Callable[[Entry], Outcome]) -> None:
        outcomes[f"{name}, {entry[1]}"] = make(entry)

    def zero_redundancy(entry: Entry, known: bool = True) -> Outcome:
        ddp = parallel()
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer if known else None)
        guard_of(compressor).add_optimizer(optimizer.optim)
        return run(compressor, plain_step(rank, ddp, optimizer), STEPS)

    def ignored_parameters(entry: Entry) -> Outcome:
        module = network()
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [PLANTED_NAME, "4.bias"])
        ddp = parallel(module)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        return run(compressor, plain_step(rank, ddp, optimizer, weight), STEPS)

    def sharpness_aware(entry: Entry) -> Outcome:
        ddp = parallel()
        optimizer = SAM(ddp.parameters(), lr=0.01, momentum=0.9)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)

        def one_step(step: int) -> None:
            x, y = batch(rank, step)
            optimizer.zero_grad()
            with ddp.no_sync():
                torch.nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.climb()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.descend()

        return run(compressor, one_step, STEPS)

    def skipping_scaler(entry: Entry) -> Outcome:
        ddp = parallel()
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=5)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer, scaler)

        def one_step(step: int) -> None:
            optimizer.zero_grad()
            x, y = batch(rank, step)
            loss = torch.nn.functional.cross_entropy(ddp(x), y)
            scaler.scale(loss * (float("inf") if step in (3, 11) and rank == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()

        return run(compressor, one_step, STEPS)

    def sharded_muon(entry: Entry) -> Outcome:
        ddp = parallel()
        optimizer = ShardedMuon(ddp.parameters())
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        return run(compressor, plain_step(rank, ddp, optimizer), STEPS)

    def sharded_by_hand(entry: Entry) -> Outcome:
        """Ranks are the same only after the program has sent the parameters that one of them stepped."""
        ddp = parallel()
        parameters = [*ddp.parameters()]
        optimizer = torch.optim.SGD(parameters[rank::world], lr=0.01, momentum=0.9)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        step = plain_step(rank, ddp, optimizer)

        def one_step(number: int) -> None:
            ddp.zero_grad()
            step(number)
            for position, parameter in enumerate(parameters):
                dist.broadcast(parameter.detach(), position % world)

        outcome = run(compressor, one_step, 32)
        assert guard_of(compressor)._samples_at_forward
        return outcome

    def different_moments(entry: Entry) -> Outcome:
        ddp = parallel()
        optimizer = DifferentMoments(ddp.parameters(), lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        return run(compressor, plain_step(rank, ddp, optimizer, state, keeps_weights=True), 32)

    def unequal_accumulation(entry: Entry) -> Outcome:
        ddp = parallel()
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        step = plain_step(rank, ddp, optimizer)

        def one_step(number: int) -> None:
            optimizer.zero_grad()
            for _ in range((rank + number) % 3):
                with ddp.no_sync():
                    ddp(batch(rank, number)[0]).sum().backward()
            step(number)

        return run(compressor, one_step, STEPS)

    for entry in (NATIVE, HOOK):
        add("ZeRO", entry, zero_redundancy)
        add("ZeRO that attach did not get", entry, lambda entry: zero_redundancy(entry, known=False))
        add("ignored parameters", entry, ignored_parameters)
        add("SAM", entry, sharpness_aware)
        add("GradScaler", entry, skipping_scaler)
        add("sharded Muon", entry, sharded_muon)
        add("sharded by hand", entry, sharded_by_hand)
        add("moments that differ", entry, different_moments)
        add("unequal accumulation", entry, unequal_accumulation)
    return outcomes


def test_what_may_differ_between_ranks_is_no_alarm() -> None:
    first, second = processes(without_alarm, 2)
    assert first == second
    for name, outcome in first.items():
        assert (outcome.message, outcome.warned) == ("", []), name
        assert outcome.steps_when_equal == (12 if outcome.step == STEPS else 28), name


def toured(rank: int, world: int) -> tuple[Outcome, bool, list[tuple[str, str]]]:
    ddp = parallel()
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of(
        (0, *NATIVE[1:]), (12, *HOOK[1:]), (22, *APART[1:]), (35, *HOOK[1:]), (50, *NATIVE[1:]), every=(1, 5)
    )
    compressor.attach(ddp, optimizer)
    outcome = run(compressor, plain_step(rank, ddp, optimizer), 70)
    return outcome, same(ddp), [(change.before, change.after) for change in compressor.changes]


def test_a_run_through_all_modes_has_no_alarm() -> None:
    for outcome, are_same, changes in processes(toured, 2):
        assert (outcome.step, outcome.message, outcome.warned, are_same) == (70, "", [], True)
        assert changes == [("native", "hook"), ("hook", "outer"), ("outer", "hook"), ("hook", "native")]
        assert outcome.steps_when_equal in (12, 28)  # since outer steps ended


# models in shards


def in_shards(rank: int, world: int) -> list[Outcome]:
    outcomes = []
    for is_planted in (False, True):
        module = sharded(mesh_of(2))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        compressor = dense()
        compressor.attach(module, optimizer)

        def one_step(
            step: int,
            module: torch.nn.Module = module,
            optimizer: torch.optim.Optimizer = optimizer,
            is_planted: bool = is_planted,
        ) -> None:
            optimizer.zero_grad()
            x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
            (module(x) - x.roll(1, 1)).square().mean().backward()
            optimizer.step()
            if is_planted and step == PLANTED and rank == 3:
                dict(module.named_parameters())["1.first.weight"].to_local().detach()[0, 0] += 0.01  # type: ignore[attr-defined]

        outcomes.append(run(compressor, one_step, STEPS))
    return outcomes


def test_other_shards_are_no_alarm_and_a_difference_in_the_shards_of_a_replica_ends_the_run_on_all_ranks() -> None:
    for rank, (clean, other) in enumerate(processes(in_shards, 4)):
        assert (clean.step, clean.message, clean.warned, clean.steps_when_equal) == (STEPS, "", [], 12)
        assert other.step == FOUND
        if rank % 2:  # ranks 1 and 3 hold the same shards
            assert "parameter 1.first.weight on replica 1 differs from that on replica 0 by up to" in other.message
        else:
            assert "ranks 1, 3 hold the same shards, but not the same weights" in other.message


# comparing


@given(ranks=st.integers(2, 64), checksum=st.integers(-(2**63), 2**63 - 1), data=st.data())
def test_sums_show_whether_all_checksums_are_equal(ranks: int, checksum: int, data: st.DataObject) -> None:
    other = data.draw(
        st.integers(-(2**63), 2**63 - 1) | st.just(checksum) | st.integers(0, 63).map(lambda bit: _flip(checksum, bit))
    )
    who = data.draw(st.sets(st.integers(0, ranks - 1)))
    checksums = [other if rank in who else checksum for rank in range(ranks)]
    sums = sum(numbers_to_sum(torch.tensor(each, dtype=torch.int64)) for each in checksums)
    assert isinstance(sums, torch.Tensor)
    assert checksums_are_equal(sums.tolist(), ranks) == (len(set(checksums)) == 1)


def _flip(number: int, bit: int) -> int:
    flipped = (number ^ (1 << bit)) % 2**64
    return flipped - 2**64 * (flipped >= 2**63)


@given(st.integers(1, 10**6))
def test_checks_are_due_soon_and_then_at_most_a_thousand_steps_apart(step: int) -> None:
    due = [*islice(due_steps(), 11 + step // LARGEST_INTERVAL)]
    intervals = [later - earlier for earlier, later in zip([0, *due], due, strict=False)]
    assert intervals[0] == 4 and max(intervals) <= LARGEST_INTERVAL
    assert all(later == min(2 * earlier, LARGEST_INTERVAL) for earlier, later in pairwise(intervals))
    assert min(each for each in due if each >= step) - step < LARGEST_INTERVAL
    assert [*islice(due_steps(every_step=True), 5)] == [1, 2, 3, 4, 5]


def compared(*ranks: dict[str, ReplicatedTensor], steps: int = 4) -> Verdict:
    first, *others = memory.run([differences_from_first(tensors, torch.device("cpu"), steps) for tensors in ranks])
    assert all(other == first for other in others)
    assert isinstance(first, Verdict)
    return first


def parameters(**tensors: torch.Tensor) -> dict[str, ReplicatedTensor]:
    return {name: ReplicatedTensor(tensor, name) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_a_few_units_in_the_last_place_are_rounding_and_a_percent_is_not(dtype: torch.dtype) -> None:
    ones = torch.ones(5, dtype=dtype)
    close, far = ones.clone(), ones.clone()
    close[2] += 2 * torch.finfo(dtype).eps
    far[2] += 0.05
    near = compared(parameters(w=ones), parameters(w=close), parameters(w=ones))
    assert (near.ends, near.is_rounding, near.has_differences) == (False, True, True)
    assert near.first is not None and near.first.ranks == (1,)
    assert compared(parameters(w=ones), parameters(w=close), parameters(w=far)).ends
    same_everywhere = compared(parameters(w=ones), parameters(w=ones.clone()))
    assert (same_everywhere.ends, same_everywhere.has_differences) == (False, False)


def test_the_first_tensor_that_differs_is_told_with_its_ranks_and_the_largest_distance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_differences, "CHUNK_BYTES", 64)
    ranks = [parameters(a=torch.ones(3), b=torch.ones(100), c=torch.ones(0), d=torch.ones(7)) for _ in range(4)]
    ranks[1]["b"].tensor[99] = 1.5
    ranks[3]["b"].tensor[0] = -1.0
    ranks[3]["d"].tensor[0] = 2.0
    ranks[2]["d"].tensor[0] = 9.0
    first = compared(*ranks).first
    assert first is not None
    assert (first.label, first.ranks, first.distance, first.magnitude, first.further_tensors) == (
        "b",
        (1, 3),
        2,
        1.5,
        1,
    )


def test_nan_on_one_rank_ends_the_run_and_nan_on_all_does_not() -> None:
    nan, one = torch.tensor([float("nan")]), torch.ones(1)
    assert compared(parameters(w=nan), parameters(w=one)).ends
    assert compared(parameters(w=one * float("inf")), parameters(w=one)).ends
    assert not compared(parameters(w=nan), parameters(w=-nan)).has_differences
    assert not compared(parameters(w=one * float("inf")), parameters(w=one * float("inf"))).has_differences


def test_a_state_that_some_ranks_lack_is_compared_no_more_and_ends_nothing() -> None:
    def tensors(*states: float, of_torch: bool = True) -> dict[str, ReplicatedTensor]:
        entries = {
            f"state {position}": ReplicatedTensor(torch.full((2,), number), "w", True, "Adam", of_torch)
            for position, number in enumerate(states)
        }
        return {**parameters(w=torch.ones(2)), **entries}

    assert compared(tensors(1.0), tensors(2.0)).ends
    for verdict in (
        compared(tensors(1.0, 3.0), tensors(2.0)),
        compared(tensors(1.0), tensors()),
        compared(tensors(), tensors(1.0)),
        compared(tensors(1.0, of_torch=False), tensors(2.0, of_torch=False)),
    ):
        assert not verdict.ends and verdict.uncompared_classes == {"Adam"}


def test_a_parameter_that_one_rank_trains_is_compared_and_one_that_none_trains_is_not() -> None:
    def tensors(number: float, is_trained: bool) -> dict[str, ReplicatedTensor]:
        return {"w": ReplicatedTensor(torch.full((2,), number), "w", is_trained)}

    assert compared(tensors(1.0, False), tensors(2.0, True)).ends
    assert not compared(tensors(1.0, False), tensors(2.0, False)).has_differences


@pytest.mark.parametrize("steps", [4, 28, 252])
def test_two_implementations_of_an_optimizer_differ_by_no_more_than_rounding_and_other_gradients_by_more(
    steps: int,
) -> None:
    """As on processors of different types: the same gradients, other orders and roundings of the update."""

    def trained(rate: float, seed: int = 0, **options: bool) -> dict[str, torch.Tensor]:
        parameter = torch.nn.Parameter(torch.linspace(-0.3, 0.3, 1000))
        optimizer = torch.optim.AdamW([parameter], lr=rate, **options)
        for step in range(steps):
            parameter.grad = 0.1 * torch.randn(1000, generator=torch.Generator().manual_seed(step + 1000 * seed))
            optimizer.step()
        return {"weight": parameter.detach(), **optimizer.state[parameter]}

    first, second = trained(1e-3, fused=True), trained(1e-3, foreach=False)
    for key, tensor in first.items():
        distance = float((tensor - second[key]).abs().max())
        assert distance <= allowed_distance(tensor.dtype, float(tensor.abs().max()), steps), key
    slow, other = trained(1e-5, foreach=False)["weight"], trained(1e-5, seed=1, foreach=False)["weight"]
    assert float((slow - other).abs().max()) > allowed_distance(slow.dtype, float(slow.abs().max()), steps)


def left_hook(rank: int, world: int) -> list[tuple[str, str, float]]:
    ddp = parallel()
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of((0, *HOOK[1:]), (8, *NATIVE[1:]), (16, *HOOK[1:]))
    compressor.attach(ddp, optimizer)
    run(compressor, plain_step(rank, ddp, optimizer), 24)
    return [(change.before, change.after, change.dropped_norm) for change in compressor.changes]


def test_residuals_that_a_change_of_mode_drops_are_in_its_record() -> None:
    for changes in processes(left_hook, 2):
        (*first, dropped), (*second, nothing) = changes
        assert (first, second) == (["hook", "native"], ["native", "hook"])
        assert dropped > 0
        assert nothing == 0
