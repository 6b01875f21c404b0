# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chunked top-k, quantized sums, THC, AR-Topk and the ladder: what the laws do not say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import SettingsError, artopk, ladder, powersgd, qsgd, quantize, randomk, thc, topk, topkc
from gravac.averaging.in_memory import exchange
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.collectives import AllReduce, Ledger
from gravac.compressors import Compressor, Context, dense, rotation
from gravac.compressors.base import energy
from gravac.compressors.ladder import wire_ratio
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from gravac.exchange.fuse import fuse


def normal(ranks: int, *shape: int, seed: int = 0) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank)) for rank in range(ranks)]


@given(st.integers(1, 4), st.integers(1, 700), st.sampled_from([1, 3, 8, 64]), st.floats(1, 80), st.integers(0, 10**6))
def test_topkc_contracts_the_stacked_vector(ranks: int, elements: int, chunk: int, cf: float, seed: int) -> None:
    """By the share of coordinates that travel in whole chunks, summed over the ranks (Han et al. 2024)."""
    xs = normal(ranks, elements, seed=seed)
    got = exchange(topkc(chunk=chunk, values=None), xs, cf)
    lost = sum(float(energy(x - as_dense(r.sent, x))) for x, r in zip(xs, got, strict=True))
    whole = sum(float(energy(x)) for x in xs)
    kept = int(elements / got[0].cf + 0.5) // chunk * chunk
    # energies travel in bfloat16, so near ties may fall either way
    assert lost <= (1 - kept / (-(-elements // chunk) * chunk)) * whole * 1.02 + 1e-6


def test_topkc_takes_the_same_chunks_on_all_ranks() -> None:
    xs = [torch.zeros(256), torch.zeros(256)]
    xs[0][64:128] = 3.0
    xs[1][192:] = 1.0
    for came in exchange(topkc(chunk=64, values=None), xs, 4.0):
        assert as_dense(came.mean, xs[0]).nonzero().flatten().tolist() == list(range(64, 128))


@given(st.floats(1, 300), st.integers(1, 3000), st.sampled_from([1, 16, 64]))
def test_block_random_k_sends_as_many_as_asked_for(cf: float, elements: int, block: int) -> None:
    (x,) = normal(1, elements)
    (came,) = exchange(randomk(block=block), [x.abs() + 1], cf)
    sent = int(as_dense(came.sent, x).count_nonzero())
    wanted = -(-elements // cf)
    assert sent <= wanted
    assert sent >= wanted - block, "only a block at the tensor's end may be short"


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_quantized_sums_are_close_at_any_number_of_ranks(bits: int) -> None:
    for ranks in (1, 2, 3, 8):
        xs = normal(ranks, 5000)
        mean = torch.stack(xs).mean(0)
        came = exchange(quantize(bits), xs, 32 / bits)[0]
        nmse = float(energy(as_dense(came.mean, mean) - mean) / energy(mean))
        assert nmse < {8: 0.001, 4: 0.04, 2: 0.27, 1: 0.75}[bits]  # two codings of normal numbers


def test_the_second_error_comes_back_in_the_next_step() -> None:
    """With full feedback a constant gradient is averaged exactly, in the long run, on eight ranks."""
    from gravac.averaging.average import Averager
    from gravac.averaging.plan import Piece

    xs = normal(8, 32, 32)
    averagers = [Averager(quantize(2), dense, 1.0, 0) for _ in xs]
    for rank, averager in enumerate(averagers):
        averager.rank, averager.world = rank, 8
    applied = torch.zeros(32, 32)
    for step in range(60):
        outs = [x.clone() for x in xs]
        plan = averagers[0].plan(step, 16.0)
        pieces = [[Piece("w", out.view(-1), (32, 32))] for out in outs]
        for averager in averagers:
            averager.measure(StepRecording(step, Candidate("quantize", 16.0, 16.0)))
        memory.run([averager.average(p, plan) for averager, p in zip(averagers, pieces, strict=True)])
        for averager in averagers:
            averager.commit()
        applied += outs[0]
    mean = torch.stack(xs).mean(0)
    assert float(energy((applied / 60 - mean).view(-1)) / energy(mean.view(-1))) < 2e-3
    assert all("second" in a.memory.stored["w"] for a in averagers)


@pytest.mark.parametrize("ranks", [1, 2, 5, 16, 64])
def test_thc_lanes_are_wide_enough(ranks: int) -> None:
    """All ranks at the largest code: the sum must not run into the next lane."""
    xs = [torch.ones(40, 26) for _ in range(ranks)]
    came = exchange(thc(exchange="lanes"), xs, 8.0)
    split = exchange(thc(sum_bits=8), xs, 8.0)
    assert torch.allclose(as_dense(came[0].mean, xs[0]), torch.ones(1040), atol=0.6)
    if ranks <= 16:
        assert torch.allclose(as_dense(split[0].mean, xs[0]), as_dense(came[0].mean, xs[0]), atol=1e-5)


def test_thc_saturates_instead_of_wrapping() -> None:
    xs = [torch.ones(1024) * (1 if rank else 1.5) for rank in range(8)]
    mean = as_dense(exchange(thc(bits=4, sum_bits=4), xs, 8.0)[0].mean, xs[0])
    assert float(torch.cosine_similarity(mean, xs[0], dim=0)) > 0.7, "sums wrapped around"
    assert float(mean.norm()) < 0.5 * float(xs[0].norm()), "nothing was cut off: the test proves nothing"


@pytest.mark.parametrize(
    ("bits", "sum_bits", "ranks"),
    [(4, 8, 2), (4, 8, 20), (8, 8, 2), (2, 2, 3)],
    ids=["bytes hold the sums", "16 bits", "16 bits, cut off", "bytes, cut off"],
)
def test_thc_remembers_all_it_lost(bits: int, sum_bits: int, ranks: int) -> None:
    """Rounded and saturated over several pieces of the rotation: mean and error are those of what was sent."""
    xs = normal(ranks, rotation.PIECE_ELEMENTS + 1500)
    got = exchange(thc(bits=bits, sum_bits=sum_bits), xs, 32 / bits)
    sent = torch.stack([as_dense(r.sent, x) for r, x in zip(got, xs, strict=True)])
    mean = as_dense(got[0].mean, xs[0])
    assert torch.allclose(mean, sent.mean(0), atol=1e-5)
    if sum_bits == 8 and bits == 4:
        for came, x, mine in zip(got, xs, sent, strict=True):
            assert came.error is not None
            assert float(came.error) == pytest.approx(float(energy(x - mine)), rel=1e-3)


def test_artopk_takes_the_rank_in_turn_or_the_one_with_most() -> None:
    xs = [torch.zeros(64), torch.zeros(64)]
    xs[0][3], xs[1][9] = 1.0, 2.0
    for step, place in ((0, 3), (1, 9), (2, 3)):
        assert as_dense(exchange(artopk, xs, 64.0, step=step)[0].mean, xs[0]).nonzero().item() == place
    assert as_dense(exchange(artopk(choose="var"), xs, 64.0)[0].mean, xs[0]).nonzero().item() == 9


def ratio(compressor: Compressor, cf: float, ranks: int, side: int = 256) -> float:
    """Wire ratio of a square matrix by the ledger."""
    xs = normal(ranks, side, side)
    ledgers = [Ledger(ranks) for _ in xs]
    memory.run(
        [
            fuse([compressor.rounds(x.view(-1), cf, Context("w", 0, r, ranks, 0, (side, side)))])
            for r, x in enumerate(xs)
        ],
        ledgers,
    )
    return AllReduce.wire_bytes(4 * xs[0].numel(), ranks) / ledgers[0].wire_bytes


@pytest.mark.parametrize(
    ("compressor", "cf"),
    [(topkc, 10), (randomk(block=64), 10), (quantize(4), 8), (quantize(2), 16), (thc, 8), (dense(dtype="bfloat16"), 2)],
    ids=lambda value: value.name if isinstance(value, Compressor) else str(value),
)
def test_the_wire_ratio_of_sums_does_not_depend_on_the_number_of_ranks(compressor: Compressor, cf: float) -> None:
    two = ratio(compressor, cf, 2)
    for ranks in (8, 64):
        assert ratio(compressor, cf, ranks) == pytest.approx(two, rel=0.05)


def test_the_wire_ratio_of_gathers_falls_with_the_number_of_ranks() -> None:
    assert ratio(topk, 10, 64, side=64) == pytest.approx(ratio(topk, 10, 2, side=64) * 2 / 64, rel=0.05)


def test_a_ladder_serves_each_ratio_by_its_first_member_that_reaches_it() -> None:
    steps = ladder(quantize(4), quantize(2), topkc)
    for wanted, name, bits in ((2, "quantize", 4), (7, "quantize", 4), (9, "quantize", 2), (40, "topkc", None)):
        member, cf = steps.member_at(wanted)
        assert member.name == name
        assert getattr(member, "bits", None) == bits
        assert wire_ratio(member, cf) >= wanted * 0.998
    assert steps.candidates((5, 70)) == pytest.approx((7.757, 15.058, 30.117, 60.235), rel=1e-3)
    assert steps.profile(7).error_feedback == quantize.error_feedback
    assert steps.profile(60).error_feedback == topkc.error_feedback


def test_each_member_of_a_ladder_has_rungs_of_its_own() -> None:
    steps = ladder(quantize(4), topkc, powersgd(4))
    rungs = steps.candidates((1.0, 1000.0))
    assert list(rungs) == sorted(set(rungs))
    served = [steps.member_at(ratio)[0].name for ratio in rungs]
    assert set(served) == {"quantize", "topkc", "powersgd"}
    at = served.index("powersgd")
    assert steps.member_at(rungs[at] * 0.99)[0].name == "topkc"  # asked for any other ratio, the first that reaches it
    assert steps.profile(rungs[at]).family == "powersgd"


def test_a_ladder_refuses_what_cannot_keep_its_errors() -> None:
    with pytest.raises(SettingsError, match="qsgd cannot be on a ladder"):
        ladder(qsgd, topkc)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: quantize(5), "bits"),
        (lambda: quantize(4, block=12), "block"),
        (lambda: topkc(chunk=0), "chunk"),
        (lambda: topkc(values="int8"), "values"),
        (lambda: randomk(block=0), "block"),
        (lambda: thc(reach=0), "reach"),
        (lambda: artopk(choose="best"), "choose"),
        (lambda: topkc(chunks=3), "chunks"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: object, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        wrong()  # type: ignore[operator]
