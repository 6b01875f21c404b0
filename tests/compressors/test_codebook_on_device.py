# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The codebook for devices, run on a CPU: what it makes and what it decodes has the bits of the CPU's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.compressors import codebook, codebook_on_device
from gravac.compressors.levels import LevelKind
from gravac.compressors.messages import Messages, encode
from gravac.compressors.packing import SUPPORTED_BITS, pack, pack_into, packed_bytes

CODES: list[tuple[int, LevelKind]] = [
    *((bits, "fitted") for bits in SUPPORTED_BITS),
    *((bits, "uniform") for bits in (1, 2, 3, 4)),
]

every_code = pytest.mark.parametrize(("bits", "kind"), CODES)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@every_code
@pytest.mark.parametrize("block", [8, 24, 128])
def test_codes_scales_and_errors_are_the_cpu_s(bits: int, kind: LevelKind, block: int) -> None:
    x = randn(512, block) * torch.logspace(-12, 12, 512).unsqueeze(1)
    x[0] = 0
    for rows in (x, x[:1], x[:0]):
        (want, lost), (got, error) = (one.encode(rows, bits, kind) for one in (codebook, codebook_on_device))
        assert torch.equal(got.packed, want.packed)
        assert torch.equal(got.scales, want.scales)
        assert torch.allclose(error, lost, rtol=1e-6)


@every_code
def test_what_is_coded_and_decoded_at_once_is_what_is_decoded(bits: int, kind: LevelKind) -> None:
    x = randn(300, 40)
    coded, numbers = codebook_on_device.encode_decoded(x, bits, kind)
    assert torch.equal(codebook_on_device.decode(*coded, bits, kind, 40), numbers)
    want = torch.empty_like(x)
    codebook.encode(x, bits, kind, want)
    assert torch.equal(numbers, want)


@every_code
@pytest.mark.parametrize(("shards", "parts"), [(1, 1), (1, 2), (3, 1), (2, 2), (2, 5)])
@pytest.mark.parametrize("offset", [0, 3])
def test_messages_of_many_ranks_are_decoded_at_once(
    bits: int, kind: LevelKind, shards: int, parts: int, offset: int
) -> None:
    made = [encode(randn(shards * 7 * 40, seed=part), bits, kind, 40, shards)[0] for part in range(parts)]
    wider = torch.nn.functional.pad(torch.stack(made, dim=1), (offset, 5))  # cut out of longer ones, maybe unaligned
    messages = Messages(wider[..., offset:-5], bits, kind, 40)
    got, want = messages._decoded_on_device(), messages.decoded()
    if parts <= 2:
        assert torch.equal(got, want)
    else:  # torch's sum has an order of its own
        assert torch.allclose(got, want, atol=1e-6)


@given(st.sampled_from([1, 2, 3, 4]), st.integers(0, 70), st.booleans(), st.integers(0, 2**31))
def test_neighbours_added_until_they_fill_bytes_are_packed(bits: int, count: int, wide: bool, seed: int) -> None:
    codes = torch.randint(1 << bits, (3, count), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = torch.full((3, packed_bytes(count, bits)), 255, dtype=torch.uint8)
    pack_into(packed, codes.int() if wide else codes, bits)
    assert torch.equal(packed, pack(codes, bits))


def test_what_is_not_finite_is_coded_somehow() -> None:
    x = randn(6, 8)
    x[1, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    for bits, kind in CODES:
        coded, _ = codebook_on_device.encode(x, bits, kind)
        clean, _ = codebook_on_device.encode(randn(6, 8), bits, kind)
        assert torch.equal(coded.packed[2:], clean.packed[2:])
        codebook_on_device.decode(*coded, bits, kind, 8)
