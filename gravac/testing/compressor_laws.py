# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The laws every compressor must obey, also a user's own. Needs no network: N ranks are stepped in one process.

In a test suite::

    @pytest.mark.parametrize("law", gravac.testing.compressor_laws.LAWS, ids=lambda law: law.__name__)
    def test_my_compressor(law):
        law(MyCompressor())

Each law raises ``AssertionError`` with what it saw.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import torch

from gravac.candidate import Span
from gravac.compressors import Compressor, Context, Reduced
from gravac.compressors.base import energy
from gravac.compressors.sparse import laid_out
from gravac.engine.agreement import gain
from gravac.exchange import memory
from gravac.exchange.fuse import fuse
from gravac.testing.trial import (
    average,
    averagers,
    error_of,
    gradients,
    kept_of,
    laid_side_by_side,
    ledgers,
)

WORLDS = (1, 2, 3, 8)
SHAPES = ((48, 32), (7, 11, 3), (1, 1), (129, 1), (0, 4))

Law = Callable[[Compressor], None]


def exchange(
    compressor: Compressor, xs: Sequence[torch.Tensor], cf: float, *, step: int = 0, seed: int = 0, name: str = "w"
) -> list[Reduced]:
    """Compress and average one tensor over ``len(xs)`` ranks in this process; return what each rank got.

    Args:
        compressor: compressor to run.
        xs: one tensor per rank, all of one shape, float32 or float64.
        cf: compression factor.
        step: number of the step; seeds the random numbers, with the next two.
        seed: seed of the run.
        name: name of the tensor.

    Example:
        >>> from gravac import topk
        >>> xs = [torch.tensor([4.0, 0.0, 1.0, 0.0]), torch.tensor([2.0, 0.0, 0.0, 1.0])]
        >>> first, second = exchange(topk, xs, cf=4)  # each sends one of four
        >>> laid_out(first.mean, xs[0]).tolist()
        [3.0, 0.0, 0.0, 0.0]
    """
    flats = [x.reshape(-1).clone() for x in xs]
    contexts = [Context(name, step, rank, len(xs), seed, tuple(x.shape), x.dtype) for rank, x in enumerate(xs)]
    ranks = [fuse([compressor.rounds(flat, cf, ctx)], finite=True) for flat, ctx in zip(flats, contexts, strict=True)]
    reduced = memory.run(ranks)
    assert all(torch.equal(flat, x.reshape(-1)) for flat, x in zip(flats, xs, strict=True)), "x was changed"
    return [one.reduced[0] for one in reduced if one is not None]


def cfs_of(compressor: Compressor) -> tuple[float, ...]:
    """Return the CFs to test a compressor at: some of a span, all of a list.

    Example:
        >>> from gravac import quantize
        >>> cfs_of(quantize)  # 8, 4, 3, 2 and 1 bit
        (4.0, 8.0, 10.666666666666666, 16.0, 32.0)
    """
    reach = compressor.candidates((1.0, 1000.0))
    return (1.0, 2.0, 10.0, 250.0) if isinstance(reach, Span) else reach


def the_mean_is_the_mean_of_what_was_sent(compressor: Compressor) -> None:
    """Check that ``mean`` is the mean of ``sent`` over N ranks, within N + 2 roundings and float32's of the largest."""
    for where, xs, got in _runs(compressor):
        sent = torch.stack([laid_out(r.sent, x).double() for r, x in zip(got, xs, strict=True)])
        mean = laid_out(got[0].mean, xs[0]).double()
        largest = float(sent.abs().max()) if sent.numel() else 0.0
        bound = (len(xs) + 2) * compressor.rounding * sent.abs().mean(0) + 2.0**-21 * largest
        assert bool(((mean - sent.mean(0)).abs() <= bound).all()), f"{where}: mean is off"


def all_ranks_get_the_same_bits(compressor: Compressor) -> None:
    """Check that ``mean`` is bitwise equal on all ranks."""
    for where, xs, got in _runs(compressor):
        means = [laid_out(r.mean, x) for r, x in zip(got, xs, strict=True)]
        assert all(torch.equal(mean, means[0]) for mean in means), f"{where}: means differ"


def the_same_input_gives_the_same_bits(compressor: Compressor) -> None:
    """Check that two runs with the same seed, name and step agree: nothing is remembered outside the context."""
    for (where, xs, first), (_, _, again) in zip(_runs(compressor), _runs(compressor), strict=True):
        for x, a, b in zip(xs, first, again, strict=True):
            assert torch.equal(laid_out(a.mean, x), laid_out(b.mean, x)), f"{where}: mean differs"
            assert torch.equal(laid_out(a.sent, x), laid_out(b.sent, x)), f"{where}: sent differs"


def a_contractive_one_does_not_add_error(compressor: Compressor) -> None:
    """Check that ``Σ‖x - sent‖² <= Σ‖x‖²`` over the ranks, so that gain is in [0, 1]."""
    if not compressor.contractive:
        return
    for where, xs, got in _runs(compressor):
        error = sum(error_of(r, x) for r, x in zip(got, xs, strict=True))
        whole = sum(float(energy(x.reshape(-1))) for x in xs)
        assert error <= whole * (1 + 1e-6), f"{where}: error {error} exceeds {whole}"


def an_unbiased_one_has_the_gradient_as_expectation(compressor: Compressor) -> None:
    """Check that the mean of ``sent`` over many steps comes close to x, as fast as independent errors let it."""
    if not compressor.unbiased:
        return
    (x,) = gradients(1, (16, 16))
    flat = x.reshape(-1).double()
    for cf in cfs_of(compressor):
        trials = [laid_out(exchange(compressor, [x], cf, step=t)[0].sent, x) for t in range(400)]
        stacked = torch.stack(trials).double()
        # all elements together: one that is rounded up once in thousands of trials has no spread of its own
        off = float(energy(stacked.mean(0) - flat))
        lost = float((stacked - flat).square().sum(1).mean()) / len(trials)
        assert off <= 3 * lost + 1e-12 * float(energy(flat)), f"{cf}x: biased, {off:.3g} against {lost:.3g}"


def zeros_stay_zeros(compressor: Compressor) -> None:
    """Check that gradients of zeros give a mean of zeros, and that zeros are sent."""
    for where, xs, got in _runs(compressor, lambda world, shape: [torch.zeros(shape)] * world):
        for x, r in zip(xs, got, strict=True):
            assert not laid_out(r.mean, x).any(), f"{where}: mean of zeros is not zero"
            assert not laid_out(r.sent, x).any(), f"{where}: sent something"


def what_is_asked_of_the_wire_does_not_depend_on_data(compressor: Compressor) -> None:
    """Check that ranks ask for the same collectives, one with zeros and another with outliers (the driver compares)."""
    for world, shape, cf in _cases(compressor):
        xs = gradients(world, shape)
        xs[0].zero_()
        xs[-1].reshape(-1)[:1] = 1e6
        exchange(compressor, xs, cf)


def one_round_is_kept(compressor: Compressor) -> None:
    """Where its profile says ``one_round``, it yields once for every tensor; where its class does, at any CF."""
    for world, shape, cf in _cases(compressor):
        if not compressor.profile(cf, world=world).one_round:
            assert not compressor.one_round, f"{world} ranks, {cf}x: one_round, and not once"
            continue
        rounds = sum(ledgers(compressor, cf, world, shape)[0].calls.values())
        assert rounds == 1, f"{world} ranks, {shape}, {cf}x: {rounds} rounds"


def its_profile_is_possible(compressor: Compressor) -> None:
    """What is said of it before it runs: shares are shares, costs are costs, and only what contracts has feedback."""
    for world, cf in itertools.product(WORLDS, cfs_of(compressor)):
        known = compressor.profile(cf, world=world, shapes=SHAPES)
        where = f"{world} ranks, {cf}x:"
        assert 0 < known.efficiency <= 1, (
            f"{where} efficiency {known.efficiency} is no share of a dense step's progress"
        )
        assert all(0 <= one <= 1 for _, one in known.efficiency_by_gain), f"{where} {known.efficiency_by_gain}"
        steps, powers = ([point[at] for point in known.efficiency_apart] for at in (0, 1))
        assert steps == sorted({*steps}), f"{where} {known.efficiency_apart}: steps do not ascend"
        assert all(power > 0 for power in powers), f"{where} {known.efficiency_apart}: a power is not above 0"
        assert powers == sorted(powers), f"{where} {known.efficiency_apart}: what waits longer loses no less"
        assert 0 <= known.error_feedback <= 1, f"{where} error feedback {known.error_feedback} is no share"
        assert compressor.contractive or not known.error_feedback, f"{where} error feedback, and not contractive"
        assert known.pad_multiple >= 0, f"{where} padded to {known.pad_multiple}"
        if known.coding is not None:
            assert known.coding.encode >= 0, f"{where} {known.coding}"
            assert 0 <= known.coding.fixed <= known.coding.decode, f"{where} {known.coding}"


def traffic_is_predicted(compressor: Compressor) -> None:
    """Check that ``traffic`` predicts the bytes handed to collectives, but for the flag and padding."""
    for world, shape, cf in _cases(compressor):
        predicted = sum(t.payload_bytes for t in compressor.traffic(shape, cf, torch.float32, world))
        for ledger in ledgers(compressor, cf, world, shape):
            slack = 16 * sum(ledger.calls.values()) * (world if "AllToAll" in ledger.calls else 1)
            assert predicted <= ledger.payload_bytes <= predicted + slack, (
                f"{world} ranks, {shape}, {cf}x: {ledger.payload_bytes} bytes, predicted {predicted}"
            )


def errors_foresee_what_is_lost(compressor: Compressor) -> None:
    """Check that ``errors`` equals what a run loses, on average over steps (exactly, where nothing is random)."""
    (x,) = gradients(1, (64, 64))
    cfs = cfs_of(compressor)
    foreseen = compressor.errors(x.reshape(-1), cfs, Context(shape=(64, 64)))
    for cf, expected in zip(cfs, foreseen, strict=True):
        runs = [exchange(compressor, [x], cf, step=t)[0] for t in range(30)]
        losses = torch.tensor([error_of(r, x) for r in runs], dtype=torch.float64)
        lost, noise = float(losses.mean()), float(losses.std()) / math.sqrt(len(runs))
        bound = 0.03 * float(energy(x.reshape(-1))) + 4 * noise
        assert abs(lost - float(expected)) <= bound, f"{cf}x: foreseen {float(expected):.4g}, lost {lost:.4g}"


def together_each_comes_out_as_alone(compressor: Compressor) -> None:
    """Check that tensors of one ``batch_key`` have together the mean that each has by itself, to rounding, over steps.

    What ranks sent of them adds up to as much; which rank sent what may differ. As many things are remembered.
    """
    shape, ways = SHAPES[0], ("together", "alone")
    for world, cf in itertools.product((2, 3), cfs_of(compressor)):
        if compressor.batch_key(cf, Context(world=world, shape=shape)) is None:
            continue
        kept: dict[tuple[str, int, int], dict[str, torch.Tensor]] = defaultdict(dict)
        for step in range(2):
            xs = [torch.stack(gradients(3, shape, seed=8 * step + rank)).flatten(1) for rank in range(world)]
            got = []
            for way in ways:
                ranks = []
                for rank, x in enumerate(xs):
                    own = [Context(str(i), step, rank, world, 0, shape, state=kept[way, rank, i]) for i in range(3)]
                    if way == "together":
                        ranks.append(fuse([compressor.rounds_together(x, cf, own)], True))
                    else:
                        ranks.append(fuse([compressor.rounds(x[i], cf, own[i]) for i in range(3)], True))
                came = [one.reduced for one in memory.run(ranks) if one is not None]
                sent = torch.stack([laid_side_by_side([r.sent for r in mine], xs[0]) for mine in came])
                got.append((laid_side_by_side([r.mean for r in came[-1]], xs[0]), sent.sum(0)))
            for together, alone, what in zip(*got, ("mean", "sent"), strict=True):
                off, most = float((together - alone).abs().max()), 1e-3 * world * float(xs[0].abs().max())
                assert off <= most, f"{world} ranks, {cf}x: {what} is off by {off:.3g}"
            for (_, rank, i), mine in kept.items():
                assert mine.keys() == kept["alone", rank, i].keys(), f"{cf}x: together they keep {[*mine]}"


def cf_is_what_was_asked_for(compressor: Compressor) -> None:
    """Check that the achieved CF of a large tensor is within 2 % of the CF asked for."""
    if not compressor.exact_cf:
        return
    (x,) = gradients(1, (256, 256))
    for cf in cfs_of(compressor):
        achieved = exchange(compressor, [x], cf)[0].cf
        assert abs(achieved / cf - 1) < 0.02, f"asked for {cf}x, achieved {achieved:.2f}x"


def a_non_finite_gradient_reaches_every_rank(compressor: Compressor) -> None:
    """Check that with NaN or inf on one rank every rank gets NaN, no residual moves, and the next step works.

    One that leaves nothing out is summed plainly, so that what is not finite reaches every rank where it was; with
    overflow safety it gives NaN everywhere too.
    """
    for bad, cf in itertools.product((math.nan, math.inf), cfs_of(compressor)):
        ranks = averagers(compressor, 3)
        average(ranks, gradients(3, (40, 40)), cf, step=0)
        before = [{k: v.clone() for k, v in a.feedback.residual.items()} for a in ranks]
        poisoned = gradients(3, (40, 40), seed=1)
        poisoned[1].reshape(-1)[77] = bad
        for safe in (False,) if compressor.compresses else (False, True):
            for averager in ranks if safe else ():
                averager.feedback.guard()
            for out in average(ranks, poisoned, cf, step=1):
                everywhere = safe or compressor.compresses
                reached = out.isnan().all() if everywhere else ~out.reshape(-1)[77].isfinite()
                assert bool(reached), f"{bad} did not reach every rank, overflow safety {safe}"
        for averager, old in zip(ranks, before, strict=True):
            for key, tensor in averager.feedback.residual.items():
                assert torch.allclose(tensor, old[key], atol=1e-6), f"{bad} moved a residual"
        for out in average(ranks, gradients(3, (40, 40), seed=2), cf, step=2):
            assert bool(out.isfinite().all()), f"{bad} poisoned the next step"


def what_is_sent_scales_with_the_gradient(compressor: Compressor) -> None:
    """Check that gradients far from 1 give means and gains as others do, over two steps, so with what is kept.

    Times a power of two, they give means times it, bit for bit within ``magnitudes`` but for subnormal numbers. Beyond,
    all ranks still get the same.
    """
    least, largest = compressor.magnitudes

    def steps(world: int, cf: float, power: int) -> list[tuple[list[torch.Tensor], float | None]]:
        ranks, came = averagers(compressor, world), []
        for step in range(2):
            xs = [x.double().mul(2.0**power).float() for x in gradients(world, (40, 40), seed=step)]
            outs = [out.double() / 2.0**power for out in average(ranks, xs, cf, step)]
            numbers = [averager.measurement for averager in ranks]
            came.append((outs, gain(sum(float(s.error) for s in numbers), sum(float(s.energy) for s in numbers))))
        return came

    for world, cf in itertools.product((2, 3), cfs_of(compressor)):
        plain = steps(world, cf, 0)
        for power in (-100, -80, 60, 64, 100):
            where = f"{world} ranks, {cf}x, 2^{power}"
            for (wanted, usual), (outs, share) in zip(plain, steps(world, cf, power), strict=True):
                alike = (torch.allclose(out, outs[0], rtol=0, atol=0, equal_nan=True) for out in outs)
                assert all(alike), f"{where}: ranks' means differ"
                if not least <= 2.0**power <= largest:
                    continue
                tolerance = 1e-5 if power == -100 else 0.0  # some elements, and what is left of most, are subnormal
                off = float((outs[0] - wanted[0]).abs().max())
                assert off <= tolerance, f"{where}: the mean is off by {off:.3g} times 2^{power}"
                near = share is not None and usual is not None and abs(share - usual) <= 1e-5 * (1 + abs(usual))
                assert near, f"{where}: gain {share}, else {usual}"


def nothing_is_lost(compressor: Compressor) -> None:
    """Check that what was applied, plus the mean residual, is the sum of mean gradients, with full error feedback."""
    if not compressor.contractive:
        return
    for dtype, cf in itertools.product((torch.float32, torch.float64), cfs_of(compressor)):
        ranks = averagers(compressor, 3, strength=1.0)
        applied, total, terms = torch.zeros(1600).double(), torch.zeros(1600).double(), torch.zeros(1600).double()
        for step in range(6):
            xs = [x.to(dtype) for x in gradients(3, (40, 40), seed=step)]
            total += torch.stack(xs).double().mean(0).reshape(-1)
            terms += torch.stack(xs).double().abs().mean(0).reshape(-1)
            applied += average(ranks, xs, cf, step)[0].reshape(-1).double()
        kept = [kept_of(averager, 1600) for averager in ranks]
        off = (applied + torch.stack(kept).mean(0) - total).abs()
        bound = 16 * max(compressor.rounding, 2.0**-24) * terms + 1e-6
        assert bool((off <= bound).all()), f"{cf}x, {dtype}: {float(off.max()):.3g} was lost"


def gradients_of_any_dtype_work(compressor: Compressor) -> None:
    """Check that float16, bfloat16 and float64 gradients come back in their dtype, close to what float32 gives."""
    for dtype, cf in itertools.product((torch.float16, torch.bfloat16, torch.float64), cfs_of(compressor)):
        xs = [x.to(dtype) for x in gradients(2, (40, 40))]
        out = average(averagers(compressor, 2), xs, cf, step=0)
        again = average(averagers(compressor, 2), [x.float() for x in xs], cf, step=0)
        assert out[0].dtype == dtype, f"{dtype} came back as {out[0].dtype}"
        tolerance = 4 * torch.finfo(dtype).eps + 4 * compressor.rounding
        assert torch.allclose(out[0].double(), again[0].double(), rtol=tolerance, atol=tolerance), (
            f"{dtype}, {cf}x differs from float32"
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
    together_each_comes_out_as_alone,
    cf_is_what_was_asked_for,
    a_non_finite_gradient_reaches_every_rank,
    what_is_sent_scales_with_the_gradient,
    nothing_is_lost,
    gradients_of_any_dtype_work,
)
"""All laws for compressors, in the order worth reading."""


def _cases(compressor: Compressor) -> list[tuple[int, tuple[int, ...], float]]:
    return [(world, shape, cf) for world in WORLDS for shape in SHAPES for cf in cfs_of(compressor)]


def _runs(
    compressor: Compressor, make: Callable[[int, tuple[int, ...]], list[torch.Tensor]] = gradients
) -> Iterator[tuple[str, list[torch.Tensor], list[Reduced]]]:
    """Exchange made-up gradients in every case: yield the case in words, the gradients, and what each rank got."""
    for world, shape, cf in _cases(compressor):
        xs = make(world, shape)
        yield f"{world} ranks, {shape}, {cf}x", xs, exchange(compressor, xs, cf)
