# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Gradients far from 1 are averaged, kept and recorded as others are; and what is not finite is seen."""

import math

import pytest
import torch

from gravac import Compressor, dense, natural, quantize, topk, topkc
from gravac.averaging.average import Averager
from gravac.averaging.in_memory import average, averagers
from gravac.averaging.norms import energies_of, unsent_energy
from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.averaging.residuals import Residuals
from gravac.candidate import DENSE, Candidate
from gravac.compressors.sparse import Sparse
from gravac.compressors.squares import all_finite, energy, norm, norms_of_rows, power_of_two
from gravac.engine.agreement import gain
from gravac.exchange import memory
from gravac.exchange.lockstep import Lockstep
from gravac.testing import gradients

pytestmark = pytest.mark.timeout(120)

FAR = (1.2e-38, 1e-30, 1e-20, 1e18, 1e19, 3e38)
"""Magnitudes of float32 whose squares overflow, vanish, or nearly do."""


def exact(x: torch.Tensor) -> float:
    """``‖x‖²`` by Python's own numbers, relative to the square of its largest magnitude."""
    most = float(x.double().abs().max())
    return math.fsum((value / most) ** 2 for value in x.double().tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("magnitude", FAR)
def test_an_energy_is_right_for_all_magnitudes_of_float32(magnitude: float, dtype: torch.dtype) -> None:
    x = (torch.rand(1000, generator=torch.Generator().manual_seed(0)) + 0.1).mul_(0.9).double().mul(magnitude).to(dtype)
    wanted, most = exact(x), float(x.double().abs().max())
    for size in (energy(x), *energies_of([x, x])):
        assert size.dtype == torch.float64
        assert float(size) / most / most == pytest.approx(wanted, rel=1e-5)
    assert float(norm(x)) / most == pytest.approx(wanted**0.5, rel=1e-5)
    assert float(unsent_energy(x, energy(x), torch.zeros_like(x))) / most / most == pytest.approx(wanted, rel=1e-5)
    half = torch.arange(500)
    left = float(unsent_energy(x, energy(x), Sparse(((half, x[:500]),)))) / most / most
    assert left == pytest.approx(exact(x[500:]) * (float(x[500:].double().abs().max()) / most) ** 2, rel=1e-4)


def test_an_energy_of_float64_that_float64_cannot_hold_is_its_nearest_number() -> None:
    limits = torch.finfo(torch.float64)
    assert float(energy(torch.full((9,), 1e200, dtype=torch.float64))) == limits.max
    assert float(energy(torch.full((9,), 1e-200, dtype=torch.float64))) == limits.tiny
    assert float(norm(torch.full((4,), 1e100, dtype=torch.float64))) == pytest.approx(2e100)


def test_only_zeros_have_energy_zero() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert float(energy(torch.zeros(100_000, dtype=dtype))) == 0
        assert float(energy(torch.empty(0, dtype=dtype))) == 0
        x = torch.zeros(100_000, dtype=dtype)
        x[77_777] = torch.finfo(dtype).smallest_normal
        assert float(energy(x)) > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_element_that_is_not_finite_is_seen_in_a_large_tensor_of_any_magnitude(
    dtype: torch.dtype, bad: float
) -> None:
    for magnitude in (0.0, float(torch.finfo(dtype).smallest_normal), 1.0, float(torch.finfo(dtype).max)):
        x = torch.full((1 << 20,), magnitude, dtype=dtype)
        assert bool(all_finite([energy(x)])), f"{magnitude}"
        for place in (0, 654_321, (1 << 20) - 1):
            x[place] = bad
            assert not bool(all_finite([energy(x)])), f"{magnitude}, {place}"
            assert not bool(all_finite(energies_of([torch.ones(5, dtype=dtype), x]))), f"{magnitude}, {place}"
            x[place] = magnitude


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_rows_far_from_1_are_those_near_1_bit_for_bit(dtype: torch.dtype) -> None:
    rows = torch.randn(6, 100, generator=torch.Generator().manual_seed(0), dtype=dtype)
    rows[4] = 0
    powers = power_of_two(torch.tensor([-100, -70, 0, 63, 100, 120]), dtype)
    assert torch.equal(norms_of_rows(rows * powers.unsqueeze(1)), torch.linalg.vector_norm(rows, dim=1) * powers)


def test_powers_of_two_are_exact_down_to_the_smallest_subnormal() -> None:
    for dtype, least, most in ((torch.float32, -149, 127), (torch.float64, -1074, 1023)):
        exponents = torch.arange(least, most + 1)
        assert power_of_two(exponents, dtype).tolist() == [2.0**exponent for exponent in exponents.tolist()]


@pytest.mark.parametrize("base", [topk, topkc, quantize(4), quantize(1)], ids=repr)
@pytest.mark.parametrize("magnitude", [1e-30, 1e18, 1e19, 1e37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_gradients_of_any_magnitude_of_float32_reach_all_ranks_finite(
    base: Compressor, magnitude: float, dtype: torch.dtype
) -> None:
    cf = 8.0 if base == quantize(4) else 32.0
    ranks = averagers(base, 3, 1.0)
    for step in range(3):
        xs = [(x.double() * magnitude).to(dtype) for x in gradients(3, (40, 40), seed=step)]
        outs = average(ranks, xs, cf, step)
        for averager, out in zip(ranks, outs, strict=True):
            assert bool(out.isfinite().all()) and bool(averager.recording.finite)
            share = gain(float(averager.recording.error), float(averager.recording.energy))
            assert share is not None and 0 < share < 1
            assert torch.equal(out, outs[0])
            assert bool(averager.residuals.by_name["w"].isfinite().all())


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float16, 60000.0), (torch.float32, 1e38), (torch.bfloat16, 1e38)], ids=str
)
def test_dense_means_do_not_overflow_where_native_ddps_do_not(
    host_looks: bool, world: int, dtype: torch.dtype, largest: float
) -> None:
    lockstep = Lockstep(world, host_looks=host_looks)
    outs = [torch.full((50,), largest, dtype=dtype) for _ in range(world)]
    made = [Averager(topk, dense, None, 10, Residuals(overflow_safety=True)) for _ in range(world)]
    for rank, (averager, executor) in enumerate(zip(made, lockstep.executors, strict=True)):
        averager.rank, averager.world = rank, world
        averager.measure(StepRecording(0, Candidate(DENSE, 1.0, 1.0)), executor)
    memory.run(
        [one.average([Piece("w", out, (5, 10))], one.plan(0, None), out) for one, out in zip(made, outs, strict=True)]
    )
    for out in outs:
        assert torch.allclose(out.double(), torch.full((50,), largest, dtype=torch.float64), rtol=1e-2)


def test_natural_compression_of_subnormal_numbers_errs_by_no_more_than_they_are() -> None:
    for magnitude in (1e-40, 1.5e-45, 1e-38, 3e-39):
        (x,) = gradients(1, (40, 40))
        x = (x.double() * magnitude).float()
        (out,) = average(averagers(natural, 1), [x], 4.0, 0)
        assert bool(((out.double() - x.double()).abs() <= x.double().abs()).all()), f"{magnitude}"
