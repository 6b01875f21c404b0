# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The engine and its executors: gradients go in by name, over a network or in memory, seen by the host or by masks."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, Goodput, GraVAC, SettingsError, Static, quantize, topk
from gravac.averaging.average import Averager
from gravac.averaging.plan import Piece
from gravac.averaging.tensors import flat
from gravac.candidate import Candidate
from gravac.compressors import Compressor, ladder, powersgd, topkc
from gravac.controllers.base import Decision
from gravac.engine import coalescing
from gravac.engine.engine import Engine
from gravac.exchange.lockstep import Lockstep, LockstepExecutor, MaskedLockstepExecutor
from tests.distributed.training import batch, network, parallel, sgd, train, weights
from tests.engine.adapter import Averaged, over_network
from tests.policies import adaptive
from tests.ranks import processes

Losses = list[float]


def loss_of(module: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(module(x), y)


STEPS, LAYERS = 6, 2

TRAINED: dict[str, tuple[Compressor, float]] = {
    "topk": (topk, 10),
    "quantize": (quantize(2), 16),
    "powersgd": (powersgd, 8),
    "dense": (topk, 1),
}
"""Base and CF of runs that are compared."""


def by_adapter(rank: int, base: Compressor, cf: float) -> tuple[torch.Tensor, int]:
    """A module without DDP, its weights after some steps over gloo."""
    module = network(LAYERS)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    with AdaptiveCompressor(base, controller=Static(cf=cf)) as compressor:
        averaged = over_network(module, compressor)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(module, rank, step).backward()
            averaged.hand_over()
            averaged.wait()
            optimizer.step()
        made = int(compressor.state_dict()["step"])
    return flattened(module), made


def by_ddp(rank: int, base: Compressor, cf: float) -> torch.Tensor:
    ddp = parallel(network(LAYERS))
    with AdaptiveCompressor(base, controller=Static(cf=cf)) as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(STEPS))
    return weights(ddp)


class OverGloo(NamedTuple):
    """A rank's weights from the adapter and from DDP, and the number of steps that the adapter's compressor made."""

    weights: torch.Tensor
    steps: int
    of_ddp: torch.Tensor


def in_both_ways(rank: int, world: int) -> dict[str, OverGloo]:
    return {name: OverGloo(*by_adapter(rank, *run), by_ddp(rank, *run)) for name, run in TRAINED.items()}


@functools.cache
def over_gloo() -> list[dict[str, OverGloo]]:
    return processes(in_both_ways, 2)


@pytest.mark.parametrize("name", ["topk", "quantize", "dense"])
def test_a_short_adapter_trains_as_ddp_does(name: str) -> None:
    one, other = (of_rank[name] for of_rank in over_gloo())
    assert torch.equal(one.weights, other.weights)
    assert one.steps == STEPS
    assert torch.equal(one.weights, one.of_ddp)  # two ranks: sums do not depend on the layout


def test_the_adapter_is_short() -> None:
    lines = Path(__file__).with_name("adapter.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 60


def in_memory(
    ranks: int, steps: int, *, host_looks: bool = True, poison: int | None = None, **settings: Any
) -> tuple[list[torch.nn.Module], list[AdaptiveCompressor], list[list[torch.Tensor]]]:
    """Modules of all ranks trained in one process; with the gradients that each step applied on rank 0."""
    lockstep = Lockstep(ranks, host_looks=host_looks, seconds=0.001)
    modules = [network(LAYERS) for _ in range(ranks)]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9) for module in modules]
    compressors = [adaptive(**settings) for _ in range(ranks)]
    averaged = [
        Averaged(module, lambda known, c=compressor, e=executor: c.attach_parameters(known, executor=e))  # type: ignore[misc]
        for module, compressor, executor in zip(modules, compressors, lockstep.executors, strict=True)
    ]
    applied = []
    for step in range(steps):
        for rank, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = loss_of(module, rank, step)
            (loss * float("inf") if step == poison and rank == ranks - 1 else loss).backward()
            averaged[rank].hand_over()
        averaged[0].wait()
        applied.append([p.grad.clone() for p in modules[0].parameters() if p.grad is not None])
        for optimizer in optimizers:
            if step != poison:
                optimizer.step()
    return modules, compressors, applied


def flattened(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("name", ["topk", "quantize", "powersgd"])
def test_ranks_in_memory_make_the_same_steps_as_over_a_network(name: str) -> None:
    base, cf = TRAINED[name]
    modules, compressors, _ = in_memory(2, STEPS, base=base, controller=Static(cf=cf))
    assert torch.equal(flattened(modules[0]), flattened(modules[1]))
    assert torch.equal(flattened(modules[0]), over_gloo()[0][name].weights)
    assert compressors[0].wire_ratio == compressors[1].wire_ratio


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("cf", [1, 10])
def test_large_groups_go_in_parts_where_they_are_compressed(
    cf: int, host_looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hand_over(self: Averaged) -> None:
        self.engine.begin()
        self.handle = self.engine.ready([(name, p.grad) for name, p in self.parameters.items() if p.grad is not None])
        self.engine.end()

    monkeypatch.setattr(Averaged, "hand_over", hand_over)
    settings = {"base": topk, "controller": Static(cf=cf)}
    whole, one, _ = in_memory(2, 4, host_looks=host_looks, **settings)
    monkeypatch.setattr(coalescing, "MAX_SEGMENT_ELEMENTS_ON_CPU", 5000)
    monkeypatch.setattr(coalescing, "MAX_CODING_BYTES", coalescing.CODING_BYTES_PER_ELEMENT_ON_CPU * 10_000)
    parts, other, _ = in_memory(2, 4, host_looks=host_looks, **settings)
    assert torch.equal(flattened(whole[0]), flattened(parts[0]))
    calls, more = (sum(compressor.ledger.calls.values()) for compressor in (one[0], other[0]))
    assert more == calls if cf == 1 else more > calls


@pytest.mark.parametrize("base", [topk, topkc, quantize(4), powersgd, ladder], ids=str)
@pytest.mark.parametrize("safe", [False, True])
def test_masks_give_the_bits_that_a_host_gives_that_looks(
    base: Compressor, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockstepExecutor, "latency", MaskedLockstepExecutor.latency)
    settings = {"base": base, "cf_range": (2, 1000), "controller": GraVAC(window=3, warmup=3), "overflow_safety": safe}
    (seen, told, _), (masked, hidden, _) = (in_memory(3, 14, host_looks=looks, **settings) for looks in (True, False))
    assert torch.equal(flattened(seen[0]), flattened(masked[0]))
    for one, other in zip(told, hidden, strict=True):
        # the last step's measurement is looked at when the next one begins
        mine, theirs = ([str(record) for record in c.history if record.step < 14] for c in (one, other))
        assert mine == theirs
        mine, theirs = one.state_dict()["residual"], other.state_dict()["residual"]
        assert set(mine) == set(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


class SomeSteps(Static):
    """Compresses for some steps, and sends all whole from then on."""

    latency: int = 2

    def observe(self, state: Any, measurement: Any) -> Any:
        state, decision = super().observe(state, measurement)
        over = measurement.step + self.latency > 4
        return state, (Decision(Candidate("hook", "dense", 1.0), reason="whole") if over else decision)

    def at_latency(self, latency: int) -> "SomeSteps":
        return self(latency=latency)


@pytest.mark.parametrize("host_looks", [True, False])
def test_what_was_kept_is_let_go_of_when_all_of_it_was_sent(host_looks: bool) -> None:
    settings = {"base": topk, "controller": SomeSteps(cf=10), "cf_range": (2, 100)}
    _, before, _ = in_memory(2, 4, host_looks=host_looks, **settings)
    assert before[0].state_dict()["residual"]
    _, compressors, _ = in_memory(2, 60, host_looks=host_looks, **settings)
    for one in compressors:
        assert not one._engine.averager.residuals.by_name  # and so a step is what plain DDP's is


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("host_looks", [True, False])
def test_a_non_finite_gradient_gives_nan_everywhere_and_moves_nothing(host_looks: bool, safe: bool) -> None:
    settings = {"base": topk, "controller": Static(cf=10), "overflow_safety": safe}
    clean, before, _ = in_memory(2, 5, host_looks=host_looks, **settings)
    poisoned, after, applied = in_memory(2, 6, host_looks=host_looks, poison=5, **settings)
    assert all(bool(g.isnan().all()) for g in applied[5])
    for one, other in zip(before, after, strict=True):
        mine, theirs = one.state_dict()["residual"], other.state_dict()["residual"]
        # a host that looks adds to a residual in place, and takes that back; otherwise the old one is still there
        off = 0.0 if safe or not host_looks else 1e-6
        assert mine and all(torch.allclose(mine[name], theirs[name], rtol=0, atol=off) for name in mine)
    assert torch.equal(flattened(clean[0]), flattened(poisoned[0]))


@pytest.mark.parametrize(("host_looks", "latency"), [(True, 2), (False, 3)])
def test_a_decision_holds_after_the_executors_latency(host_looks: bool, latency: int) -> None:
    ran: list[tuple[int, float]] = []

    class Counting(Goodput):
        """Dense, then 16 bit from the first observation on."""

        def observe(self, state: Any, measurement: Any) -> Any:
            ran.append((measurement.step, measurement.candidate.cf))
            state, decision = super().observe(state, measurement)
            half = next(c.candidate for c in state.forecasts if c.candidate.cf == 2)
            return state, type(decision)(half, reason="16 bit", summary=None)

        def start(self, forecasts: Any) -> Any:
            state, decision = super().start(forecasts)
            return state, type(decision)(forecasts[0].candidate, reason="dense", summary=None)

    _, compressors, _ = in_memory(2, 10, host_looks=host_looks, base=topk, controller=Counting())
    measured = ran[: len(ran) // 2] if ran[0] != ran[1] else ran[::2]
    decided = 10 - latency + host_looks  # a host that must not look decides when the next step begins
    assert [step for step, _ in measured] == list(range(decided))
    assert [cf for _, cf in measured] == [1.0] * latency + [2.0] * (decided - latency)
    state = compressors[0].state_dict()
    assert len(state["pending"]) == 10 - decided


def apart(rank: int, world: int) -> float:
    """Averages over pairs, agrees over all four: HSDP's replicas."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    everyone = dist.new_group([0, 1, 2, 3])
    gradient = torch.full((64, 64), float(rank))
    with AdaptiveCompressor(topk, controller=Static(cf=1)) as compressor:
        engine = compressor.attach_parameters({"w": gradient}, group=pairs[rank // 2], agree_group=everyone)  # type: ignore[arg-type]
        for _ in range(3):
            gradient.fill_(rank)
            engine.begin()
            handle = engine.ready([("w", gradient)])
            engine.end()
            handle.wait()
            assert compressor._engine.executor.agree_world == 4
        return float(gradient[0, 0])


def test_replicas_average_over_one_group_and_agree_over_another() -> None:
    assert processes(apart, 4) == [0.5, 0.5, 2.5, 2.5]


def test_a_tensor_with_gaps_is_refused_by_name_and_any_dense_one_is_taken() -> None:
    with pytest.raises(ValueError, match=r"w: a tensor of strides .* has gaps in memory; pass tensor.contiguous\(\)"):
        flat("w", torch.randn(4, 4)[:, :2])
    turned = torch.randn(3, 4).t()
    assert flat("w", turned).data_ptr() == turned.data_ptr()
    assert torch.equal(flat("w", turned), turned.t().reshape(-1))


def test_a_failure_reaches_every_handle_and_every_later_one() -> None:
    lockstep = Lockstep(2)
    engines = []
    for executor in lockstep.executors:
        compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
        engines.append(compressor.attach_parameters({"w": torch.ones(64, 64)}, executor=executor))
    handles, told = [], []
    for rank, engine in enumerate(engines):
        engine.begin()
        handles.append(engine.submit([Piece("w", torch.ones(4096 + rank), (64, 64))]))
        handles[-1].then(told.append)
        engine.end()
    for handle in handles:
        with pytest.raises(ValueError, match="ranks ask for different collectives"):
            handle.wait()
    assert len(told) == 2 and all(isinstance(failure, ValueError) for failure in told)
    late: list[Any] = []
    handles[0].then(late.append)
    assert len(late) == 1


@pytest.mark.parametrize("host_looks", [True, False])
def test_a_step_that_was_begun_and_given_up_on_all_ranks_only_makes_the_next_one_longer(host_looks: bool) -> None:
    lockstep = Lockstep(2, host_looks=host_looks, seconds=0.001)
    gradients = [torch.randn(40, 40) for _ in range(2)]
    engines = [
        AdaptiveCompressor(topk, controller=Static(cf=10)).attach_parameters({"w": gradient}, executor=executor)
        for gradient, executor in zip(gradients, lockstep.executors, strict=True)
    ]
    for ends in (True, True, False, True, True):
        for engine, gradient in zip(engines, gradients, strict=True):
            engine.begin()
            handle = engine.ready([("w", gradient)])
            if ends:
                engine.end()
        handle.wait()
    assert [engine.settled.step for engine in engines] == [4, 4]
    assert torch.equal(*gradients)


def test_a_loop_of_ones_own_makes_no_outer_steps() -> None:
    with pytest.raises(SettingsError, match=r"every: \(10, 10\), but a loop of your own averages"):
        AdaptiveCompressor(topk, every=10).attach_parameters({"w": torch.ones(4, 4)})


def test_who_waits_within_a_step_gets_the_mean_of_a_group_that_waited_for_further_ones() -> None:
    (executor,) = Lockstep(1).executors
    small, large = torch.randn(64, 64), torch.randn(512, 512)
    engine = AdaptiveCompressor(topk, controller=Static(cf=10)).attach_parameters(
        {"small": small, "large": large}, executor=executor
    )
    before = small.clone()
    engine.begin()
    engine.ready([("small", small)]).wait()
    engine.ready([("large", large)])
    engine.end()
    executor.drain()
    assert torch.equal(engine.residuals()["small"], (before - small).view(-1))
    assert before.count_nonzero() > small.count_nonzero() > 0


def test_what_was_restored_goes_to_the_gradients_device_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[torch.device] = []
    monkeypatch.setattr(Averager, "to_device", lambda self, device: moved.append(device))
    (executor,) = Lockstep(1).executors
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
    engine = compressor.attach_parameters({"w": torch.ones(64, 64, device="meta")}, executor=executor)
    for _ in range(2):
        engine.begin()
        executor.order()
    assert moved == [torch.device("meta")]


def of_one_rank() -> tuple[AdaptiveCompressor, Engine]:
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
    (executor,) = Lockstep(1).executors
    return compressor, compressor.attach_parameters({"0.weight": torch.ones(64, 64)}, executor=executor)


def test_a_parameter_without_a_gradient_is_refused_by_name() -> None:
    _, engine = of_one_rank()
    engine.begin()
    with pytest.raises(TypeError, match=r"0.weight has no gradient \(None\); leave it out, on all ranks"):
        engine.ready([("0.weight", None)])  # type: ignore[list-item]


def test_gradients_of_a_step_that_has_not_begun_are_refused() -> None:
    _, engine = of_one_rank()
    gradient = torch.ones(64, 64)
    with pytest.raises(RuntimeError, match=r"end: no step has begun; call engine.begin\(\) first"):
        engine.end()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"ready: no step has begun; call engine.begin\(\) first"):
            engine.ready([("0.weight", gradient)])
        engine.begin()
        engine.ready([("0.weight", gradient)])
        engine.end()


def test_a_closed_engine_makes_no_further_step() -> None:
    compressor, engine = of_one_rank()
    compressor.close()
    calls: tuple[Callable[[], object], ...] = (
        engine.begin,
        lambda: engine.ready([("0.weight", torch.ones(64, 64))]),
        engine.end,
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="the compressor is closed; make a new AdaptiveCompressor"):
            call()


def test_detach_has_nothing_to_undo_after_attach_parameters() -> None:
    compressor, _ = of_one_rank()
    with pytest.raises(RuntimeError, match=r"detach: attach_parameters connects nothing .*; call close\(\)"):
        compressor.detach()


def test_parameters_that_are_no_dict_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"parameters: give a dict, such as dict\(model.named_parameters\(\)\) \(got ge"
    ):
        AdaptiveCompressor(topk).attach_parameters(torch.nn.Linear(4, 4).named_parameters())  # type: ignore[arg-type]


@pytest.mark.parametrize("cf", [1, 10])
def test_the_order_of_names_within_a_call_does_not_matter(cf: int) -> None:
    tensors = [
        {name: torch.full((64, 64), start + rank) for name, start in (("a", 0.0), ("b", 10.0))} for rank in (0, 2)
    ]
    for rank, (executor, own) in enumerate(zip(Lockstep(2).executors, tensors, strict=True)):
        compressor = AdaptiveCompressor(topk, controller=Static(cf=cf), error_feedback=0)
        engine = compressor.attach_parameters(own, executor=executor)
        engine.begin()
        handle = engine.ready([*own.items()] if rank else [*own.items()][::-1])
        engine.end()
    handle.wait()
    for own in tensors:
        assert own["a"].max() == 1 and own["b"].max() == 11
