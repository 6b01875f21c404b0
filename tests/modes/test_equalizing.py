# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What makes ranks equal that trained apart: the mean of moments, the scaler, the checksum, rank 0's copies."""

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings

from gravac import AdaptiveCompressor, Static, topk
from gravac.engine.engine import Engine
from gravac.exchange import memory
from gravac.exchange.executor import Job
from gravac.exchange.lockstep import Lockstep
from gravac.exchange.streams import StreamExecutor
from gravac.modes import equalizing
from gravac.modes.equalizing import (
    average_states,
    checksum,
    copy_from_first,
    differing_ranks,
    equalize_ranks,
    equalize_scaler,
)
from gravac.settings import SettingsError
from tests.modes.optimizers import MAKES, Net, bits, scaler_of, tensors_of, train
from tests.streams.sanitized import Alike, FakeDevice

CPU = torch.device("cpu")
Optimizers = list[torch.optim.Optimizer]


def same_bits(optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    first, *others = ({place: bits(state) for place, state in tensors_of(each).items()} for each in optimizers)
    return all(other == first for other in others)


def in_memory(job: Callable[[Optimizers, torch.device], Job[Any]], *ranks: torch.optim.Optimizer) -> list[Any]:
    return memory.run([job([optimizer], CPU) for optimizer in ranks])


def apart(make: str, ranks: int, steps: int = 5) -> list[torch.optim.Optimizer]:
    """An optimizer a rank, after steps apart."""
    optimizers = []
    for rank in range(ranks):
        module = Net()
        optimizers.append(MAKES[make](module.parameters()))
        train(module, optimizers[-1], rank, range(steps + rank))
    return optimizers


@pytest.mark.parametrize("make", MAKES)
def test_states_become_their_mean_and_the_rest_is_that_of_rank_0(make: str) -> None:
    optimizers = apart(make, 3)
    before = [{place: state.clone() for place, state in tensors_of(each).items()} for each in optimizers]
    identities = [{place: id(state) for place, state in tensors_of(each).items()} for each in optimizers]
    in_memory(average_states, *optimizers)
    assert same_bits(optimizers)
    for optimizer, places in zip(optimizers, identities, strict=True):
        assert {place: id(state) for place, state in tensors_of(optimizer).items()} == places  # in place
    scalars = {p for p, parameter in enumerate(optimizers[0].param_groups[0]["params"]) if parameter.dim() == 0}
    for (position, key), state in tensors_of(optimizers[0]).items():
        ranks = [of_rank[position, key] for of_rank in before]
        if key == "step" or (state.dim() == 0 and position not in scalars):
            assert torch.equal(state, ranks[0])
        else:
            torch.testing.assert_close(state, torch.stack(ranks).mean(0))


@given(
    ranks=st.lists(
        st.tuples(
            st.sampled_from(["has", "lacks", "none", "nan", "inf"]),
            st.floats(-1e4, 1e4, width=16),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
@settings(deadline=None, max_examples=60)
def test_the_mean_is_over_ranks_that_have_a_finite_state(
    ranks: list[tuple[str, float, bool]], dtype: torch.dtype
) -> None:
    optimizers, finite = [], []
    for how, level, turned in ranks:
        parameter = torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype))
        optimizer = torch.optim.SGD([parameter], momentum=0.9)
        moment = torch.full((2, 3), level, dtype=dtype)
        if how in ("nan", "inf"):
            moment[1, 1] = float(how)
        if how == "none":
            optimizer.state[parameter] = {"momentum_buffer": None}
        elif how != "lacks":
            states = [("momentum_buffer", moment), ("seen", torch.tensor([3, 4]))]
            optimizer.state[parameter] = dict(reversed(states) if turned else states)
        if how == "has":
            finite.append(moment.double())
        optimizers.append(optimizer)
    in_memory(average_states, *optimizers)
    assert same_bits(optimizers)
    there = tensors_of(optimizers[-1])
    assert set(there) == (
        {(0, "momentum_buffer"), (0, "seen")} if {how for how, *_ in ranks} - {"lacks", "none"} else set()
    )
    if there:
        mean = torch.stack(finite).mean(0) if finite else torch.zeros(2, 3, dtype=torch.float64)
        moment = there[0, "momentum_buffer"]
        assert moment.dtype is dtype
        torch.testing.assert_close(moment.double(), mean, rtol=torch.finfo(dtype).eps, atol=1e-4)
        assert there[0, "seen"].tolist() == [3, 4]
    else:
        assert not any(tensors_of(optimizer) for optimizer in optimizers)


@pytest.mark.parametrize("make", ["AdamW", "AdamW, fused", "Adam, amsgrad", "SGD, momentum", "NAdam"])
@pytest.mark.parametrize("never", [0, 1])
def test_a_rank_that_never_stepped_is_given_the_states_of_the_others(make: str, never: int) -> None:
    optimizers = apart(make, 3)
    module = Net()
    optimizers[never] = MAKES[make](module.parameters())
    whose = tensors_of(optimizers[1 - never])
    in_memory(average_states, *optimizers)
    assert same_bits(optimizers)
    given_to = tensors_of(optimizers[never])
    assert {place: (s.dtype, s.stride()) for place, s in given_to.items()} == {
        place: (s.dtype, s.stride()) for place, s in whose.items()
    }
    train(module, optimizers[never], 0, range(3))


def test_numbers_are_rank_0s_and_other_states_stay() -> None:
    optimizers = []
    for rank in range(3):
        parameter = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([parameter])
        optimizer.state[parameter] = {"count": 10 + rank, "name": f"rank {rank}", "ready": rank == 0, rank: 1.0}
        if rank:
            optimizer.state[parameter]["late"] = rank / 7
        optimizers.append(optimizer)
    in_memory(average_states, *optimizers)
    for rank, optimizer in enumerate(optimizers):
        (state,) = optimizer.state.values()
        assert state == {"count": 10, "name": f"rank {rank}", "ready": True, rank: 1.0, "late": 1 / 7}
        assert state["ready"] is True


def test_large_states_go_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = apart("AdamW", 2), apart("AdamW", 2)
    in_memory(average_states, *whole)
    monkeypatch.setattr(equalizing, "CHUNK_BYTES", 64)
    in_memory(average_states, *parts)
    assert same_bits([*whole, *parts])
    parts[1].param_groups[0]["params"][0].data.add_(1)
    jobs = [copy_from_first(o.param_groups[0]["params"], [o], CPU) for o in parts]
    memory.run(jobs)
    assert len({checksum(o.param_groups[0]["params"], [o]) for o in parts}) == 1


def test_what_does_not_fit_is_refused() -> None:
    adam, sgd = apart("AdamW", 1)[0], torch.optim.SGD(Net().out.parameters())
    with pytest.raises(ValueError, match="different numbers of parameters"):
        in_memory(average_states, adam, sgd)
    optimizers = apart("AdamW", 2)
    parameter = optimizers[1].param_groups[0]["params"][0]
    optimizers[1].state[parameter]["exp_avg"] = torch.zeros(2)
    with pytest.raises(ValueError, match=r"'exp_avg' of parameter 0 .* on rank 1"):
        in_memory(average_states, *optimizers)
    optimizers[1].state[parameter]["exp_avg"] = torch.zeros(2).to_sparse()
    with pytest.raises(SettingsError, match=r"'exp_avg' of AdamW.*every=1"):
        in_memory(average_states, *optimizers)


# the checksum, and copies


@given(position=st.integers(0, 39), bit=st.integers(0, 7), size=st.integers(40, 70), rank=st.integers(0, 2))
@settings(deadline=None)
def test_a_single_bit_is_seen(position: int, bit: int, size: int, rank: int) -> None:
    ranks = [torch.arange(size, dtype=torch.uint8) for _ in range(3)]
    ranks[rank][position] ^= 1 << bit
    differing = memory.run([differing_ranks([tensor], [], CPU) for tensor in ranks])
    assert differing == [[1, 2] if rank == 0 else [rank]] * 3


@example(first=0, second=512)  # of float64 that differ in their highest bits only
@given(first=st.integers(0, 49_999), second=st.integers(0, 49_999))
@settings(deadline=None, max_examples=30)
def test_elements_in_each_others_place_are_seen(first: int, second: int) -> None:
    numbers = torch.arange(50_000, dtype=torch.float64)
    swapped = numbers.clone()
    swapped[first], swapped[second] = numbers[second], numbers[first]
    assert (checksum([numbers], []) == checksum([swapped], [])) == (first == second)


def test_a_checksum_is_over_bits_shapes_formats_and_states_but_not_over_memory_order() -> None:
    x = torch.randn(3, 4, 5, 6)
    assert checksum([x], []) == checksum([x.to(memory_format=torch.channels_last)], [])
    assert checksum([x[1]], []) == checksum([x[1].clone()], [])
    others = [x.view(12, 30), x.view(torch.int32), -x, x.half(), x[:0], x.double()]
    assert len({checksum([other], []) for other in (x, *others)}) == 7
    assert checksum([torch.zeros(1)], []) != checksum([-torch.zeros(1)], [])
    assert checksum([], []) == checksum([], [])
    for make in ("AdamW", "SGD"):
        (optimizer,) = apart(make, 1)
        before = checksum([], [optimizer])
        for state in tensors_of(optimizer).values():
            state.add_(1)
        assert (checksum([], [optimizer]) == before) == (make == "SGD")


def test_rank_0s_bits_are_copied() -> None:
    optimizers = apart("Adam, amsgrad", 3)
    tensors = [
        [*o.param_groups[0]["params"], torch.full((2,), float("nan")), torch.tensor([rank > 0])]
        for rank, o in enumerate(optimizers)
    ]
    tensors[1][0].data.mul_(-1)
    before = checksum(tensors[0], [optimizers[0]])
    memory.run([copy_from_first(held, [o], CPU) for held, o in zip(tensors, optimizers, strict=True)])
    assert {checksum(held, [o]) for held, o in zip(tensors, optimizers, strict=True)} == {before}


def test_ranks_that_differ_are_told_and_made_equal() -> None:
    optimizers = apart("AdamW", 3)
    weights = [optimizer.param_groups[0]["params"] for optimizer in optimizers]
    for held in weights[:2]:
        for parameter, other in zip(held, weights[2], strict=True):
            parameter.data.copy_(other.data)
    weights[1][-1].data += 1
    for expected in ([1], []):
        jobs = [equalize_ranks(held, [o], None, CPU) for held, o in zip(weights, optimizers, strict=True)]
        assert memory.run(jobs) == [expected] * 3


# the scaler


@given(
    ranks=st.lists(
        st.tuples(st.floats(2**-10, 2**24, width=32), st.integers(0, 2000), st.booleans()), min_size=1, max_size=4
    )
)
@settings(deadline=None)
def test_all_ranks_have_the_smallest_scale(ranks: list[tuple[float, int, bool]]) -> None:
    scalers = [scaler_of(scale, steps) for scale, steps, _ in ranks]
    for scaler, (_, _, used) in zip(scalers, ranks, strict=True):
        if used:  # the scale is a tensor from the first use on
            scaler.scale(torch.ones(()))
    memory.run([equalize_scaler(scaler, CPU) for scaler in scalers])
    for scaler in scalers:
        state = scaler.state_dict()
        assert state["scale"] == min(scale for scale, *_ in ranks)
        assert state["_growth_tracker"] == min(steps for _, steps, _ in ranks)
        assert scaler.scale(torch.ones(())).item() == state["scale"]


def test_a_scaler_that_is_disabled_changes_none() -> None:
    scalers = [scaler_of(8.0, 3), scaler_of(1.0, 0, enabled=False), scaler_of(4.0, 5)]
    memory.run([equalize_scaler(scaler, CPU) for scaler in scalers])
    assert [s.get_scale() for s in scalers] == [4.0, 1.0, 4.0]
    assert scalers[1].state_dict() == {}


# by an engine


def engine_of(executor: Any = None) -> Engine:
    compressor = AdaptiveCompressor(topk, controller=Static(cf=1))
    return compressor.attach_parameters({"w": torch.zeros(4)}, **({"executor": executor} if executor else {}))


def test_engines_in_memory_run_a_job_between_steps() -> None:
    optimizers = apart("AdamW", 3)
    engines = [engine_of(executor) for executor in Lockstep(3).executors]
    scalers = [scaler_of(2.0**rank, rank) for rank in range(3)]
    results: list[Any] = []
    for engine, optimizer, scaler in zip(engines, optimizers, scalers, strict=True):
        for pending in results:
            with pytest.raises(RuntimeError, match="not every simulated rank has handed over step 0, the optimizers"):
                pending.result()
        job = equalize_ranks([], [optimizer], scaler, engine.device)
        results.append(engine.run_between_steps("the optimizers' states", job))
    assert [result.result() for result in results] == [[]] * 3
    assert same_bits(optimizers)
    assert [scaler.get_scale() for scaler in scalers] == [1.0] * 3


@pytest.mark.parametrize("make", ["AdamW", "SGD, momentum"])
def test_on_streams_nothing_races_for_the_states(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gravac.modes.checksum.BLOCK_WORDS", 16)  # the fake device looks at each place in memory
    monkeypatch.setattr("gravac.modes.checksum.CACHED_BYTES", 1024)
    device = FakeDevice()
    with device:
        module = torch.nn.ParameterList([torch.ones(8, 16) for _ in range(3)])
        optimizer = MAKES[make](module.parameters())
        engine = engine_of(StreamExecutor(Alike(device), device))
        for _ in range(3):
            for parameter in module:
                parameter.grad = torch.ones(8, 16)
            optimizer.step()
            before = [state.clone() for state in tensors_of(optimizer).values()]
            job = equalize_ranks([*module], [optimizer], None, engine.device)
            assert engine.run_between_steps("the optimizers' states", job).result() == []
            after = [*tensors_of(optimizer).values()]
            assert all(torch.equal(then, now) for then, now in zip(before, after, strict=True))
    assert device.errors == []
