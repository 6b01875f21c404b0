# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The whole thing on real gloo: replicas, decisions, ledger, resume, errors."""

import functools
import io
import itertools
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, GraVAC, Static, dense, merge_states, randomk, topk
from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast
from gravac.compressors import Compressor, artopk, quantize, topkc
from gravac.exchange.fifo import Fifo
from tests import flight_recorder
from tests.distributed.training import (
    FEATURES,
    TwoRounds,
    batch,
    jitter,
    network,
    parallel,
    sgd,
    telling,
    train,
    weights,
)
from tests.ranks import processes, threads

BASES = {
    "topk": topk,
    "topk half": topk(values="float16"),
    "randomk": randomk,
    "dense half": dense(dtype="float16"),
    "two rounds": TwoRounds(),
}


def quick(base: Compressor, **options: Any) -> AdaptiveCompressor:
    """One that decides every few steps, and exchanges by the hook in each."""
    if base.name == "dense":
        return AdaptiveCompressor(base, cf_range=(1, 2), native=False, **options)
    if base.name == "quantize":
        return AdaptiveCompressor(base, cf_range=(1, 32), controller=Static(cf=16), **options)
    decides = GraVAC(window=4, warmup=2, shadow_every=3, dwell=1)
    return AdaptiveCompressor(base, controller=decides, native=False, **options)


STEPS_TO_TWO_DECISIONS, STEPS_TO_THREE = 10, 14
"""Steps of ``quick`` within which GraVAC decides at the start, and once or twice more."""


def replicas(rank: int, world: int, base: Compressor, steps: int, most: float) -> tuple[torch.Tensor, list[Any], float]:
    ddp = parallel(network(5))
    optimizer = sgd(ddp)
    with quick(base) as compressor:
        compressor.attach(ddp, optimizer)
        jitter(compressor, rank, most)
        loss = train(ddp, optimizer, rank, range(steps), lambda step: time.sleep(most * ((rank + step) % 3) / 3))
        compressor.state_dict()
        assert len(compressor._attachment.source.layout.fixed_groups) >= 5
        return weights(ddp), compressor.history, loss


def replicas_of_all_bases(rank: int, world: int) -> dict[str, tuple[torch.Tensor, list[Any], float]]:
    return {
        name: replicas(rank, world, base, STEPS_TO_THREE if name == "topk" else STEPS_TO_TWO_DECISIONS, 0.01)
        for name, base in BASES.items()
    }


def test_four_ranks_with_random_delays_stay_bitwise_equal() -> None:
    first, *others = processes(replicas_of_all_bases, 4)
    for name, (trained, history, loss) in first.items():
        assert all(torch.equal(trained, other[name][0]) for other in others), name
        assert all(history == other[name][1] for other in others), f"{name}: histories differ"
        assert len(history) >= (3 if name == "topk" else 2), name
        assert loss < 2.4, name


@pytest.mark.parametrize("base", [topk, pytest.param(randomk, marks=pytest.mark.long)], ids=repr)
def test_sixteen_ranks_stay_bitwise_equal(base: Compressor) -> None:
    ran = threads(replicas, 16, base, STEPS_TO_THREE, 0.001)
    assert all(torch.equal(ran[0][0], other[0]) for other in ran)
    assert all(ran[0][1] == other[1] for other in ran)


def ticking(each: float) -> Any:
    """A clock that goes on by so many seconds whenever it is looked at."""
    looks = itertools.count()
    return SimpleNamespace(perf_counter=lambda: each * next(looks))


def decide(rank: int, world: int) -> list[Any]:
    clock = ticking(0.02 if rank == 1 else 0.005)
    Fifo.mark = lambda self: float(clock.perf_counter())  # type: ignore[method-assign]
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    with quick(topk) as compressor:
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, range(30))
        return [compressor.history, compressor.cf]


def test_all_ranks_decide_the_same_with_other_data_and_one_slow() -> None:
    first, *others = processes(decide, 3)
    assert len(first[0]) >= 5
    assert any(record.changed for record in first[0])
    assert all(record.reason for record in first[0])
    assert all(other == first for other in others)


SENDING: dict[str, tuple[Compressor, bool]] = {
    "topk": (topk, False),
    "topk between pairs": (topk, True),
    "randomk": (randomk, False),
    "dense": (dense(dtype="bfloat16"), False),
    "topkc": (topkc, False),
    "artopk": (artopk, False),
    "quantize": (quantize(2), False),
}
"""Compressors whose rounds differ, and whether this rank's top-k goes to each other rank by itself."""


class Booked(NamedTuple):
    """Bytes of a rank, as the flight recorder and the ledger count them."""

    payload_seen: int
    wire_seen: int
    payload_booked: int
    wire_booked: int


def booked(rank: int, world: int, base: Compressor, pairwise: bool) -> Booked:
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    compressor = quick(base)
    compressor.attach(ddp, optimizer)
    at_attach = flight_recorder.newest()
    compressor._engine.executor.transport._pairwise = pairwise
    send, swapped = dist.ProcessGroup.send, []

    def counting(group: dist.ProcessGroup, tensors: list[torch.Tensor], *args: Any) -> Any:
        swapped.extend(tensor.numel() * tensor.element_size() for tensor in tensors)
        return send(group, tensors, *args)

    with mock.patch.object(dist.ProcessGroup, "send", counting):
        train(ddp, optimizer, rank, range(10))
        compressor.state_dict()
    kinds = {"gather": AllGather, "all_to_all": AllToAll, "broadcast": Broadcast, "all_reduce": AllReduce}
    seen = expected = 0
    for collective in flight_recorder.collectives_of(compressor._engine.executor.transport.group, at_attach):
        seen += collective.input_bytes
        (kind,) = (kind for word, kind in kinds.items() if word in collective.name)
        expected += kind.wire_bytes(collective.input_bytes, world)
    # torch's recorder does not see point-to-point messages: one to each of the others is an all-gather
    seen += sum(swapped) // (world - 1)
    expected += sum(swapped)
    assert bool(swapped) == (pairwise and base.name == "topk")
    compressor.close()  # what was counted stays
    return Booked(seen, expected, compressor.ledger.payload_bytes, compressor.ledger.wire_bytes)


def booked_in_turn(rank: int, world: int) -> dict[str, Booked]:
    return {name: booked(rank, world, base, pairwise) for name, (base, pairwise) in SENDING.items()}


@pytest.mark.skipif(not flight_recorder.IS_THERE, reason="this torch does not record what gloo sends")
def test_the_ledger_says_what_was_sent() -> None:
    """By torch's flight recorder; point-to-point messages are counted where they are posted."""
    for of_rank in processes(booked_in_turn, 3):
        for name, counted in of_rank.items():
            assert counted.payload_seen > 0, name
            assert counted.payload_booked == counted.payload_seen, name
            assert counted.wire_booked == counted.wire_seen, name


def resume(rank: int, world: int, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    def fresh() -> tuple[DistributedDataParallel, torch.optim.Optimizer, AdaptiveCompressor]:
        ddp = parallel(network(2), **options)
        optimizer = sgd(ddp)
        # decisions that depend on measured times cannot repeat
        compressor = AdaptiveCompressor(topk, controller=Static(cf=20))
        return ddp, optimizer, compressor

    ddp, optimizer, compressor = fresh()
    compressor.attach(ddp, optimizer)
    train(ddp, optimizer, rank, range(3))
    saved = [ddp.module.state_dict(), optimizer.state_dict(), compressor.state_dict()]
    file = io.BytesIO()
    torch.save(saved, file)
    train(ddp, optimizer, rank, range(3, 6))
    compressor.close()
    model, moments, state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    again, optimizer, compressor = fresh()
    again.module.load_state_dict(model)
    optimizer.load_state_dict(moments)
    compressor.load_state_dict(state)
    compressor.attach(again, optimizer)
    train(again, optimizer, rank, range(3, 6))
    compressor.close()
    return weights(ddp), weights(again)


RESUMED: list[dict[str, Any]] = [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}]


def resume_all(rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [resume(rank, world, options) for options in RESUMED]


def test_resume_is_bit_for_bit_at_same_world_size() -> None:
    for of_rank in processes(resume_all, 2):
        for options, (straight, resumed) in zip(RESUMED, of_rank, strict=True):
            assert torch.equal(straight, resumed), options


def save(rank: int, world: int) -> dict[str, Any]:
    ddp = parallel(network(2))
    with AdaptiveCompressor(topk, controller=Static(cf=50)) as compressor:
        compressor.attach(ddp)
        train(ddp, sgd(ddp), rank, range(3))
        return compressor.state_dict()


def load_merged(rank: int, world: int, merged: dict[str, Any]) -> dict[str, torch.Tensor]:
    ddp = parallel(network(2))
    with AdaptiveCompressor(topk, controller=Static(cf=50)) as compressor:
        compressor.attach(ddp)
        compressor.load_state_dict(merged)
        kept = {name: tensor.clone() for name, tensor in compressor.state_dict()["residual"].items()}
        train(ddp, sgd(ddp), rank, range(2))
        return kept


def test_another_world_size_conserves_the_mean_residual() -> None:
    states = processes(save, 3)
    merged = merge_states(states)
    name = "0.weight"
    mean = torch.stack([state["residual"][name] for state in states]).mean(0)
    for kept in processes(load_merged, 2, merged):
        assert torch.allclose(kept[name], mean, atol=1e-7)


def poison(rank: int, world: int) -> list[bool]:
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    seen = []
    with AdaptiveCompressor(topk, controller=Static(cf=10)) as compressor:
        compressor.attach(ddp, optimizer, scaler)
        for step in range(5):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp(x), y)
            if step == 3 and rank == 1:
                loss = loss * float("inf")
            before = {k: v.clone() for k, v in compressor.state_dict()["residual"].items()}
            scaler.scale(loss).backward()
            finite = all(bool(p.grad.isfinite().all()) for p in ddp.parameters() if p.grad is not None)
            if step == 3:
                after = compressor.state_dict()["residual"]
                seen.append(all(torch.equal(before[k], after[k]) for k in before))
            seen.append(finite)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0
    return seen


def test_overflow_on_one_rank_skips_the_step_everywhere_and_moves_no_residual() -> None:
    for seen in processes(poison, 2):
        assert seen == [True, True, True, True, False, True]


def mistakes(rank: int, world: int) -> list[str]:
    said: list[str] = []
    says = telling(said)
    ddp = parallel()
    compressor = AdaptiveCompressor(topk, native=False)
    says(lambda: compressor.attach("network"))  # type: ignore[arg-type]
    compressor.attach(ddp)
    says(lambda: compressor.attach(parallel()))
    says(lambda: AdaptiveCompressor(topk).attach(ddp))
    says(lambda: compressor.hook(None, (torch.ones(1), torch.ones(1))))  # type: ignore[arg-type]
    table = DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    AdaptiveCompressor(topk).attach(table)
    says(lambda: table(torch.tensor([1, 2])).sum().backward())
    train(ddp, sgd(ddp), rank, range(3))  # mistakes broke nothing
    compressor.close()
    compressor.close()
    says(lambda: train(ddp, sgd(ddp), rank, range(1)))
    says(lambda: compressor.attach(parallel()))
    return said


def test_mistakes_get_errors_that_say_what_to_do() -> None:
    for said in processes(mistakes, 2):
        plain, twice, taken, compiled, sparse, closed, reused = said
        assert plain == "TypeError: module: attach needs a torch.nn.Module, got str"
        assert "attached to a model already; call its detach() first, or make another" in twice
        assert "has a communication hook already" in taken
        assert "python reducer" in compiled
        assert "optimize_ddp" in compiled
        assert "sparse=False" in sparse
        assert "is closed" in closed
        assert "make a new AdaptiveCompressor" in reused


def hooked(rank: int, world: int) -> tuple[torch.Tensor, set[str]]:
    ddp = parallel(network(2))
    with AdaptiveCompressor(topk, controller=Static(cf=10)) as compressor:
        compressor.bind(ddp)
        ddp.register_comm_hook(None, compressor.hook)
        train(ddp, sgd(ddp), rank, range(5))
        return weights(ddp), set(compressor.state_dict()["residual"])


def test_the_hook_alone_works_and_bind_gives_names() -> None:
    (one, names), (other, _) = processes(hooked, 2)
    assert torch.equal(one, other)
    assert "0.weight" in names


class Branches(torch.nn.Module):
    """Some parameters are not used in every step, some lie channels-last, one is half precision."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last)
        self.used = torch.nn.Linear(FEATURES, FEATURES)
        self.odd = torch.nn.Linear(FEATURES, FEATURES)
        self.low = torch.nn.Linear(FEATURES, FEATURES, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, odd: bool) -> torch.Tensor:
        y = self.low(self.used(x).bfloat16()).float()
        picture = self.conv(x[:1, :64].view(1, 1, 8, 8).expand(1, 16, 8, 8)).mean()
        return (self.odd(y) if odd else y).sum() + picture


def branches(rank: int, world: int) -> list[torch.Tensor]:
    got = []
    for controller in (Static(cf=1), Static(cf=4)):
        ddp = DistributedDataParallel(Branches(), find_unused_parameters=True, bucket_cap_mb=0.02)
        plain = DistributedDataParallel(Branches(), find_unused_parameters=True, bucket_cap_mb=0.02)
        with AdaptiveCompressor(topk, cf_range=(1, 1000), controller=controller) as compressor:
            compressor.attach(ddp)
            for step in range(4):
                x, _ = batch(rank, step)
                for model in (ddp, plain):
                    model.zero_grad()
                    model(x, step % 2 == 0).backward()
                if controller.cf == 1:
                    for (name, p), q in zip(ddp.named_parameters(), plain.parameters(), strict=True):
                        if q.grad is not None and step % 2 == 0:
                            assert p.grad is not None
                            tolerance = 1e-2 if p.dtype == torch.bfloat16 else 1e-5
                            assert torch.allclose(p.grad, q.grad, rtol=tolerance, atol=tolerance), name
        got.append(torch.cat([p.grad.float().flatten() for p in ddp.parameters() if p.grad is not None]))
    return got


def test_unused_channels_last_and_mixed_precision_parameters() -> None:
    one, other = processes(branches, 2)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def accumulate(rank: int, world: int) -> tuple[torch.Tensor, int]:
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    with AdaptiveCompressor(topk, controller=Static(cf=10)) as compressor:
        compressor.attach(ddp)
        for step in range(4):
            with ddp.no_sync():
                ddp(batch(rank, 2 * step)[0]).mean().backward()
            ddp(batch(rank, 2 * step + 1)[0]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(ddp), int(compressor.state_dict()["step"])


def test_accumulating_under_no_sync_is_one_step() -> None:
    (one, steps), (other, _) = processes(accumulate, 2)
    assert torch.equal(one, other)
    assert steps == 4


def uneven(rank: int) -> bool:
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    with AdaptiveCompressor(topk, controller=Static(cf=10)) as compressor:
        compressor.attach(ddp)
        with ddp.join():
            train(ddp, optimizer, rank, range(3 + 2 * rank))
        return bool(weights(ddp).isfinite().all())


def divided(rank: int, initial: bool) -> list[float]:
    """Where weights lie apart from native DDP's, steps later in which ranks run out of inputs one after the other."""
    apart = []
    native, ours = parallel(network(2)), parallel(network(2))
    with AdaptiveCompressor(topk, (1, 1000), controller=Static(cf=1)) as compressor:
        compressor.attach(ours)
        for ddp in (native, ours):
            with ddp.join(divide_by_initial_world_size=initial):
                train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), rank, range(2 + 2 * rank))
        apart.append(float((weights(native) - weights(ours)).norm() / weights(native).norm()))
        for ddp in (native, ours):  # after join all take part again
            train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.05), rank, range(20, 22))
        apart.append(float((weights(native) - weights(ours)).norm() / weights(native).norm()))
    return apart


def lone(rank: int, world: int, initial: bool) -> torch.Tensor:
    """The gradient of a step for which only the last rank has inputs, top-k at CF 2."""
    ddp = parallel(network(2))
    with AdaptiveCompressor(topk, controller=Static(cf=2)) as compressor:
        compressor.attach(ddp)
        with ddp.join(divide_by_initial_world_size=initial):
            if rank == world - 1:
                ddp(batch(rank, 0)[0]).square().mean().backward()
    return (
        torch.cat([p.grad.flatten() for p in ddp.parameters() if p.grad is not None])
        if rank == world - 1
        else weights(ddp)
    )


class Joined(NamedTuple):
    """What a rank saw of steps under ``join``; of pairs, the first is divided by the initial number of ranks."""

    finite: bool
    apart: tuple[list[float], list[float]]
    alone: tuple[torch.Tensor, torch.Tensor]


def joining(rank: int, world: int) -> Joined:
    return Joined(
        uneven(rank),
        (divided(rank, True), divided(rank, False)),
        (lone(rank, world, True), lone(rank, world, False)),
    )


@functools.cache
def joined() -> list[Joined]:
    return processes(joining, 3)


def test_uneven_inputs_with_join() -> None:
    assert [of_rank.finite for of_rank in joined()] == [True] * 3


@pytest.mark.parametrize("initial", [True, False])
def test_join_divides_by_the_ranks_that_native_ddp_divides_by(initial: bool) -> None:
    for of_rank in joined():
        assert max(of_rank.apart[0 if initial else 1]) < 1e-6


def test_a_compressed_step_of_one_rank_is_divided_by_one_when_asked() -> None:
    over_all, over_one = joined()[-1].alone
    assert torch.allclose(3 * over_all, over_one, rtol=1e-5)
    assert float(over_one.norm()) > 0


def failing_sink(rank: int, world: int) -> tuple[int, torch.Tensor]:
    records: list[Any] = []

    def breaks(record: Any) -> None:
        raise OSError("disk full")

    ddp = parallel(network(2))
    with pytest.warns(UserWarning, match="disk full") if rank == 0 else nullcontext():
        with AdaptiveCompressor(topk, controller=Static(cf=10), sinks=[breaks, records.append]) as compressor:
            compressor.attach(ddp)
            train(ddp, sgd(ddp), rank, range(5))
        return len(records), weights(ddp)


def test_a_sink_that_fails_is_dropped_and_training_goes_on() -> None:
    (told, one), (silent, other) = processes(failing_sink, 2)
    assert told == 1 + 1 + 4 + 1  # the run, its first decision, four agreed steps, the end
    assert silent == 0
    assert torch.equal(one, other)


def fp16_model(rank: int, world: int) -> list[Any]:
    ddp = parallel(network().half())
    with AdaptiveCompressor(topk, controller=Static(cf=10)) as compressor:
        compressor.attach(ddp)
        for step in range(3):
            ddp(batch(rank, step)[0].half()).float().mean().backward()
        state = compressor.state_dict()
        safe = compressor._engine.averager.residuals.wait_for_step
        return [safe, state["residual"]["0.weight"].dtype == torch.float32, compressor.wire_ratio]


def test_float16_gradients_switch_overflow_safety_on_and_keep_residuals_in_float32() -> None:
    for safe, wide, ratio in processes(fp16_model, 2):
        assert safe
        assert wide
        # 2-byte values and 2-byte indices of a tenth, against 4 bytes of everything; biases dense in 2 bytes
        assert 8 < ratio < 10


def attached_with_foreign_optimizers(rank: int, world: int) -> None:
    ddp, compressor = parallel(), AdaptiveCompressor(topk, controller=Static(cf=10))
    own, foreign = sgd(ddp), torch.optim.SGD(network().parameters(), lr=0.1)
    for optimizers in (foreign, [own, foreign]):
        with pytest.raises(ValueError, match=r"optimizer: SGD trains 14 tensors, none of which .* give the optimizer"):
            compressor.attach(ddp, optimizers)
    head = torch.optim.AdamW([*ddp.parameters()][-2:])  # trains some of the parameters
    compressor.attach(ddp, [own, head])
    train(ddp, own, rank, range(3))
    compressor.close()


def test_an_optimizer_of_another_model_is_refused_by_name_and_attach_may_be_called_again() -> None:
    processes(attached_with_foreign_optimizers, 2)


def old_buckets(rank: int, world: int, base: Compressor) -> int:
    """How many of the first backward's buckets are still in memory when DDP has made new buckets."""
    ddp = parallel()
    optimizer = sgd(ddp)
    with quick(base) as compressor:
        compressor.attach(ddp, optimizer)
        storages: list[Any] = []
        cut = compressor._attachment.source.hook

        def watched(bucket: Any) -> Any:
            storages.append(StorageWeakRef(bucket.buffer().untyped_storage()))  # type: ignore[no-untyped-call]
            return cut(bucket)

        compressor._attachment.source.hook = watched  # type: ignore[method-assign]
        train(ddp, optimizer, rank, range(1))
        assert compressor.cf >= 1 and storages  # the exchange has ended
        inputs, _ = batch(rank, 1)
        ddp(inputs)  # a forward makes the new buckets
        return sum(not storage.expired() for storage in storages)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("base", [topk, quantize, dense(dtype="float16")], ids=str)
def test_the_buckets_of_the_first_backward_are_freed_before_ddp_makes_new_ones(base: Compressor) -> None:
    assert processes(old_buckets, 2, base) == [0, 0]
