# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""QSGD, TernGrad, natural compression, sign and IntSGD: laws, plain references, and what their papers promise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import testing as conformance
from gravac.averaging.in_memory import exchange, exchange_steps
from gravac.collectives import Ledger
from gravac.compressors import Compressor, Context
from gravac.compressors.baselines.intsgd import (
    bits_on_wire,
    bytes_on_wire,
    integer_limit,
    intsgd,
    pack_for_sum,
    unpack_sums,
)
from gravac.compressors.baselines.natural import natural
from gravac.compressors.baselines.qsgd import QSGD, qsgd
from gravac.compressors.baselines.signsgd import majority, signsgd
from gravac.compressors.baselines.terngrad import terngrad
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from gravac.exchange.fuse import fuse
from gravac.settings import SettingsError

ALL: tuple[Compressor, ...] = (
    qsgd,
    qsgd(bits=2, bucket=64),
    qsgd(bits=8, norm="max"),
    qsgd(bits=2, norm="max", bucket=7),
    terngrad,
    terngrad(clip=2.5),
    natural,
    signsgd,
    signsgd(block=100),
    majority,
    majority(block=100),
    intsgd,
    intsgd(bits=16),
    intsgd(block=7),
)

UNBIASED = tuple(compressor for compressor in ALL if compressor.unbiased)


def sent(compressor: Compressor, x: torch.Tensor, step: int = 0) -> torch.Tensor:
    """What one rank alone sends of flat x."""
    cf = conformance.cfs_of(compressor)[0]
    return as_dense(exchange(compressor, [x], cf, step=step)[0].sent, x)


def draws(elements: int, rank: int = 0, world: int = 1) -> list[float]:
    """The numbers in [0, 1) that `conformance.exchange` lets a rank round by at step 0."""
    context = Context("w", 0, rank, world, 0)
    return [float(u) for u in context.draws(per_rank=True).uniform(elements)]


def heavy(elements: int, seed: int = 0, outlier: float = 30.0) -> torch.Tensor:
    """float64 with small values, zeros and one outlier."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(elements, generator=generator, dtype=torch.float64)
    x *= torch.rand(elements, generator=generator, dtype=torch.float64) ** 3
    x[elements // 2] = -outlier
    x[: elements // 5] = 0
    return x


@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_obeys(compressor: Compressor) -> None:
    conformance.check_compressor(compressor)


@pytest.mark.parametrize("compressor", UNBIASED, ids=repr)
@pytest.mark.parametrize("outlier", [1.0, 30.0, 300.0])
def test_unbiased(compressor: Compressor, outlier: float) -> None:
    # independent errors: the mean of T trials is off by 1/T of the expected squared error; a bias does not shrink so
    x = heavy(300, outlier=outlier)
    (cf,) = conformance.cfs_of(compressor)
    trials = torch.stack([as_dense(reduced.sent, x) for reduced in exchange_steps(compressor, x, cf, 500)])
    off = float((trials.mean(0) - x).square().sum())
    (foreseen,) = compressor.errors(x, [1.0], Context(shape=(300,)))
    assert off <= 4 * float(foreseen) / len(trials)
    lost = (trials - x).square().sum(1)
    noise = float(lost.std()) / math.sqrt(len(trials))
    assert abs(float(lost.mean() - foreseen)) <= 5 * noise + 1e-9 * float(foreseen)


def test_clipping_is_declared_biased() -> None:
    assert terngrad.unbiased and not terngrad(clip=2.5).unbiased


def round_up(value: float, draw: float) -> int:
    return math.floor(value) + (draw < value - math.floor(value))


@pytest.mark.parametrize("elements", [1, 7, 512, 513, 1001])
@pytest.mark.parametrize("compressor", [qsgd, qsgd(bits=2), qsgd(bits=8, norm="max"), qsgd(bucket=7)], ids=repr)
def test_qsgd_by_hand(compressor: QSGD, elements: int) -> None:
    x = heavy(elements)
    levels = 2 ** (compressor.bits - 1) - 1
    expected = []
    for i, (value, draw) in enumerate(zip(x.tolist(), draws(elements), strict=True)):
        first = i // compressor.bucket * compressor.bucket
        bucket = x[first : first + compressor.bucket].tolist()
        norm = max(map(abs, bucket)) if compressor.norm == "max" else math.sqrt(math.fsum(v * v for v in bucket))
        level = round_up(abs(value) / norm * levels, draw) if norm else 0
        expected.append(math.copysign(norm * level / levels, value))
    assert torch.allclose(sent(compressor, x), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("elements", [1, 7, 130, 1001])
@pytest.mark.parametrize("clip", [0.0, 2.5])
def test_terngrad_by_hand(clip: float, elements: int) -> None:
    x = heavy(elements)
    limit = clip * math.sqrt(math.fsum(v * v for v in x.tolist()) / elements) if clip else math.inf
    cut = [max(-limit, min(limit, v)) for v in x.tolist()]
    scale = max(map(abs, cut))
    expected = [math.copysign(scale * (u < abs(v) / scale), v) for v, u in zip(cut, draws(elements), strict=True)]
    got = sent(terngrad(clip=clip), x)
    assert torch.allclose(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("elements", [1, 7, 1001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-36, 1e15])
def test_natural_by_hand(elements: int, dtype: torch.dtype, scale: float) -> None:
    x = (heavy(elements) * scale).to(dtype)
    tiny = max(math.frexp(float(x.abs().max()))[1] - 126, -149 if dtype == torch.float32 else -1074)
    expected = []
    for value, draw in zip(x.tolist(), draws(elements), strict=True):
        below = 2.0 ** (math.frexp(value)[1] - 1)
        magnitude = below * (1 + (draw < abs(value) / below - 1))
        if abs(value) < 2.0**tiny:
            magnitude = 2.0**tiny * (draw < abs(value) / 2.0**tiny)
        expected.append(math.copysign(magnitude, value))
    assert sent(natural, x).tolist() == expected


def test_natural_rounds_what_is_out_of_its_range_to_zero_or_the_smallest() -> None:
    x = torch.tensor([1.0, 2.0**-126, -(2.0**-127), 2.0**-300, -0.0], dtype=torch.float64)
    seen = {tuple(sent(natural, x, step).tolist()) for step in range(64)}
    assert {row[0] for row in seen} == {1.0}
    assert {row[2] for row in seen} == {0.0, -(2.0**-125)}
    assert {row[3] for row in seen} == {0.0} == {row[4] for row in seen}


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=40))
def test_natural_second_moment(values: list[float]) -> None:
    x = torch.tensor([v if abs(v) > 1e-30 else 0.0 for v in values], dtype=torch.float64)
    (variance,) = natural.errors(x, [4.0], Context())
    assert float(variance) <= float(x.square().sum()) / 8 * (1 + 1e-12)
    got = sent(natural, x)
    mantissas = got[got != 0].frexp().mantissa.abs()
    assert bool((mantissas == 0.5).all())
    assert bool(((got - x).abs() <= x.abs()).all())


def test_natural_second_moment_is_met() -> None:
    x = torch.full((200_000,), 4 / 3, dtype=torch.float64)  # the worst: 9/8
    assert float(sent(natural, x).square().mean() / x[0] ** 2) == pytest.approx(9 / 8, rel=0.01)


@pytest.mark.parametrize("elements", [1, 7, 9, 1001])
@pytest.mark.parametrize("block", [0, 4])
def test_signsgd_by_hand(block: int, elements: int) -> None:
    x = heavy(elements)
    expected = []
    for first in range(0, elements, block or elements):
        values = x[first : first + (block or elements)].tolist()
        scale = math.fsum(map(abs, values)) / len(values)
        expected += [scale if v >= 0 else -scale for v in values]
    assert torch.allclose(sent(signsgd(block=block), x), torch.tensor(expected, dtype=torch.float64), rtol=1e-12)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=50), st.integers(0, 9))
def test_signsgd_contracts(values: list[float], block: int) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    error = float((x - sent(signsgd(block=block), x)).square().sum())
    energy = float(x.square().sum())
    (foreseen,) = signsgd(block=block).errors(x, [32.0], Context())
    assert error == pytest.approx(float(foreseen), rel=1e-9, abs=1e-12)
    assert error <= energy * (1 + 1e-12)
    if not block and energy:
        delta = float(x.abs().sum()) ** 2 / (len(values) * energy)
        assert error == pytest.approx((1 - delta) * energy, rel=1e-9, abs=1e-9 * energy)


def test_majority_by_hand() -> None:
    ranks = [
        torch.tensor([-1.0, 3.0, 2.0, 0.0]),  # mean magnitude 1.5
        torch.tensor([-2.0, -3.0, 1.0, 0.0]),  # 1.5
        torch.tensor([5.0, -1.0, 6.0, 0.0]),  # 3
    ]
    for got in exchange(majority, ranks, 32.0):
        assert isinstance(got.mean, torch.Tensor) and isinstance(got.sent, torch.Tensor)
        assert got.mean.tolist() == [-2.0, -2.0, 2.0, 0.0]
        assert torch.equal(got.mean, got.sent)


@pytest.mark.parametrize("world", [1, 3, 128, 200])
def test_majority_keeps_negative_signs(world: int) -> None:
    # GRACE's decoder gave + to both of the negative ones
    xs = [torch.tensor([-1.0, -3.0, 2.0, 4.0, -1.0])] * world
    got = exchange(majority, xs, 32.0)[0].mean
    assert isinstance(got, torch.Tensor)
    assert got.sign().tolist() == [-1, -1, 1, 1, -1]
    assert got.abs().tolist() == pytest.approx([2.2] * 5, rel=1e-5)


def test_majority_may_tie_and_abstain() -> None:
    got = exchange(majority, [torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 0.0])], 32.0)[0].mean
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [0.0, 0.75]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("elements", [1, 7, 33])
def test_intsgd_by_hand(bits: int, elements: int) -> None:
    world, block = 3, 5
    xs = [heavy(elements, seed) * (seed + 1) for seed in range(world)]
    limit = (2 ** (bits - 1) - 1) // world
    rows = []
    for rank, x in enumerate(xs):
        row = []
        for i, (value, draw) in enumerate(zip(x.tolist(), draws(elements, rank, world), strict=True)):
            first = i // block * block
            largest = max(float(other[first : first + block].abs().max()) for other in xs)
            integer = round_up(abs(value) / largest * limit, draw) if largest else 0
            row.append(math.copysign(integer * largest / limit, value))
        rows.append(torch.tensor(row, dtype=torch.float64))
    for got, row in zip(exchange(intsgd(bits=bits, block=block), xs, 32 / bits), rows, strict=True):
        assert isinstance(got.mean, torch.Tensor) and isinstance(got.sent, torch.Tensor)
        assert torch.allclose(got.sent, row, rtol=1e-12, atol=0)
        assert torch.allclose(got.mean, sum(rows, torch.zeros_like(row)) / world, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("bits", "world"), [(8, 64), (8, 127), (8, 128), (16, 64), (16, 200)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_intsgd_cannot_overflow(bits: int, world: int, sign: float) -> None:
    xs = [torch.full((9,), sign * 7.0)] * world
    came = exchange(intsgd(bits=bits), xs, 32 / bits)[0]
    assert isinstance(came.mean, torch.Tensor)
    assert torch.allclose(came.mean, xs[0], rtol=1e-6)
    assert came.cf == (2.0 if world > 127 else 32 / bits)


@pytest.mark.parametrize("compressor", [intsgd, intsgd(bits=16), majority], ids=repr)
def test_traffic_knows_that_many_ranks_need_wider_lanes(compressor: Compressor) -> None:
    world, shape = 128, (3, 3)
    ledgers = [Ledger(world) for _ in range(world)]
    contexts = [Context(rank=rank, world=world, shape=shape) for rank in range(world)]
    memory.run([fuse([compressor.rounds(torch.ones(9), 1.0, c)]) for c in contexts], ledgers)
    predicted = sum(traffic.payload_bytes for traffic in compressor.traffic(shape, 1.0, torch.float32, world))
    assert predicted == 4 + 20
    assert predicted <= ledgers[0].payload_bytes <= predicted + 16


def test_lanes_grow_with_the_world() -> None:
    assert [bits_on_wire(8, world) for world in (1, 127, 128, 32767, 32768)] == [8, 8, 16, 16, 32]
    assert [integer_limit(8, world) for world in (1, 2, 64, 127)] == [127, 63, 1, 1]


@given(st.lists(st.integers(-4681, 4681), max_size=9), st.integers(1, 7))
def test_pairs_of_16_bit_survive_the_sum(values: list[int], world: int) -> None:
    integers = torch.tensor(values, dtype=torch.int32)
    packed = pack_for_sum(integers, 16)
    assert packed.numel() * packed.element_size() == bytes_on_wire(len(values), 16)
    assert unpack_sums(packed * world, 16, len(values)).tolist() == [value * world for value in values]


@pytest.mark.parametrize("extreme", [32767, -32767])
def test_pairs_at_their_limit(extreme: int) -> None:
    integers = torch.tensor([extreme, extreme, -extreme, extreme, 0], dtype=torch.int32)
    assert unpack_sums(pack_for_sum(integers, 16), 16, 5).tolist() == integers.tolist()


@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_tiny_and_huge_values_give_numbers(compressor: Compressor) -> None:
    for value in (1e-45, 1e-38, 1e15):
        for x in (torch.full((5,), value), torch.tensor([value, 0.0, -value]), torch.tensor([1.0, value, -0.0])):
            assert bool(sent(compressor, x).isfinite().all())
            assert bool(compressor.errors(x, [1.0], Context())[0].isfinite())


@pytest.mark.parametrize("compressor", ALL, ids=repr)
def test_one_candidate_when_in_range(compressor: Compressor) -> None:
    (cf,) = conformance.cfs_of(compressor)
    assert compressor.candidates((cf, cf)) == (cf,)
    assert compressor.candidates((cf + 1, 1000.0)) == ()


@pytest.mark.parametrize(
    ("compressor", "wrong"),
    [
        (qsgd, {"bits": 3}),
        (qsgd, {"bucket": 0}),
        (qsgd, {"norm": "l1"}),
        (terngrad, {"clip": -1.0}),
        (terngrad, {"clip": math.inf}),
        (signsgd, {"block": -1}),
        (intsgd, {"bits": 4}),
        (intsgd, {"block": 0}),
    ],
    ids=str,
)
def test_refuses(compressor: Compressor, wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        compressor(**wrong)
