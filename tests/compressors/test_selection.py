# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exact top-k selection, random draws, multi-level compression, index packing."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from gravac.collectives import AllGather
from gravac.compressors import multilevel, topk
from gravac.compressors.base import Context, energy, k_for
from gravac.compressors.draws import Draws
from gravac.compressors.selection import BLOCK_ELEMENTS, SAMPLE_SIZE, largest, sample_stride
from gravac.compressors.topk import pack_indices, unpack_indices

KINDS = ("normal", "heavy", "few values", "zeros", "one spike", "sorted", "sparse", "signs", "unsampled")


def gradient(kind: str, elements: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(elements, generator=g)
    match kind:
        case "heavy":
            return x * torch.rand(elements, generator=g) ** 6
        case "few values":
            return x.sign() * (x.abs() > 1)
        case "zeros":
            return torch.zeros(elements)
        case "one spike":
            return torch.zeros(elements).index_fill_(0, torch.tensor([elements // 2]), 1e6)
        case "sorted":
            return x.abs().sort().values
        case "sparse":
            return x * (torch.rand(elements, generator=g) < 0.001)
        case "signs":
            return x.sign()
        case "unsampled":  # zero at all elements of the sample
            return x * (torch.arange(elements) % sample_stride(elements) == 1)
    return x


@given(
    kind=st.sampled_from(KINDS),
    elements=st.one_of(st.integers(1, 400), st.sampled_from([50_000, 131_073])),
    share=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_selection_is_exact(kind: str, elements: int, share: float, seed: int) -> None:
    x = gradient(kind, elements, seed)
    k = round(share * elements)
    chosen = largest(x, k)
    assert chosen.numel() == k
    assert chosen.unique().numel() == k
    assert torch.equal(chosen, chosen.sort().values)
    # of equal magnitudes, the lowest indices
    assert torch.equal(chosen, x.abs().sort(descending=True, stable=True).indices[:k].sort().values)


@pytest.mark.parametrize("kind", ["zeros", "one spike", "sparse", "signs", "unsampled"])
def test_zeros_and_equal_magnitudes_are_not_searched(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, searched_counts, partition = gradient(kind, 500_000, 0), [0], np.partition

    def counted(magnitudes: np.ndarray, position: int) -> np.ndarray:
        searched_counts.append(magnitudes.size)
        return partition(magnitudes, position)

    monkeypatch.setattr(np, "partition", counted)
    for k in (500, 5_000, 50_000):
        largest(x, k)
    assert max(searched_counts) <= max(SAMPLE_SIZE + 500, int(x.count_nonzero()) * (kind != "signs"))


def _searched_counts(x: torch.Tensor, k: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Select the k largest of x, and check them; return how many magnitudes each partition after the sample had."""
    searched_counts, partition = [], np.partition

    def counted(magnitudes: np.ndarray, position: int) -> np.ndarray:
        searched_counts.append(magnitudes.size)
        return partition(magnitudes, position)

    with monkeypatch.context() as context:
        context.setattr(np, "partition", counted)
        selected = largest(x, k)
    assert torch.equal(selected, x.abs().sort(descending=True, stable=True).indices[:k].sort().values)
    return searched_counts[1:]


def test_a_search_stores_few_magnitudes_if_the_sample_is_far_below_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    elements, k = 8 * BLOCK_ELEMENTS, 1000
    magnitudes = torch.arange(1, elements + 1, dtype=torch.float32).flip(0)
    for x in (magnitudes, magnitudes.flip(0), (magnitudes % 3) + 1, (magnitudes % 400_000) + 1):
        x[:: sample_stride(elements)] = 0.5
        assert max(_searched_counts(x, k, monkeypatch)) <= 2 * (k + BLOCK_ELEMENTS)


def test_the_sample_of_a_matrix_has_elements_of_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = SAMPLE_SIZE // 4, 64
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    x[:, :: columns // 4] *= 0.01
    k = x.numel() // 100
    assert max(_searched_counts(x.view(-1), k, monkeypatch)) <= 2 * k


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_selection_takes_every_float_type(dtype: torch.dtype) -> None:
    x = gradient("normal", 70_000, 0).to(dtype)
    assert torch.equal(x[largest(x, 700)].abs().sort().values, x.abs().topk(700).values.sort().values)


@given(
    elements=st.integers(1, 200_000),
    cfs=st.lists(st.sampled_from([1.5, 4.0, 10.0, 20.0, 40.0, 160.0, 1000.0]), min_size=1, max_size=5, unique=True),
    seed=st.integers(0, 5),
)
def test_multilevel_selects_what_direct_selection_does(elements: int, cfs: list[float], seed: int) -> None:
    x = gradient("normal", elements, seed)
    ctx = Context()
    foreseen = topk.errors(x, sorted(cfs), Context())
    for cf, error in zip(sorted(cfs), foreseen, strict=True):
        level = multilevel.select_at(topk.select, x, cf, ctx)
        direct = topk.select(x, k_for(elements, cf))
        assert float(error) == pytest.approx(float(energy(x) - energy(direct.values)), abs=1e-4 * float(energy(x)))
        assert torch.equal(level.indices, direct.indices)
        assert torch.equal(level.values, direct.values)


def test_a_selection_made_for_a_shadow_is_used_for_the_real_one() -> None:
    ctx = Context(shape=(100, 100))
    x = gradient("normal", 10_000, 0)
    topk.errors(x, (10.0, 100.0), ctx)
    remembered = ctx.selections[10.0]
    gathered = next(topk.rounds(x, 10.0, ctx))
    assert isinstance(gathered, AllGather)
    assert gathered.tensors[0].data_ptr() == remembered.values.data_ptr()


@given(elements=st.integers(1, 5000), cf=st.floats(1, 2000), seed=st.integers(0, 3))
def test_gain_of_topk_is_at_least_one_over_cf(elements: int, cf: float, seed: int) -> None:
    x = gradient("normal", elements, seed)
    (error,) = topk.errors(x, (cf,), Context())
    assert 1 - float(error) / float(energy(x)) >= 1 / cf - 1e-5


@given(elements=st.integers(1, 3000), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_draws_are_without_replacement_and_of_the_right_number(elements: int, share: float, seed: int) -> None:
    k = round(share * elements)
    chosen = Draws(str(seed)).sample(elements, k)
    assert torch.equal(chosen, chosen.sort().values)
    assert chosen.numel() == k
    assert chosen.unique().numel() == k
    assert not k or (chosen.min() >= 0 and chosen.max() < elements)


@pytest.mark.parametrize("k", [3, 19, 30])
def test_draws_are_uniform(k: int) -> None:
    elements, trials = 60, 6000
    counts = torch.zeros(elements)
    for trial in range(trials):
        counts[Draws(str(trial)).sample(elements, k)] += 1
    expected = trials * k / elements
    chi2 = float(((counts - expected) ** 2 / expected).sum()) / (1 - k / elements)
    assert chi2 < 110, f"chi-squared {chi2:.0f} for 59 degrees of freedom"


@given(elements=st.sampled_from([1, 256, 257, 65_536, 65_537, 1 << 20]), data=st.data())
def test_indices_survive_packing(elements: int, data: st.DataObject) -> None:
    indices = torch.tensor(data.draw(st.lists(st.integers(0, elements - 1), max_size=20)), dtype=torch.int64)
    assert torch.equal(unpack_indices(pack_indices(indices, elements), elements), indices)
