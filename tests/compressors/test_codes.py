# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Packing, codes and rotation against plain references."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.compressors import codes, rotation
from gravac.compressors.codes import (
    BITS,
    LEVELS,
    PIECE_ELEMENTS,
    SAMPLED_ELEMENTS,
    Coded,
    CodedNumbers,
    add_mean,
    coding_error,
    encode,
    split,
)
from gravac.compressors.draws import Draws
from gravac.compressors.messages import Messages, encode_messages
from gravac.compressors.packing import SUPPORTED_BITS, pack, pack_into, packed_bytes, unpack

every_width = pytest.mark.parametrize("bits", BITS)


@given(st.sampled_from(SUPPORTED_BITS), st.integers(0, 70), st.integers(0, 2**31))
def test_packed_codes_come_back(bits: int, count: int, seed: int) -> None:
    codes = torch.randint(1 << bits, (3, count), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, packed_bytes(count, bits))
    assert torch.equal(unpack(packed, bits, count), codes)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_first_code_lies_in_the_lowest_bits(bits: int) -> None:
    codes = torch.zeros(8 // bits, dtype=torch.uint8)
    codes[0] = 1
    assert pack(codes, bits).tolist() == [1]


@given(st.sampled_from([1, 2, 4]), st.integers(0, 70), st.booleans(), st.integers(0, 2**31))
def test_neighbours_added_until_they_fill_bytes_are_packed(bits: int, count: int, wide: bool, seed: int) -> None:
    codes = torch.randint(1 << bits, (3, count), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = torch.full((3, packed_bytes(count, bits)), 255, dtype=torch.uint8)
    pack_into(packed, codes.int() if wide else codes, bits)
    assert torch.equal(packed, pack(codes, bits))


def randn(count: int, seed: int = 0, tail: float = 0.0) -> torch.Tensor:
    """Normal numbers; with a tail, most of them are far smaller than some."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * torch.rand(count, generator=generator) ** tail


def coded(x: torch.Tensor, bits: int, block: int = 128) -> Coded:
    return split(encode(x, bits, block, -(-x.numel() // block)), block, bits)


def decoded(parts: list[Coded], bits: int, elements: int, block: int = 128) -> torch.Tensor:
    """The mean of some ranks' numbers."""
    dense = torch.full((elements,), torch.nan)
    add_mean(parts, bits, block, dense, alpha=None)
    return dense


def levels_of(packed: torch.Tensor, bits: int) -> np.ndarray:
    """Levels of packed codes, code by code, in numpy; float32."""
    if bits == 8:
        return packed.numpy().view(np.int8).astype(np.float32)
    one_by_one = np.stack([packed.numpy() >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], 1).reshape(-1)
    return np.array(LEVELS[bits], np.float32)[one_by_one]


def test_levels_are_symmetric_and_exact_times_a_scale() -> None:
    """A level has at most 7 significant bits and a scale 8, of float32's 24."""
    for bits, levels in LEVELS.items():
        assert levels == tuple(-level for level in reversed(levels))
        assert all(abs(level) <= 127 for level in levels)
        assert bits == 8 or len(levels) == 1 << bits


@every_width
@given(
    count=st.integers(1, 1000),
    seed=st.integers(0, 10**6),
    exponent=st.sampled_from([-30, -3, 0, 12, 30]),
    block=st.sampled_from([16, 48, 128]),
)
def test_each_number_gets_the_level_of_its_interval(
    bits: int, count: int, seed: int, exponent: float, block: int
) -> None:
    """Against float64: the nearest level, but 10 from 6 on; numbers within rounding of a bound may get the next one."""
    x = randn(count, seed, tail=2.0) * 10.0**exponent
    packed, scales = coded(x, bits, block)
    levels = torch.tensor(LEVELS[bits], dtype=torch.float64)
    bounds = (levels[1:] + levels[:-1]) / 2
    if bits == 4:
        bounds[bounds.abs() == 7.5] = torch.tensor([-6.0, 6.0], dtype=torch.float64)
    exact = x.double() / scales.double().repeat_interleave(block)[:count]
    got = torch.from_numpy(levels_of(packed, bits))[:count].double()
    low, high = (torch.bucketize(exact * (1 + nudge), bounds) for nudge in (-1e-5, 1e-5))
    assert bool(((got == levels[low]) | (got == levels[high]) | (exact.abs() < 1e-5)).all())


@every_width
@given(st.integers(1, 600), st.integers(0, 10**6), st.sampled_from([0.0, 3.0, 30.0]), st.sampled_from([16, 48, 128]))
def test_coding_never_adds_error_to_a_block(bits: int, count: int, seed: int, tail: float, block: int) -> None:
    x = randn(count, seed, tail)
    x[1:block] = 0  # one number and zeros: the worst case for 2 bits
    lost = torch.nn.functional.pad(x - decoded([coded(x, bits, block)], bits, count, block), (0, -count % block))
    blocks = torch.nn.functional.pad(x, (0, -count % block)).view(-1, block)
    energies = blocks.double().square().sum(1)
    assert bool((lost.view(-1, block).double().square().sum(1) <= energies * (1 + 1e-6)).all())


@every_width
def test_zeros_stay_zeros_and_tiny_numbers_finite(bits: int) -> None:
    x = torch.zeros(512)
    x[128:256], x[256:384] = 1e-44, 1e30
    numbers = decoded([coded(x, bits)], bits, 512)
    assert bool(numbers.isfinite().all())
    assert not numbers[:128].any() and not numbers[384:].any()


@every_width
@pytest.mark.parametrize("exponent", [-30, -8, 5, 30])
def test_the_error_over_the_energy_is_the_same_at_every_scale(bits: int, exponent: int) -> None:
    x = randn(2000)
    errors = []
    for numbers in (x, x * 10.0**exponent):
        exact = (numbers.double() - decoded([coded(numbers, bits)], bits, 2000)).square().sum()
        errors.append(float(exact / numbers.double().square().sum()))
    assert errors[1] == pytest.approx(errors[0], rel=0.02)


@every_width
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_a_mean_is_that_of_numpy_bit_for_bit(bits: int, ranks: int) -> None:
    """In float32, each product and each sum rounded by itself, rank after rank."""
    parts = [coded(randn(900, rank, tail=1.0) * 10.0 ** (rank - 2), bits) for rank in range(ranks)]
    total = np.zeros(1024, np.float32)
    for rank, (packed, scales) in enumerate(parts):
        numbers = levels_of(packed, bits) * scales.float().numpy().repeat(128)
        total = numbers if rank == 0 else total + numbers
    mean = total * np.float32(1 / ranks)
    assert torch.equal(decoded(parts, bits, 900), torch.from_numpy(mean[:900]))


@every_width
@pytest.mark.parametrize("count", [1, 900, 128 * 70, PIECE_ELEMENTS + 1000])
def test_torch_s_plain_operators_give_the_bits_of_its_kernels(
    bits: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = randn(count, tail=1.0)
    by_kernels = coded(x, bits)
    numbers = decoded([by_kernels], bits, count)
    monkeypatch.setattr(codes, "_kernel", lambda bits: None)
    by_operators = coded(x, bits)
    assert torch.equal(by_operators.packed, by_kernels.packed)
    assert torch.equal(by_operators.scales, by_kernels.scales)
    assert torch.equal(decoded([by_operators], bits, count), numbers)


def test_torch_has_the_kernels() -> None:
    """Without them, coding takes several times as long."""
    assert all(codes._kernel(bits) for bits in (2, 4))


def error_of(xs: list[torch.Tensor], bits: int, block: int = 128) -> float:
    return float(coding_error([CodedNumbers(x, coded(x, bits, block), bits, block) for x in xs]))


def exact_error_of(xs: list[torch.Tensor], bits: int, block: int = 128) -> float:
    decoded_xs = [decoded([coded(x, bits, block)], bits, x.numel(), block) for x in xs]
    return sum(float((x.double() - known).square().sum()) for x, known in zip(xs, decoded_xs, strict=True))


@every_width
@pytest.mark.parametrize("counts", [[1], [127, 128], [2000, SAMPLED_ELEMENTS - 2000]])
def test_the_error_of_few_numbers_is_exact(bits: int, counts: list[int]) -> None:
    xs = [randn(count, seed=count, tail=1.0) for count in counts]
    assert error_of(xs, bits) == pytest.approx(exact_error_of(xs, bits), rel=1e-5, abs=1e-12)


@every_width
@pytest.mark.parametrize("share", [1.0, 0.003])
def test_the_error_of_many_numbers_is_estimated_also_if_few_blocks_are_not_zero(bits: int, share: float) -> None:
    x = randn(1 << 19, tail=1.0).view(-1, 128)
    x *= torch.logspace(-3, 0, len(x)).unsqueeze(1)
    x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))[int(share * len(x)) :]] = 0
    x = x.view(-1)
    assert error_of([x], bits) == pytest.approx(exact_error_of([x], bits), rel=0.15)


@every_width
@pytest.mark.parametrize("block", [16, 128])
def test_the_error_of_many_tensors_is_estimated_together(bits: int, block: int) -> None:
    """Also if most have a partial block at their end, some have none that is whole, and some are zero."""
    counts = [100_000, 5, block - 1, 3 * block, *(10 * block + 100 for _ in range(90))]
    xs = [randn(count, seed) * 10.0 ** (seed % 3) for seed, count in enumerate(counts)]
    xs += [torch.zeros(1000)]
    assert error_of(xs, bits, block) == pytest.approx(exact_error_of(xs, bits, block), rel=0.15)


def test_the_error_of_tensors_of_different_codings_is_that_of_each() -> None:
    xs = [randn(40_000, seed) for seed in range(3)]
    tensors = [CodedNumbers(x, coded(x, bits), bits, 128) for x, bits in zip(xs, [4, 2, 4], strict=True)]
    expected = error_of([xs[0], xs[2]], 4) + error_of([xs[1]], 2)
    assert float(coding_error(tensors)) == pytest.approx(expected)


@every_width
@given(st.integers(1, 700), st.sampled_from([16, 112]), st.integers(0, 5))
def test_what_is_not_laid_out_adds_what_decoding_gives(bits: int, count: int, block: int, cut: int) -> None:
    """Also cut off at the tensor's end, and with numbers on top from some position on."""
    parts = [coded(randn(count, seed), bits, block) for seed in range(2)]
    expected = decoded(parts, bits, count, block)
    more = randn(8, 9)
    expected[8:16] += more[: max(0, min(8, count - 8))]
    messages = torch.stack([torch.cat([part.packed, part.scales.view(torch.uint8)]) for part in parts]).unsqueeze(0)
    lazily = Messages(messages, bits, block, (8, more))
    start, left = randn(count, 3), max(0, count - cut)
    assert torch.allclose(lazily.add_to(start[:left].clone(), -2.0), start[:left] - 2 * expected[:left], atol=1e-5)
    assert torch.equal(lazily.write_to(torch.full((left,), torch.nan)), expected[:left])
    assert torch.allclose(lazily.write_to(start.double()), expected.double())


@every_width
@pytest.mark.parametrize(("shards", "parts"), [(1, 1), (1, 2), (3, 1), (2, 2), (2, 5)])
@pytest.mark.parametrize("offset", [0, 3])
def test_messages_of_shards_are_those_of_the_whole(bits: int, shards: int, parts: int, offset: int) -> None:
    elements = shards * 7 * 48
    xs = [randn(elements, seed=part) for part in range(parts)]
    made = [encode_messages(x, bits, 48, shards)[0] for x in xs]
    wider = torch.nn.functional.pad(torch.stack(made, dim=1), (offset, 5))  # cut out of longer ones, maybe unaligned
    messages = Messages(wider[..., offset:-5], bits, 48)
    assert torch.equal(messages.decoded(), decoded([coded(x, bits, 48) for x in xs], bits, elements, 48))


@given(
    st.one_of(st.integers(0, 3000), st.just(rotation.PIECE_ELEMENTS + 1500)),
    st.sampled_from([16, 64, 1024, 4096]),
    st.integers(0, 10**6),
)
def test_rotation_keeps_the_norm_and_turns_back(elements: int, block: int, seed: int) -> None:
    x = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    turned = rotation.rotate(x, Draws("5"), block)
    assert turned.numel() == rotation.padded_length(elements, block)
    assert torch.allclose(turned.norm(), x.norm(), rtol=1e-5)
    back = rotation.rotate_back(turned, elements, Draws("5"), block)
    assert torch.allclose(back, x, atol=1e-5)


@pytest.mark.parametrize("block", [16, 64, 1024, 2048])
def test_rotation_is_the_hadamard_matrix_after_signs(block: int) -> None:
    """Against Sylvester's construction."""
    matrix = torch.ones(1, 1)
    while len(matrix) < block:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = Draws("1").signs(block)
    x = torch.randn(block)
    expected = matrix @ (x * signs) / block**0.5
    assert torch.allclose(rotation.rotate(x, Draws("1"), block), expected, atol=1e-5)


def test_rotation_makes_an_outlier_normal() -> None:
    x = torch.zeros(1024)
    x[7] = 32.0
    assert torch.allclose(rotation.rotate(x, Draws("1")).abs(), torch.ones(1024))
