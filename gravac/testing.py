# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Laws that every compressor must obey, for compressors of your own. All ranks run in one process, without a network.

In a test suite::

    def test_my_compressor():
        check_compressor(MyCompressor())

The other functions of this file are gravac's own: the laws, each a function that takes a compressor.
``gravac.averaging.in_memory`` averages their gradients.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from gravac.averaging.in_memory import (
    TensorOfRanks,
    average,
    averagers,
    exchange,
    exchange_steps,
    exchange_tensors,
    residual_of,
)
from gravac.candidate import Span
from gravac.collectives import Ledger
from gravac.compressors import Compressor, Context, Reduced
from gravac.compressors.base import energy
from gravac.compressors.codes import coding_error
from gravac.compressors.sparse import as_dense
from gravac.engine.agreement import gain

__all__ = ["check_compressor"]

WORLDS = (1, 2, 3, 8)
"""Numbers of ranks with which a law is checked."""

SHAPES = ((48, 32), (7, 11, 3), (1, 1), (129, 1), (0, 4))
"""Shapes of the tensors with which laws are checked."""

Law = Callable[[Compressor], None]
"""Function that raises an ``AssertionError`` if a compressor breaks a law."""

MEANS_DIFFER = "Reduced.mean differs between ranks; compute mean only from what all ranks have in common"
"""Message of a law, after the case."""

STATE_IN_CONTEXT = "keep state only in ctx.state, and draw random numbers from ctx.draws()"
"""Remedy for a compressor whose results are not determined by gradient, seed, name and step."""


def check_compressor(compressor: Compressor) -> None:
    """Check that a compressor obeys every law, on 1, 2, 3 and 8 ranks in this process. Takes seconds.

    Args:
        compressor: compressor with the settings to check; check each setting that changes what is sent.

    Raises:
        AssertionError: the compressor breaks a law; the message has the law's name, the case and the numbers.

    Example:
        >>> from gravac import topk
        >>> check_compressor(topk(values="bfloat16"))
    """
    for law in LAWS:
        try:
            law(compressor)
        except AssertionError as error:
            raise AssertionError(f"{law.__name__}: {error}") from error


def gradients(world: int, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    """Return a random gradient for each of ``world`` ranks: of the given shape, float32, with heavy tails."""
    generator = torch.Generator().manual_seed(seed)

    def gradient() -> torch.Tensor:
        normal = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        return normal * torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") ** 3

    return [gradient() for _ in range(world)]


def error_of(reduced: Reduced, x: torch.Tensor) -> float:
    """Return the squared error that gain is computed from: of ``reduced``, or ``‖x - sent‖²`` if it states none.

    Args:
        reduced: a rank's result for ``x``.
        x: the rank's gradient, of any shape.
    """
    stated_errors = [] if reduced.error is None else [reduced.error]
    stated_errors += [] if reduced.coded is None else [coding_error([reduced.coded])]
    return float(sum(stated_errors)) if stated_errors else float(energy(x.reshape(-1) - as_dense(reduced.sent, x)))


def cfs_of(compressor: Compressor) -> tuple[float, ...]:
    """Return the compression factors (CFs) at which a compressor is tested.

    All CFs that the compressor supports up to 1000, or four of them if it supports a whole range (``Span``).

    Example:
        >>> from gravac import quantize
        >>> cfs_of(quantize)  # 8, 4, 2 and 1 bit
        (4.0, 8.0, 16.0, 32.0)
    """
    supported_cfs = compressor.candidates((1.0, 1000.0))
    return (1.0, 2.0, 10.0, 250.0) if isinstance(supported_cfs, Span) else supported_cfs


def the_mean_is_the_mean_of_what_was_sent(compressor: Compressor) -> None:
    """Check that ``Reduced.mean`` is the mean of the ranks' ``Reduced.sent``, up to the compressor's ``rounding``."""
    for case, xs, results, _ in _shared_runs(compressor):
        sent = torch.stack([as_dense(result.sent, x).double() for result, x in zip(results, xs, strict=True)])
        mean = as_dense(results[0].mean, xs[0]).double()
        largest_magnitude = float(sent.abs().max()) if sent.numel() else 0.0
        bound = (len(xs) + 2) * compressor.rounding * sent.abs().mean(0) + 2.0**-21 * largest_magnitude
        error = (mean - sent.mean(0)).abs()
        assert bool((error <= bound).all()), (
            f"{case}: an element of Reduced.mean differs by {float(error.max()):.3g} from the mean of the ranks' "
            "Reduced.sent; return as sent what this rank contributed to the mean"
        )


def all_ranks_get_the_same_bits(compressor: Compressor) -> None:
    """Check that ``Reduced.mean``, the averaged gradient, is bitwise equal on all ranks."""
    for case, xs, results, _ in _shared_runs(compressor):
        means = [as_dense(result.mean, x) for result, x in zip(results, xs, strict=True)]
        assert all(torch.equal(mean, means[0]) for mean in means), f"{case}: {MEANS_DIFFER}"


def the_same_input_gives_the_same_bits(compressor: Compressor) -> None:
    """Check that two exchanges with equal seed, name and step give the same bits.

    A compressor must therefore keep all its state in the ``Context``.
    """
    for (case, xs, results, _), (_, _, repeated_results) in zip(
        _shared_runs(compressor), _run_cases_together(compressor, gradients), strict=True
    ):
        for x, first, second in zip(xs, results, repeated_results, strict=True):
            assert torch.equal(as_dense(first.mean, x), as_dense(second.mean, x)), (
                f"{case}: a second exchange of the same gradients returned another Reduced.mean; {STATE_IN_CONTEXT}"
            )
            assert torch.equal(as_dense(first.sent, x), as_dense(second.sent, x)), (
                f"{case}: a second exchange of the same gradients returned another Reduced.sent; {STATE_IN_CONTEXT}"
            )


def a_contractive_one_does_not_add_error(compressor: Compressor) -> None:
    """Check that a contractive compressor has ``Σ‖x - sent‖² <= Σ‖x‖²``, summed over the ranks' gradients x."""
    if not compressor.contractive:
        return
    for case, xs, results, _ in _shared_runs(compressor):
        error = sum(error_of(result, x) for result, x in zip(results, xs, strict=True))
        total_energy = sum(float(energy(x.reshape(-1))) for x in xs)
        assert error <= total_energy * (1 + 1e-6), (
            f"{case}: Σ‖x - sent‖² is {error:.6g}, but Σ‖x‖² only {total_energy:.6g}; set contractive = False"
        )


def an_unbiased_one_has_the_gradient_as_expectation(compressor: Compressor) -> None:
    """Check that what an unbiased compressor sends for a gradient averages to that gradient over many steps.

    The mean of ``Reduced.sent`` must approach the gradient as fast as if the steps' errors were independent.
    """
    if not compressor.unbiased:
        return
    (x,) = gradients(1, (16, 16))
    flat_gradient = x.reshape(-1).double()
    for cf in cfs_of(compressor):
        sent_by_step = [as_dense(reduced.sent, x) for reduced in exchange_steps(compressor, x, cf, 400)]
        sent_steps = torch.stack(sent_by_step).double()
        # summed over all elements, since 400 steps may show no variance of an element that is rarely rounded up
        bias = float(energy(sent_steps.mean(0) - flat_gradient))
        variance = float((sent_steps - flat_gradient).square().sum(1).mean()) / len(sent_by_step)
        assert bias <= 3 * variance + 1e-12 * float(energy(flat_gradient)), (
            f"{cf}x: the squared distance of the gradient from the mean of Reduced.sent over {len(sent_by_step)} steps "
            f"is {bias:.3g}, but at most about {3 * variance:.3g} if sent is unbiased; set unbiased = False"
        )


def zeros_stay_zeros(compressor: Compressor) -> None:
    """Check that ``Reduced.mean`` and ``Reduced.sent`` are zero if all gradients are zero."""

    def zeros(world: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.zeros(shape, dtype=torch.float32, device="cpu")] * world

    for case, xs, results in _run_cases_together(compressor, zeros):
        for x, result in zip(xs, results, strict=True):
            assert not as_dense(result.mean, x).any(), f"{case}: Reduced.mean is not zero for gradients of zeros"
            assert not as_dense(result.sent, x).any(), f"{case}: Reduced.sent is not zero for a gradient of zeros"


def what_is_asked_of_the_wire_does_not_depend_on_data(compressor: Compressor) -> None:
    """Check that all ranks request the same collectives, even if a rank has only zeros, and another an outlier."""

    def zeros_and_an_outlier(world: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
        xs = gradients(world, shape)
        xs[0].zero_()
        xs[-1].reshape(-1)[:1] = 1e6
        return xs

    list(_run_cases_together(compressor, zeros_and_an_outlier))


def one_round_is_kept(compressor: Compressor) -> None:
    """Check that a compressor yields one collective per tensor if its profile, or its class, has ``one_round`` True."""
    for (world, shape, cf), (_, _, _, ledger_by_rank) in zip(_cases(compressor), _shared_runs(compressor), strict=True):
        if not compressor.profile(cf, world=world).one_round:
            assert not compressor.one_round, (
                f"{world} ranks, {cf}x: the class has one_round = True, but the profile has one_round = False"
            )
            continue
        for rank, ledger in enumerate(ledger_by_rank):
            rounds = sum(ledger.calls.values())
            assert rounds == 1, (
                f"rank {rank} of {world}, {shape}, {cf}x: the profile has one_round = True, but the compressor yielded "
                f"{rounds} collectives; yield one, or set one_round = False"
            )


def its_profile_is_possible(compressor: Compressor) -> None:
    """Check that a profile's numbers are in range, and that only contractive compressors have error feedback."""
    for world, cf in itertools.product(WORLDS, cfs_of(compressor)):
        profile = compressor.profile(cf, world=world, shapes=SHAPES)
        case = f"{world} ranks, {cf}x:"
        assert 0 < profile.efficiency <= 1, f"{case} efficiency {profile.efficiency} is not in (0, 1]"
        efficiency_points, exponent_points = profile.efficiency_by_gain, profile.efficiency_apart
        assert all(0 <= efficiency <= 1 for _, efficiency in efficiency_points), (
            f"{case} efficiency_by_gain {efficiency_points}: an efficiency is not in [0, 1]"
        )
        steps, exponents = ([point[i] for point in exponent_points] for i in (0, 1))
        assert steps == sorted({*steps}), f"{case} efficiency_apart {exponent_points}: steps do not ascend"
        assert all(exponent > 0 for exponent in exponents), (
            f"{case} efficiency_apart {exponent_points}: an exponent is not above 0"
        )
        assert exponents == sorted(exponents), f"{case} efficiency_apart {exponent_points}: exponents do not ascend"
        assert 0 <= profile.error_feedback <= 1, f"{case} error_feedback {profile.error_feedback} is not in [0, 1]"
        assert compressor.contractive or not profile.error_feedback, (
            f"{case} error_feedback is above 0, but the compressor is not contractive"
        )
        assert profile.pad_multiple >= 0, f"{case} pad_multiple {profile.pad_multiple} is negative"
        if profile.coding is not None:
            assert profile.coding.encode >= 0, f"{case} coding {profile.coding}: encode is negative"
            assert 0 <= profile.coding.fixed <= profile.coding.decode, (
                f"{case} coding {profile.coding}: fixed is not between 0 and decode"
            )


def traffic_is_predicted(compressor: Compressor) -> None:
    """Check that ``traffic`` predicts the payload bytes of the collectives, except flags and padding."""
    for (world, shape, cf), (_, _, _, ledger_by_rank) in zip(_cases(compressor), _shared_runs(compressor), strict=True):
        predicted_bytes = sum(
            collective_traffic.payload_bytes
            for collective_traffic in compressor.traffic(shape, cf, torch.float32, world)
        )
        for ledger in ledger_by_rank:
            slack_bytes = 16 * sum(ledger.calls.values()) * (world if "AllToAll" in ledger.calls else 1)
            assert predicted_bytes <= ledger.payload_bytes <= predicted_bytes + slack_bytes, (
                f"{world} ranks, {shape}, {cf}x: traffic() predicts {predicted_bytes} payload bytes, but a rank handed "
                f"{ledger.payload_bytes} bytes to collectives"
            )


def errors_foresee_what_is_lost(compressor: Compressor) -> None:
    """Check that ``errors`` predicts ``‖x - sent‖²`` for a gradient x, on average over 30 steps."""
    (x,) = gradients(1, (64, 64))
    cfs = cfs_of(compressor)
    predictions = compressor.errors(x.reshape(-1), cfs, Context(shape=(64, 64)))
    for cf, predicted_error in zip(cfs, predictions, strict=True):
        reduced_by_step = exchange_steps(compressor, x, cf, 30)
        errors = [error_of(reduced, x) for reduced in reduced_by_step]
        mean_error, standard_error = statistics.mean(errors), statistics.stdev(errors) / math.sqrt(len(errors))
        error_bound = 0.03 * float(energy(x.reshape(-1))) + 4 * standard_error
        assert abs(mean_error - float(predicted_error)) <= error_bound, (
            f"{cf}x: errors() predicts that ‖x - sent‖² is {float(predicted_error):.4g}, but the mean over "
            f"{len(reduced_by_step)} steps is {mean_error:.4g}"
        )


def cf_is_what_was_asked_for(compressor: Compressor) -> None:
    """Check that a large tensor's achieved CF is within 2 % of the requested CF; skipped if ``exact_cf`` is False."""
    if not compressor.exact_cf:
        return
    (x,) = gradients(1, (256, 256))
    for cf in cfs_of(compressor):
        achieved_cf = exchange(compressor, [x], cf)[0].cf
        assert abs(achieved_cf / cf - 1) < 0.02, (
            f"requested CF {cf:g}, but Reduced.cf is {achieved_cf:.2f}; set exact_cf = False"
        )


def a_non_finite_gradient_reaches_every_rank(compressor: Compressor) -> None:
    """Check that if one rank has NaN or inf, all ranks get NaN, no residual changes, and the next step works.

    A dense compressor only sums gradients, so only the same element must be NaN or inf on every rank. With overflow
    safety, all elements must be NaN on every rank.
    """
    for bad_number, cf in itertools.product((math.nan, math.inf), cfs_of(compressor)):
        rank_averagers = averagers(compressor, 3)
        average(rank_averagers, gradients(3, (40, 40)), cf, step=0)
        previous_residuals = [
            {name: residual.clone() for name, residual in averager.residuals.by_name.items()}
            for averager in rank_averagers
        ]
        bad_gradients = gradients(3, (40, 40), seed=1)
        bad_gradients[1].reshape(-1)[77] = bad_number
        for overflow_safe in (False,) if compressor.compresses else (False, True):
            for averager in rank_averagers if overflow_safe else ():
                averager.residuals.turn_on_overflow_safety()
            for rank_mean in average(rank_averagers, bad_gradients, cf, step=1):
                nan_everywhere = overflow_safe or compressor.compresses
                reached_rank = rank_mean.isnan().all() if nan_everywhere else ~rank_mean.reshape(-1)[77].isfinite()
                assert bool(reached_rank), (
                    f"{cf}x: {bad_number} in one rank's gradient did not make every rank's mean "
                    f"{'NaN' if nan_everywhere else 'not finite'} (overflow safety: {overflow_safe})"
                )
        for averager, previous_residual_by_name in zip(rank_averagers, previous_residuals, strict=True):
            for name, residual in averager.residuals.by_name.items():
                assert torch.allclose(residual, previous_residual_by_name[name], atol=1e-6), (
                    f"{cf}x: {bad_number} in one rank's gradient changed the residual of {name}"
                )
        for rank_mean in average(rank_averagers, gradients(3, (40, 40), seed=2), cf, step=2):
            assert bool(rank_mean.isfinite().all()), (
                f"{cf}x: {bad_number} in one rank's gradient made the next step's mean not finite"
            )


def what_is_sent_scales_with_the_gradient(compressor: Compressor) -> None:
    """Check that gradients times a power of two give means times that power, and the same gains.

    The law makes two steps, with residuals. The means must agree bit for bit, except for subnormal numbers. If the
    power is outside the compressor's ``magnitudes``, all ranks must only get the same mean.
    """
    smallest_magnitude, largest_magnitude = compressor.magnitudes

    def run_two_steps(world: int, cf: float, power: int) -> list[tuple[list[torch.Tensor], float | None]]:
        rank_averagers, means_and_gains = averagers(compressor, world), []
        for step in range(2):
            xs = [x.double().mul(2.0**power).float() for x in gradients(world, (40, 40), seed=step)]
            means = [mean.double() / 2.0**power for mean in average(rank_averagers, xs, cf, step)]
            error = sum(float(averager.recording.error) for averager in rank_averagers)
            means_and_gains.append(
                (means, gain(error, sum(float(averager.recording.energy) for averager in rank_averagers)))
            )
        return means_and_gains

    for world, cf in itertools.product((2, 3), cfs_of(compressor)):
        unscaled_means_and_gains = run_two_steps(world, cf, 0)
        for power in (-100, -80, 60, 64, 100):
            case = f"{world} ranks, {cf}x, 2^{power}"
            for (expected_means, expected_gain), (means, scaled_gain) in zip(
                unscaled_means_and_gains, run_two_steps(world, cf, power), strict=True
            ):
                means_are_equal = (torch.allclose(mean, means[0], rtol=0, atol=0, equal_nan=True) for mean in means)
                assert all(means_are_equal), f"{case}: {MEANS_DIFFER}"
                if not smallest_magnitude <= 2.0**power <= largest_magnitude:
                    continue
                tolerance = 1e-5 if power == -100 else 0.0  # some elements, and most residuals, are subnormal
                error = float((means[0] - expected_means[0]).abs().max())
                assert error <= tolerance, (
                    f"{case}: the mean of gradients times 2^{power} differs by {error:.3g} times 2^{power} from "
                    f"2^{power} times the mean of the gradients"
                )
                gains_are_equal = (
                    scaled_gain is not None
                    and expected_gain is not None
                    and abs(scaled_gain - expected_gain) <= 1e-5 * (1 + abs(expected_gain))
                )
                assert gains_are_equal, (
                    f"{case}: the gain is {scaled_gain} with gradients times 2^{power}, but {expected_gain} without"
                )


def nothing_is_lost(compressor: Compressor) -> None:
    """Check that error feedback of 1 loses nothing: sum of means plus mean residual equals sum of mean gradients.

    The sums are over six steps. Skipped for compressors that are not contractive.
    """
    if not compressor.contractive:
        return
    for dtype, cf in itertools.product((torch.float32, torch.float64), cfs_of(compressor)):
        rank_averagers = averagers(compressor, 3, strength=1.0)
        applied_sum, gradient_sum, magnitude_sum = torch.zeros(3, 1600, dtype=torch.float64, device="cpu")
        for step in range(6):
            xs = [x.to(dtype) for x in gradients(3, (40, 40), seed=step)]
            gradient_sum += torch.stack(xs).double().mean(0).reshape(-1)
            magnitude_sum += torch.stack(xs).double().abs().mean(0).reshape(-1)
            applied_sum += average(rank_averagers, xs, cf, step)[0].reshape(-1).double()
        residuals = [residual_of(averager, 1600) for averager in rank_averagers]
        error = (applied_sum + torch.stack(residuals).mean(0) - gradient_sum).abs()
        bound = 16 * max(compressor.rounding, 2.0**-24) * magnitude_sum + 1e-6
        assert bool((error <= bound).all()), (
            f"{cf}x, {dtype}: the sum of means plus the mean residual differs by {float(error.max()):.3g} from the sum "
            "of mean gradients"
        )


def gradients_of_any_dtype_work(compressor: Compressor) -> None:
    """Check that float16, bfloat16 and float64 gradients give means of the same dtype, close to the float32 means."""
    for dtype, cf in itertools.product((torch.float16, torch.bfloat16, torch.float64), cfs_of(compressor)):
        xs = [x.to(dtype) for x in gradients(2, (40, 40))]
        means = average(averagers(compressor, 2), xs, cf, step=0)
        float32_means = average(averagers(compressor, 2), [x.float() for x in xs], cf, step=0)
        assert means[0].dtype == dtype, f"the mean of {dtype} gradients has dtype {means[0].dtype}"
        tolerance = 4 * torch.finfo(dtype).eps + 4 * compressor.rounding
        assert torch.allclose(means[0].double(), float32_means[0].double(), rtol=tolerance, atol=tolerance), (
            f"{dtype}, {cf}x: the mean differs from the mean of the same gradients in float32 by more than "
            f"{tolerance:.3g} (relative plus absolute)"
        )


LAWS: tuple[Law, ...] = (
    the_mean_is_the_mean_of_what_was_sent,
    all_ranks_get_the_same_bits,
    the_same_input_gives_the_same_bits,
    a_contractive_one_does_not_add_error,
    an_unbiased_one_has_the_gradient_as_expectation,
    zeros_stay_zeros,
    what_is_asked_of_the_wire_does_not_depend_on_data,
    one_round_is_kept,
    its_profile_is_possible,
    traffic_is_predicted,
    errors_foresee_what_is_lost,
    cf_is_what_was_asked_for,
    a_non_finite_gradient_reaches_every_rank,
    what_is_sent_scales_with_the_gradient,
    nothing_is_lost,
    gradients_of_any_dtype_work,
)
"""All laws for compressors. If several fail, read the first failure first."""


def _cases(compressor: Compressor) -> list[tuple[int, tuple[int, ...], float]]:
    """Return all cases that a law checks, as ``(number of ranks, shape, CF)``."""
    return [(world, shape, cf) for world in WORLDS for shape in SHAPES for cf in cfs_of(compressor)]


class _CaseRun(NamedTuple):
    """One exchange: the case as text, and for each rank its gradient, its result and the ledger of its bytes."""

    case: str
    xs: list[torch.Tensor]
    results: list[Reduced]
    ledger_by_rank: list[Ledger]


def _describe(world: int, shape: tuple[int, ...], cf: float) -> str:
    return f"{world} ranks, {shape}, {cf}x"


def _run_cases(compressor: Compressor) -> Iterator[_CaseRun]:
    """Exchange random gradients in all cases, each by itself, so that its bytes are counted; yield each exchange."""
    for world, shape, cf in _cases(compressor):
        xs, ledger_by_rank = gradients(world, shape), [Ledger(world) for _ in range(world)]
        results = exchange(compressor, xs, cf, ledger_by_rank=ledger_by_rank)
        yield _CaseRun(_describe(world, shape, cf), xs, results, ledger_by_rank)


def _run_cases_together(
    compressor: Compressor, make_gradients: Callable[[int, tuple[int, ...]], list[torch.Tensor]]
) -> Iterator[tuple[str, list[torch.Tensor], list[Reduced]]]:
    """Exchange gradients in all cases, those of equal number of ranks together; yield each case, as in ``_CaseRun``.

    Args:
        compressor: compressor to run.
        make_gradients: function of (number of ranks, shape) that returns the gradient of each rank.
    """
    for world, cases_of_world in itertools.groupby(_cases(compressor), key=lambda case: case[0]):
        cases = [(shape, cf, make_gradients(world, shape)) for _, shape, cf in cases_of_world]
        tensors = [
            TensorOfRanks(xs, cf, [Context("w", 0, rank, world, 0, shape, x.dtype) for rank, x in enumerate(xs)])
            for shape, cf, xs in cases
        ]
        for (shape, cf, xs), results in zip(cases, exchange_tensors(compressor, tensors), strict=True):
            yield _describe(world, shape, cf), xs, results


_latest_runs: list[tuple[Compressor, list[_CaseRun]]] = []
"""The compressor whose laws were checked last, and its exchanges, which the laws share; empty before the first."""


def _shared_runs(compressor: Compressor) -> list[_CaseRun]:
    """Return exchanges of random gradients in all cases; the same ones for all laws of a compressor."""
    if not (_latest_runs and _latest_runs[0][0] is compressor):
        _latest_runs[:] = [(compressor, [*_run_cases(compressor)])]
    return _latest_runs[0][1]
