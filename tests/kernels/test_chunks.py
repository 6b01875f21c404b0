# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels of chunks against PyTorch's operators: energies, the values that travel, the mean put back; alone or many."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac.compressors.chunks import chunk_energies, gather, scatter, sending_order
from gravac.compressors.dtypes import convert_clamped
from gravac.compressors.topkc import select_chunks
from tests.kernels import DEVICE, kernels

chunks = kernels("chunks")
decodes = kernels("chunk_decode")


def randn(elements: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=15)
@given(st.integers(1, 20_000), st.sampled_from([1, 3, 64, 100, 128, 2048, 2049, 5000]), st.integers(0, 10**6))
def test_energies_are_the_chunks_squared_norms(elements: int, chunk: int, seed: int) -> None:
    x = randn(elements, seed=seed)
    energies = chunks.energies([x.to(DEVICE)], chunk)[0].cpu()
    assert energies.dtype == torch.float64
    assert torch.allclose(energies.float(), chunk_energies(x, chunk), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_residual_is_added_on_the_way_and_the_sum_may_take_its_place(dtype: torch.dtype) -> None:
    gradient, residual = randn(5001, dtype), randn(5001, seed=1)
    wanted = residual + gradient
    kept = residual.to(DEVICE)
    energies, _ = chunks.energies([gradient.to(DEVICE)], 64, residuals=[kept], sums_out=kept)
    assert torch.equal(kept.cpu(), wanted)
    assert torch.allclose(energies.cpu().float(), chunk_energies(wanted, 64), rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_shows_in_its_chunk_alone(bad: float) -> None:
    x = randn(1000)
    x[100] = bad
    assert chunks.energies([x.to(DEVICE)], 64)[0].cpu().isfinite().logical_not().nonzero().tolist() == [[1]]


def test_no_numbers_have_no_chunks() -> None:
    assert chunks.energies([torch.empty(0, device=DEVICE)], 64)[0].shape == (0,)


FORMATS = (torch.float32, torch.float16, torch.bfloat16)


@settings(max_examples=10)
@given(
    st.integers(1, 40),
    st.sampled_from([1, 7, 64, 100]),
    st.floats(0.01, 1.0),
    st.sampled_from(FORMATS),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_values_taken_are_those_of_operators_and_what_is_not_sent_is_left(
    chunks_of: int, chunk: int, share: float, dtype: torch.dtype, world: int, seed: int
) -> None:
    x = randn(max(1, chunks_of * chunk - seed % chunk), seed=seed) * 1e3
    k = max(1, int(share * len(x)))
    energies = chunk_energies(x, chunk)
    chosen = select_chunks(energies, k, chunk, len(x))
    want = gather(x, chosen, chunk, k)
    sent = convert_clamped(want / world, dtype)
    left = scatter(sent.float() * world, chosen, chunk, len(x)).add_to(x.clone(), -1.0)
    kept, powers, order = (
        x.to(DEVICE),
        energies.double().to(DEVICE),
        sending_order(energies.view(1, -1), k, chunk).to(DEVICE),
    )
    took = chunks.take(kept, powers, order, k, chunk, dtype, world)
    assert torch.equal(took[0].cpu(), sent)
    assert torch.equal(kept.cpu(), left)
    assert torch.allclose(powers.cpu().float(), chunk_energies(left, chunk), rtol=1e-4)
    whole, more = torch.full((len(x),), 7.0, device=DEVICE), torch.ones(len(x), device=DEVICE)
    decodes.decode([whole], took, order, k, chunk)
    decodes.decode([more], took, order, k, chunk, -2.0)
    assert torch.equal(whole.cpu(), scatter(sent.float(), chosen, chunk, len(x)).add_to(torch.zeros(len(x))))
    assert torch.equal(more.cpu(), scatter(sent.float(), chosen, chunk, len(x)).add_to(torch.ones(len(x)), -2.0))


@pytest.mark.parametrize("most", [2, 32])
@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.float32, torch.bfloat16), (torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)],
    ids=str,
)
def test_a_group_is_taken_as_each_of_its_tensors_wherever_they_lie(
    dtype: torch.dtype, kept: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3
    monkeypatch.setattr(chunks, "MAX_TENSORS", most)
    gradients = [randn(64, dtype, seed=one).to(DEVICE) for one in range(count)]
    residuals = [randn(64, kept, seed=99 + one).to(DEVICE) for one in range(count)]
    folded = torch.empty(count * 64, device=DEVICE)
    energies, wire = chunks.energies(gradients, 16, residuals=residuals, sums_out=folded, world=3)
    for one, (gradient, residual) in enumerate(zip(gradients, residuals, strict=True)):
        alone = torch.empty(64, device=DEVICE)
        its, its_wire = chunks.energies([gradient], 16, residuals=[residual], sums_out=alone, world=3)
        assert torch.equal(folded[one * 64 : one * 64 + 64], alone)
        assert torch.equal(energies.view(count, -1)[one], its) and torch.equal(wire.view(count, -1)[one], its_wire)
    assert torch.equal(wire, (energies.float() / 3).bfloat16())
    order = sending_order(wire.view(count, -1).cpu(), 24, 16).to(DEVICE)
    values = chunks.take(folded, energies, order, 24, 16, torch.float32, multiple=32)
    assert values.shape == (count, 32) and not values[:, 24:].any()
    decodes.decode(gradients, values, order, 24, 16)
    assert all(int(gradient.count_nonzero()) <= 24 for gradient in gradients)
    side_by_side = torch.cat([gradient.float() for gradient in gradients])
    again = torch.zeros_like(side_by_side)
    decodes.decode([*again.view(count, -1)], values, order, 24, 16, 1.0)
    torch.testing.assert_close(side_by_side, again, rtol=2**-7 if dtype == torch.bfloat16 else 2**-11, atol=0)


def test_what_is_not_finite_travels_as_zero_and_what_is_too_large_as_the_largest() -> None:
    x = torch.full((4,), torch.inf, device=DEVICE)
    energies, wire = chunks.energies([x], 2, world=2)
    assert not energies.isfinite().any() and wire.tolist() == [0.0, 0.0]
    big, order = torch.full((4,), 1e6, device=DEVICE), torch.tensor([[1]], device=DEVICE)
    assert chunks.take(big, energies, order, 2, 2, torch.float16).tolist() == [[65504.0, 65504.0]]
    assert big.tolist() == [1e6, 1e6, 1e6 - 65504, 1e6 - 65504]


def test_tensors_that_lie_otherwise_are_refused_by_name() -> None:
    x = torch.ones(64, device=DEVICE)
    with pytest.raises(ValueError, match=r"gradient: .* \[64\]"):
        chunks.energies([x, x[:32]], 16)
    with pytest.raises(ValueError, match="chunk: 48"):
        chunks.energies([x, x], 48)
    with pytest.raises(ValueError, match=r"dtype: torch\.float64"):
        chunks.take(x, x[:4].double(), torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), 8, 16, torch.float64)
    with pytest.raises(ValueError, match=r"dense: .* give a contiguous tensor"):
        decodes.decode([x.view(8, 8).t()], x[:8].view(1, 8), torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), 8, 16)


def test_the_operators_keep_their_promises_to_pytorch() -> None:
    x, checks = randn(1000).to(DEVICE), ("test_schema", "test_faketensor")
    for folded in (None, torch.empty_like(x)):
        torch.library.opcheck(chunks._energies_op, ([x], [], folded, 64, 2), test_utils=checks)
    order = torch.arange(3, device=DEVICE).view(1, -1)
    values = torch.ones(1, 140, device=DEVICE)
    taken = (x, torch.ones(16, dtype=torch.float64, device=DEVICE), order, 140, 140, 64, torch.bfloat16, 2)
    torch.library.opcheck(chunks._take_op, taken, test_utils=checks)
    torch.library.opcheck(decodes._decode_op, ([x], values, order, 140, 64, None), test_utils=checks)
