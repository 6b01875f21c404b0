# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chunk energies from the kernel against those of PyTorch's operators."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.compressors.chunks import chunk_energies
from tests.kernels import DEVICE, kernels

chunks = kernels("chunks")


def randn(elements: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=15)
@given(st.integers(1, 20_000), st.sampled_from([1, 3, 64, 100, 128, 2048, 2049, 5000]), st.integers(0, 10**6))
def test_energies_are_the_chunks_squared_norms(elements: int, chunk: int, seed: int) -> None:
    x = randn(elements, seed=seed)
    energies = chunks.chunk_energies(x.to(DEVICE), chunk).cpu()
    assert energies.dtype == torch.float32
    assert torch.allclose(energies, chunk_energies(x, chunk), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_residual_is_added_on_the_way_and_the_sum_may_take_its_place(dtype: torch.dtype) -> None:
    gradient, residual = randn(5001, dtype), randn(5001, seed=1)
    wanted = residual + gradient
    kept = residual.to(DEVICE)
    energies = chunks.chunk_energies(gradient.to(DEVICE), 64, residual=kept, folded=kept)
    assert torch.equal(kept.cpu(), wanted)
    assert torch.allclose(energies.cpu(), chunk_energies(wanted, 64), rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_shows_in_its_chunk_alone(bad: float) -> None:
    x = randn(1000)
    x[100] = bad
    assert chunks.chunk_energies(x.to(DEVICE), 64).cpu().isfinite().logical_not().nonzero().tolist() == [[1]]


def test_no_numbers_have_no_chunks() -> None:
    assert chunks.chunk_energies(torch.empty(0, device=DEVICE), 64).shape == (0,)


def test_the_operator_keeps_its_promises_to_pytorch() -> None:
    x = randn(1000).to(DEVICE)
    for folded in (None, torch.empty_like(x)):
        args = (x, None, folded, 64)
        torch.library.opcheck(chunks._energies_op, args, test_utils=("test_schema", "test_faketensor"))
