# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The quantizer's kernels against the codebook on CPU: its codes, but for numbers on a threshold; decoded, its bits."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gravac.compressors import codebook
from gravac.compressors.codebook import SCALE_DTYPE, Coded, CodedMean
from gravac.compressors.levels import GRID_POINTS_PER_RMS, LevelKind, levels
from gravac.compressors.packing import SUPPORTED_BITS, packed_bytes, unpack
from tests.kernels import DEVICE, kernels

quantize, shared = kernels("quantize"), kernels("codes")
code_table_for, codes_of = shared.code_table_for, shared.codes_of
triton = pytest.importorskip("triton")
tl = triton.language

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of what is divided by zero

CODES: list[tuple[int, LevelKind]] = [(8, "uniform"), *((bits, "fitted") for bits in (4, 3, 2, 1))]
CODES += [(4, "uniform"), (3, "uniform"), (2, "uniform")]
BLOCKS = (8, 24, 40, 128, 200, 1024, 1000, 16384)

every_code = pytest.mark.parametrize(("bits", "kind"), CODES)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def padded(x: torch.Tensor, block: int, shards: int = 1) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, -x.numel() % (block * shards))).view(-1, block)


def split(message: torch.Tensor, bits: int, block: int) -> Coded:
    """What the messages ``[shards, bytes]`` say of all their blocks."""
    width = packed_bytes(block, bits)
    per = message.shape[1] // (width + SCALE_DTYPE.itemsize)
    scales = message[:, per * width :].clone(memory_format=torch.contiguous_format).view(SCALE_DTYPE)
    return Coded(message[:, : per * width].reshape(-1, width), scales.reshape(-1))


def joined(coded: Coded) -> torch.Tensor:
    """A message of these blocks: uint8, flat."""
    return torch.cat([coded.packed.reshape(-1), coded.scales.view(torch.uint8)])


def assert_same(got: Coded, want: Coded, bits: int, block: int) -> None:
    """Under 1e-5 of all codes differ (one, of few), by one; scales by one place at most."""
    codes, wanted = (unpack(one.packed, bits, block).to(torch.int16) for one in (got, want))
    if bits == 8:
        codes, wanted = (one.to(torch.uint8).view(torch.int8).to(torch.int16) for one in (codes, wanted))
    apart = (codes - wanted).abs()
    assert int((apart > 0).sum()) <= max(1, 1e-5 * codes.numel())
    assert int(apart.max()) <= 1
    assert int((got.scales.view(torch.int16).int() - want.scales.view(torch.int16).int()).abs().max()) <= 1


@triton.jit
def _given(
    x: tl.tensor,
    inverse: tl.tensor,
    codes: tl.tensor,
    numbers: tl.tensor,
    block: tl.tensor,
    bits: tl.constexpr,
    points: tl.constexpr,
    most: tl.constexpr,
) -> None:
    at = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    fine = tl.load(x + at, mask=at < numbers, other=0) * tl.load(inverse + at // block, mask=at < numbers, other=0)
    tl.store(codes + at, codes_of(fine, bits, points, most).to(tl.uint8), mask=at < numbers)


def codes_given(x: torch.Tensor, inverse: torch.Tensor, bits: int, kind: LevelKind) -> torch.Tensor:
    """The kernel's codes of ``[blocks, block]`` numbers multiplied by what is given."""
    code, codes = code_table_for(bits, kind), torch.empty_like(x, dtype=torch.uint8, device=DEVICE)
    grid = (triton.cdiv(x.numel(), 1024),)
    args = (x.to(DEVICE), inverse.to(DEVICE), codes, x.numel(), x.shape[1], bits, code.threshold_points, code.max_code)
    _given[grid](*args, enable_fp_fusion=False)
    return codes.cpu()


@every_code
def test_given_the_cpu_s_scales_codes_are_its_own_bit_for_bit(bits: int, kind: LevelKind) -> None:
    x = randn(512, 128) * torch.logspace(-12, 12, 512).unsqueeze(1)
    x[0] = 0
    if bits == 1:
        inverse = torch.ones(512)
    elif kind == "uniform":
        inverse = ((1 << (bits - 1)) - 1) / codebook.encode(x, 8, kind)[0].scales.float()
    else:
        inverse = GRID_POINTS_PER_RMS * 128**0.5 / torch.linalg.vector_norm(x, dim=1)
    codes = codes_given(x, inverse.nan_to_num(0, 0), bits, kind)
    assert torch.equal(codes, unpack(codebook.encode(x, bits, kind)[0].packed, bits, 128))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_codes_change_on_the_grid_points_themselves(bits: int) -> None:
    every = levels(bits, "fitted").double()
    points = ((every[1:] + every[:-1]) / 2 * GRID_POINTS_PER_RMS).round().float()
    fine = torch.cat([points, points.nextafter(torch.tensor(-1e9)), points + 0.5, torch.tensor([-1e9, -0.0, 1e9])])
    codes = codes_given(fine.unsqueeze(0), torch.ones(1), bits, "fitted")
    assert torch.equal(codes[0].long(), torch.bucketize(fine, points, right=True))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_even_levels_are_rounded_half_to_even(bits: int) -> None:
    most = (1 << (bits - 1)) - 1
    fine = torch.arange(-2 * most - 1, 2 * most + 2) / 2
    codes = codes_given(fine.unsqueeze(0), torch.ones(1), bits, "uniform")[0]
    steps = codes.view(torch.int8) if bits == 8 else codes.int() - most
    assert torch.equal(steps.float(), fine.round().clamp(-most, most))


@every_code
def test_end_to_end_codes_differ_on_thresholds_alone_and_scales_by_one_place(bits: int, kind: LevelKind) -> None:
    x = randn(1 << 17) * 1e-3
    want, error = codebook.encode(x.view(-1, 128), bits, kind)
    message, sums = quantize.encode(x.to(DEVICE), bits, kind, 128)
    assert_same(split(message.cpu(), bits, 128), want, bits, 128)
    assert torch.allclose(sums.cpu(), torch.stack([error, x.square().sum(), torch.zeros(())]), rtol=1e-4)


@every_code
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_of_any_size_in_shards_that_the_tensor_does_not_fill(bits: int, kind: LevelKind, block: int) -> None:
    x = randn(5 * block + 3, seed=block)
    message, _ = quantize.encode(x.to(DEVICE), bits, kind, block, shards=4)
    want, _ = codebook.encode(padded(x, block, 4), bits, kind)
    assert message.shape == (4, 2 * (packed_bytes(block, bits) + 2))
    assert_same(split(message.cpu(), bits, block), want, bits, block)


@every_code
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_residual_is_added_on_the_way_and_replaced_by_what_is_left(
    bits: int, kind: LevelKind, dtype: torch.dtype
) -> None:
    gradient, residual = randn(3001).to(dtype), randn(3001, seed=1)
    x = residual + gradient
    kept, sent = residual.to(DEVICE), torch.empty(3001, device=DEVICE)
    message, _ = quantize.encode(gradient.to(DEVICE), bits, kind, 128, residual=kept, decoded=sent, unsent=kept)
    assert_same(split(message.cpu(), bits, 128), codebook.encode(padded(x, 128), bits, kind)[0], bits, 128)
    assert torch.equal(kept.cpu(), x - sent.cpu())
    of_message = quantize.decode(torch.empty_like(sent), message.unsqueeze(1), bits, kind, 128)
    assert torch.equal(sent, of_message)


@settings(max_examples=15)
@given(st.sampled_from(CODES), st.sampled_from([8, 24, 128]), st.integers(1, 400), st.integers(-20, 15), st.integers(0))
def test_coding_never_adds_error(
    code: tuple[int, LevelKind], block: int, elements: int, exponent: int, seed: int
) -> None:
    x = (randn(elements, seed=seed % 10**6) * 10.0**exponent).to(DEVICE)
    left = torch.empty_like(x)
    quantize.encode(x, *code, block, unsent=left)
    assert float(left.double().norm()) <= float(x.double().norm()) * (1 + 1e-6)


@every_code
def test_zeros_and_nothing_at_all_are_coded(bits: int, kind: LevelKind) -> None:
    message, sums = quantize.encode(torch.zeros(300, device=DEVICE), bits, kind, 128)
    assert split(message.cpu(), bits, 128).scales.tolist() == [0.0, 0.0, 0.0]
    assert sums.tolist() == [0.0, 0.0, 0.0]
    dense = torch.ones(300, device=DEVICE)
    assert quantize.decode(dense, message.unsqueeze(1), bits, kind, 128, 1.0).eq(1).all()
    message, sums = quantize.encode(torch.empty(0, device=DEVICE), bits, kind, 128, shards=2)
    assert message.shape == (2, 0) and sums.tolist() == [0.0, 0.0, 0.0]
    assert quantize.decode(dense, message.unsqueeze(1), bits, kind, 128).eq(1).all()


@every_code
def test_what_is_not_finite_is_counted_and_harms_no_other_block(bits: int, kind: LevelKind) -> None:
    x = randn(400)
    clean, _ = quantize.encode(x.to(DEVICE), bits, kind, 40)
    x[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    spoilt, sums = quantize.encode(x.to(DEVICE), bits, kind, 40)
    assert float(sums[2]) == 3 and not sums[1].isfinite()
    mine, other = split(spoilt.cpu(), bits, 40), split(clean.cpu(), bits, 40)
    assert torch.equal(mine.packed[1:], other.packed[1:])
    assert torch.equal(mine.scales[1:], other.scales[1:])


@every_code
@pytest.mark.parametrize(("shards", "parts", "alpha"), [(1, 2, 1.0), (1, 1, -1.0), (3, 1, 1.0), (2, 5, None)])
def test_what_is_decoded_is_the_cpu_s_bit_for_bit(
    bits: int, kind: LevelKind, shards: int, parts: int, alpha: float | None
) -> None:
    block, per = 40, 7
    coded = [
        [codebook.encode(randn(per, block, seed=10 * shard + part), bits, kind)[0] for part in range(parts)]
        for shard in range(shards)
    ]
    dense = randn(shards * per * block - 11)
    mean = torch.cat([CodedMean(together(one), bits, kind, block).add_to(torch.zeros(per * block)) for one in coded])
    want = mean[: len(dense)] if alpha is None else dense.add(mean[: len(dense)], alpha=alpha)
    got = quantize.decode(dense.to(DEVICE), received(coded).to(DEVICE), bits, kind, block, alpha).cpu()
    assert torch.equal(got, want)
    longer = quantize.decode(torch.ones(1111, device=DEVICE), received(coded).to(DEVICE), bits, kind, block)
    assert longer[shards * per * block :].eq(1).all()


def together(parts: Sequence[Coded]) -> Coded:
    """Codes of several ranks as one."""
    return Coded(*map(torch.stack, zip(*parts, strict=True)))


def received(coded: Sequence[Sequence[Coded]]) -> torch.Tensor:
    """Messages as a collective brings them, ``[shards, parts, bytes]``: cut out of longer ones, and not aligned."""
    messages = torch.stack([torch.stack([joined(part) for part in parts]) for parts in coded])
    wider = torch.nn.functional.pad(messages, (3, 5))
    return wider[:, :, 3:-5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_is_written_into_a_gradient_of_16_bits(dtype: torch.dtype) -> None:
    coded = [[codebook.encode(randn(4, 128, seed=part), 4, "fitted")[0] for part in range(2)]]
    exact = codebook.decode_mean(together(coded[0]), 4, "fitted", torch.empty(4, 128)).view(-1)
    dense = quantize.decode(torch.empty(512, dtype=dtype, device=DEVICE), received(coded).to(DEVICE), 4, "fitted", 128)
    off = dense.cpu().view(torch.int16) - exact.to(dtype).view(torch.int16)
    # triton's interpreter cuts off what bfloat16 has no bits for, where a GPU rounds
    assert int(off.abs().max()) <= int(DEVICE == "cpu" and dtype == torch.bfloat16)


def test_tensors_that_lie_otherwise_are_refused_by_name() -> None:
    x = torch.ones(64, device=DEVICE)
    with pytest.raises(ValueError, match=r"unsent: .* \[32\]"):
        quantize.encode(x[:32], 4, "fitted", 8, unsent=x)
    with pytest.raises(ValueError, match=r"gradient: .* give a contiguous tensor"):
        quantize.encode(x[::2], 4, "fitted", 8)
    with pytest.raises(ValueError, match=r"residual: its dtype is torch\.float16"):
        quantize.encode(x, 4, "fitted", 8, residual=x.half())
    with pytest.raises(ValueError, match="block: 12"):
        quantize.encode(x, 4, "fitted", 12)
    with pytest.raises(ValueError, match=r"messages: .* \[shards, parts, bytes\]"):
        quantize.decode(x, x.view(8, 8).byte(), 4, "fitted", 8)


class Launches(TorchDispatchMode):
    """Names of the operators called, but for those that look at memory in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func).removesuffix(".default"))
        return func(*args, **(kwargs or {}))


def test_a_round_trip_of_two_ranks_is_three_launches() -> None:
    gradient, residual = randn(10_000).to(DEVICE), randn(10_000, seed=1).to(DEVICE)
    with Launches() as launches:
        message, _ = quantize.encode(gradient, 4, "fitted", 128, residual=residual, unsent=residual)
        both = message.expand(2, -1)  # what an all-gather brings
        quantize.decode(gradient, both.unsqueeze(0), 4, "fitted", 128)
    assert launches.names == ["gravac.quantize_encode", "aten.sum.dim_IntList", "gravac.quantize_decode"]


@pytest.mark.parametrize("bits", SUPPORTED_BITS)
def test_the_operators_keep_their_promises_to_pytorch(bits: int) -> None:
    x = randn(1000).to(DEVICE)
    checks = ("test_schema", "test_faketensor")
    for residual, decoded in ((None, None), (torch.ones_like(x), torch.empty_like(x))):
        args = (x, residual, decoded, None, 2, 4, 128, bits, "fitted")
        torch.library.opcheck(quantize._encode_op, args, test_utils=checks)
    message, _ = quantize.encode(x, bits, "fitted", 128)
    torch.library.opcheck(quantize._decode_op, (x, message.unsqueeze(1), bits, "fitted", 128, 1.0), test_utils=checks)
