# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""In hook and native mode ranks hold the same weights, or every rank says within some steps that they do not."""

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, ReplicasDifferError, Static, topk
from tests.distributed.training import batch, network, parallel
from tests.hsdp.training import WIDTH, dense, mesh_of, sharded
from tests.modes.scripted import APART, HOOK, NATIVE, Entry, Scripted, same, script
from tests.policies import adaptive
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
    switch = compressor._attachment.switch
    assert switch is not None
    return switch._replicas


def compressor_of(*entries: Entry, every: int | tuple[int, int] = 1) -> AdaptiveCompressor:
    return adaptive(
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
        ddp = parallel(network(2))
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
        ddp = parallel(network(2))
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
    module = network(2)
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
    ddp = parallel(network(2))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of((0, *APART[1:]), (11, *HOOK[1:]), every=(1, 5))
    compressor.attach(ddp, optimizer)
    step = plain_step(rank, ddp, optimizer)
    further_optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    def one_step(number: int) -> None:
        step(number)
        if number >= 3:
            further_optimizer.step()
        if number == 26 and rank == 1:
            next(ddp.parameters()).detach().add_(0.1)

    return run(compressor, one_step, 60)


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


def without_alarm(rank: int, world: int, in_all_modes: bool) -> dict[str, Outcome]:
    def zero_redundancy(entry: Entry, known: bool = True) -> Outcome:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import, and needed by this program only

        ddp = parallel(network(2))
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer if known else None)
        guard_of(compressor).add_optimizer(optimizer.optim)
        return run(compressor, plain_step(rank, ddp, optimizer), STEPS)

    def ignored_parameters(entry: Entry) -> Outcome:
        module = network(2)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [PLANTED_NAME, "4.bias"])
        ddp = parallel(module)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        return run(compressor, plain_step(rank, ddp, optimizer, weight), STEPS)

    def sharpness_aware(entry: Entry) -> Outcome:
        ddp = parallel(network(2))
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
        ddp = parallel(network(2))
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
        ddp = parallel(network(2))
        optimizer = ShardedMuon(ddp.parameters())
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        return run(compressor, plain_step(rank, ddp, optimizer), STEPS)

    def sharded_by_hand(entry: Entry) -> Outcome:
        """Ranks are the same only after the program has sent the parameters that one of them stepped."""
        ddp = parallel(network(2))
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
        ddp = parallel(network(2))
        optimizer = DifferentMoments(ddp.parameters(), lr=1e-3)
        compressor = compressor_of(entry)
        compressor.attach(ddp, optimizer)
        return run(compressor, plain_step(rank, ddp, optimizer, state, keeps_weights=True), 32)

    def unequal_accumulation(entry: Entry) -> Outcome:
        ddp = parallel(network(2))
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

    programs: dict[str, tuple[Callable[[Entry], Outcome], tuple[Entry, ...]]] = {
        "ZeRO": (zero_redundancy, (NATIVE,)),
        "ZeRO that attach did not get": (lambda entry: zero_redundancy(entry, known=False), (HOOK,)),
        "ignored parameters": (ignored_parameters, (HOOK,)),
        "SAM": (sharpness_aware, (NATIVE, HOOK)),  # how steps are counted depends on the mode
        "GradScaler": (skipping_scaler, (NATIVE, HOOK)),
        "sharded Muon": (sharded_muon, (NATIVE,)),
        "sharded by hand": (sharded_by_hand, (HOOK,)),
        "moments that differ": (different_moments, (NATIVE,)),
        "unequal accumulation": (unequal_accumulation, (NATIVE, HOOK)),
    }
    return {
        f"{name}, {entry[1]}": program(entry)
        for name, (program, entries) in programs.items()
        for entry in ((NATIVE, HOOK) if in_all_modes else entries)
    }


@pytest.mark.parametrize("in_all_modes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_may_differ_between_ranks_is_no_alarm(in_all_modes: bool) -> None:
    first, second = processes(without_alarm, 2, in_all_modes)
    assert first == second
    for name, outcome in first.items():
        assert (outcome.message, outcome.warned) == ("", []), name
        assert outcome.steps_when_equal == (12 if outcome.step == STEPS else 28), name


def toured(rank: int, world: int) -> tuple[Outcome, bool, list[tuple[str, str]]]:
    ddp = parallel(network(2))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of(
        (0, *NATIVE[1:]), (10, *HOOK[1:]), (16, *APART[1:]), (27, *HOOK[1:]), (38, *NATIVE[1:]), every=(1, 5)
    )
    compressor.attach(ddp, optimizer)
    outcome = run(compressor, plain_step(rank, ddp, optimizer), 56)
    return outcome, same(ddp), [(change.before, change.after) for change in compressor.changes]


def test_a_run_through_all_modes_has_no_alarm() -> None:
    for outcome, are_same, changes in processes(toured, 2):
        assert (outcome.step, outcome.message, outcome.warned, are_same) == (56, "", [], True)
        assert changes == [("native", "hook"), ("hook", "outer"), ("outer", "hook"), ("hook", "native")]
        assert outcome.steps_when_equal in (12, 28)  # since outer steps ended


# models in shards


def in_shards(rank: int, world: int) -> Outcome:
    """Train other shards on two ranks each; plant a difference in one replica's shard after the first check."""
    module = sharded(mesh_of(2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    compressor = dense()
    compressor.attach(module, optimizer)

    def one_step(step: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))
        (module(x) - x.roll(1, 1)).square().mean().backward()
        optimizer.step()
        if step == PLANTED and rank == 3:
            dict(module.named_parameters())["1.first.weight"].to_local().detach()[0, 0] += 0.01  # type: ignore[attr-defined]

    return run(compressor, one_step, STEPS)


def test_other_shards_are_no_alarm_and_a_difference_in_the_shards_of_a_replica_ends_the_run_on_all_ranks() -> None:
    for rank, outcome in enumerate(processes(in_shards, 4)):
        assert (outcome.step, outcome.warned, outcome.steps_when_equal) == (FOUND, [], 4)
        if rank % 2:  # ranks 1 and 3 hold the same shards
            assert "parameter 1.first.weight on replica 1 differs from that on replica 0 by up to" in outcome.message
        else:
            assert "ranks 1, 3 hold the same shards, but not the same weights" in outcome.message


# residuals


def left_hook(rank: int, world: int) -> list[tuple[str, str, float]]:
    ddp = parallel(network(2))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    compressor = compressor_of((0, *HOOK[1:]), (5, *NATIVE[1:]), (10, *HOOK[1:]))
    compressor.attach(ddp, optimizer)
    run(compressor, plain_step(rank, ddp, optimizer), 18)
    return [(change.before, change.after, change.dropped_norm) for change in compressor.changes]


def test_residuals_that_a_change_of_mode_drops_are_in_its_record() -> None:
    for changes in processes(left_hook, 2):
        (*first, dropped), (*second, nothing) = changes
        assert (first, second) == (["hook", "native"], ["native", "hook"])
        assert dropped > 0
        assert nothing == 0
