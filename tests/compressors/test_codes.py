# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Packing, codebooks and rotation against plain references."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.compressors import rotation
from gravac.compressors.codebook import Coded, CodedMean, decode_mean, encode
from gravac.compressors.draws import Draws
from gravac.compressors.levels import FITTED_LEVELS, GRID_POINTS_PER_RMS, LevelKind, levels
from gravac.compressors.packing import SUPPORTED_BITS, pack, packed_bytes, unpack

KINDS: tuple[LevelKind, ...] = ("fitted", "uniform")


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


def together(parts: Sequence[Coded]) -> Coded:
    """Codes of several ranks, as they arrive."""
    return Coded(*(torch.stack(tensors) for tensors in zip(*parts, strict=True)))


def nearest(x: torch.Tensor, bits: int, kind: LevelKind, nudge: float = 0.0) -> torch.Tensor:
    """The levels of one block in float64, number by number; of numbers larger by a share ``nudge``, on its scale."""
    every = levels(bits, kind).double()
    moved = x.double() * (1 + nudge)
    if kind == "uniform":
        most = (1 << (bits - 1)) - 1
        rounded = x.abs().max().to(torch.bfloat16)
        up = torch.nextafter(rounded, torch.tensor(torch.inf, dtype=torch.bfloat16))
        reach = float(rounded if rounded >= x.abs().max() else up)
        return (moved / reach * most).round() / most
    thresholds = ((every[1:] + every[:-1]) / 2 * GRID_POINTS_PER_RMS).round() / GRID_POINTS_PER_RMS
    root = x.double().square().mean().sqrt()
    return every[torch.bucketize(moved / root, thresholds, right=True)]


def on_threshold(x: torch.Tensor, bits: int, kind: LevelKind) -> torch.Tensor:
    """Which numbers of a block are within float32's rounding of where their level changes."""
    return nearest(x, bits, kind, -1e-5) != nearest(x, bits, kind, 1e-5)


@given(st.sampled_from([2, 3, 4]), st.sampled_from(KINDS), st.integers(0, 10**6), st.floats(-15, 15))
def test_a_block_is_coded_by_the_nearest_levels(bits: int, kind: LevelKind, seed: int, exponent: float) -> None:
    """Against float64; only numbers within rounding of a threshold may differ."""
    x = torch.randn(1, 64, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent
    out = torch.empty_like(x)
    coded, error = encode(x, bits, kind, out)
    assert torch.allclose(error, (x - out).double().square().sum(), rtol=1e-4)
    scale = coded.scales.double()
    decoded = out[0].double() / scale
    off = (decoded - nearest(x[0], bits, kind)).abs() > 1e-5
    assert bool(on_threshold(x[0], bits, kind)[off].all()), "a number far from any threshold has another level"
    fitted = (x[0].double() @ decoded) / (decoded @ decoded)
    assert abs(float(scale / fitted) - 1) <= 2.0**-8, "the scale is the least-squares one, rounded"
    assert torch.equal(decode_mean(coded.as_single_rank(), bits, kind, torch.empty_like(x)), out)


@given(
    st.sampled_from(SUPPORTED_BITS),
    st.sampled_from(KINDS),
    st.integers(1, 5),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 3.0]),
)
def test_coding_never_adds_error(bits: int, kind: LevelKind, count: int, seed: int, tail: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 24, generator=generator) * torch.rand(count, 24, generator=generator) ** tail
    x[0, 1:] = 0
    out = torch.empty_like(x)
    encode(x, bits, kind, out)
    assert bool(((x - out).square().sum(1) <= x.square().sum(1) * (1 + 1e-5)).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", SUPPORTED_BITS)
def test_zeros_and_tiny_blocks_stay_finite(bits: int, kind: LevelKind) -> None:
    x = torch.zeros(3, 16)
    x[1] = 1e-44
    x[2] = 1e30
    out = torch.empty_like(x)
    encode(x, bits, kind, out)
    assert bool(out.isfinite().all())
    assert not out[0].any()


def test_a_mean_is_rounded_part_after_part() -> None:
    """As whoever knows some of the numbers already would add them."""
    ours, theirs = torch.randn(4, 16), torch.randn(4, 16)
    parts = [encode(x, 4, "fitted", x)[0] for x in (ours, theirs)]
    assert torch.equal(decode_mean(together(parts), 4, "fitted", torch.empty_like(ours)), (ours + theirs) * 0.5)


@given(blocks=st.integers(1, 40), bits=st.sampled_from([1, 2, 3, 4, 8]), kind=st.sampled_from(["fitted", "uniform"]))
def test_what_is_not_laid_out_adds_what_decoding_gives(blocks: int, bits: int, kind: LevelKind) -> None:
    """Also cut off at the tensor's end, and with numbers on top from some position on."""
    drawn = torch.Generator().manual_seed(blocks)
    x = torch.randn(2 * blocks, 16, generator=drawn)
    halves = [x[:blocks], x[blocks:]]
    parts = together([encode(half, bits, kind)[0] for half in halves])
    expected = decode_mean(parts, bits, kind, torch.empty(blocks, 16)).view(-1)
    more = torch.randn(8, generator=drawn)
    expected[8:16] += more
    start = torch.randn(16 * blocks - 5, generator=drawn)
    lazily = CodedMean(parts, bits, kind, 16, (8, more))
    assert torch.allclose(lazily.add_to(start.clone(), -2.0), start - 2 * expected[:-5], atol=1e-5)


@given(seed=st.integers(0, 10**6), bits=st.sampled_from([1, 2, 3, 4, 8]), scale=st.sampled_from([1e-12, 1.0, 1e12]))
def test_the_error_is_the_same_whether_what_is_decoded_is_kept(seed: int, bits: int, scale: float) -> None:
    x = scale * torch.randn(32, 16, generator=torch.Generator().manual_seed(seed))
    x[0], x[1, 1:] = 0, 0
    kept, exact = encode(x, bits, "fitted", torch.empty_like(x))
    dropped, quick = encode(x, bits, "fitted")
    assert torch.equal(kept.packed, dropped.packed) and torch.equal(kept.scales, dropped.scales)
    assert float(quick) == pytest.approx(float(exact), rel=1e-3)


@pytest.mark.parametrize("bits", FITTED_LEVELS)
def test_fitted_levels_are_those_of_least_error(bits: int) -> None:
    """Each level is the mean of a normal law between its thresholds (Max 1960): moving any gains nothing."""
    x = torch.randn(1, 1 << 18, generator=torch.Generator().manual_seed(0)).double()
    every = levels(bits, "fitted").double() * (FITTED_LEVELS[1][0] if bits == 1 else 1.0)
    which = torch.bucketize(x[0], (every[1:] + every[:-1]) / 2)
    for code, level in enumerate(every):
        assert abs(float(x[0][which == code].mean()) - float(level)) < 0.02


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
