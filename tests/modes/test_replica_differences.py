# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How replicas are compared: sums of checksums, when a check is due, and what is rounding and what is a difference."""

from itertools import islice, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.exchange import memory
from gravac.modes import replica_differences
from gravac.modes.replica_differences import ReplicatedTensor, Verdict, allowed_distance, differences_from_first
from gravac.modes.replicas import LARGEST_INTERVAL, checksums_are_equal, due_steps, numbers_to_sum


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
