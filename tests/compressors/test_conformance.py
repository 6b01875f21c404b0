# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Every compressor obeys every law, and the laws catch compressors that do not."""

from typing import ClassVar

import pytest
import torch

from gravac import compressors
from gravac import testing as conformance
from gravac.collectives import AllReduce, Traffic
from gravac.compressors import Compressor, Context, Reduced, Rounds, Sparse, TopK
from gravac.compressors.sparse import as_dense

ALL = (
    compressors.topk,
    compressors.topk(values="float16"),
    compressors.randomk,
    compressors.dense,
    compressors.dense(dtype="float16"),
    compressors.dense(dtype="bfloat16"),
    compressors.topkc,
    compressors.topkc(chunk=8, values=None),
    compressors.topkc(values=compressors.quantize(4)),
    compressors.randomk(block=64, values="bfloat16"),
    compressors.randomk(block=7, values="float16"),
    compressors.artopk,
    compressors.artopk(choose="var", values="float16"),
    compressors.quantize,
    compressors.quantize(2, block=48),
    compressors.quantize(2, rotate=True),
    compressors.quantize(4, exchange="gather"),
    compressors.quantize(1, back_bits=4),
    compressors.thc,
    compressors.thc(exchange="lanes"),
    compressors.thc(bits=2, sum_bits=2),
    compressors.thc(rotate="full", bits=8),
    compressors.ladder(compressors.quantize(2), compressors.topkc),
)
"""Each value of each setting at least once."""

FURTHER = (
    compressors.topk(values="bfloat16"),
    compressors.randomk(values="float16"),
    compressors.randomk(values="bfloat16"),
    compressors.randomk(block=64),
    compressors.topkc(values="float16"),
)
"""Further combinations of these values, for a nightly run."""


@pytest.mark.parametrize("compressor", [*ALL, *(pytest.param(c, marks=pytest.mark.long) for c in FURTHER)], ids=repr)
def test_obeys(compressor: Compressor) -> None:
    conformance.check_compressor(compressor)


class SendsTooMuch(TopK):
    """Claims to have sent twice what it sent."""

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        came = yield from super().rounds(x, cf, ctx)
        assert isinstance(came.sent, Sparse)
        return Reduced(came.mean, Sparse(tuple((i, 2 * v) for i, v in came.sent.parts)), came.cf)


class KnowsItsRank(TopK):
    """Gives each rank a mean of its own."""

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        came = yield from super().rounds(x, cf, ctx)
        return Reduced(as_dense(came.mean, x) + ctx.rank * 1e-9, came.sent, came.cf)


class LooksAtItsData(TopK):
    """Asks for more of the wire when its gradient is large."""

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        yield AllReduce(torch.zeros(2 if x.numel() and x.abs().max() > 1e3 else 1))
        return (yield from super().rounds(x, cf, ctx))


class Understates(TopK):
    """Predicts values without indices."""

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        return tuple(Traffic(t.kind, t.payload_bytes // 2) for t in super().traffic(shape, cf, dtype, world))


class Grows(Compressor):
    """Sends ten times the gradient."""

    name: ClassVar[str] = "grows"
    contractive: ClassVar[bool] = True

    def candidates(self, cf_range: tuple[float, float]) -> tuple[float, ...]:
        return (1.0,)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        total = yield AllReduce(10 * x)
        return Reduced(total / ctx.world, 10 * x, 1.0)


class Shrinks(Grows):
    """Claims to be unbiased and sends half."""

    contractive: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        total = yield AllReduce(x / 2)
        return Reduced(total / ctx.world, x / 2, 1.0)


class PilesUp(Grows):
    """Keeps what it does not send, which grows."""

    contractive: ClassVar[bool] = False
    error_feedback: ClassVar[float] = 1.0


class Remembers(TopK):
    """Draws from a generator that is not the context's."""

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        came = yield from super().rounds(x + torch.rand_like(x), cf, ctx)
        return came


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (conformance.the_mean_is_the_mean_of_what_was_sent, SendsTooMuch()),
        (conformance.all_ranks_get_the_same_bits, KnowsItsRank()),
        (conformance.what_is_asked_of_the_wire_does_not_depend_on_data, LooksAtItsData()),
        (conformance.a_contractive_one_does_not_add_error, Grows()),
        (conformance.an_unbiased_one_has_the_gradient_as_expectation, Shrinks()),
        (conformance.the_same_input_gives_the_same_bits, Remembers()),
        (conformance.zeros_stay_zeros, Remembers()),
        (conformance.errors_foresee_what_is_lost, SendsTooMuch()),
        (conformance.traffic_is_predicted, Understates()),
        (conformance.one_round_is_kept, LooksAtItsData()),
        (conformance.its_profile_is_possible, PilesUp()),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_law_catches_what_breaks_it(law: conformance.Law, broken: Compressor) -> None:
    with pytest.raises((AssertionError, ValueError)):
        law(broken)


def test_check_compressor_names_the_law_that_is_broken() -> None:
    with pytest.raises(AssertionError, match=r"^the_mean_is_the_mean_of_what_was_sent: "):
        conformance.check_compressor(SendsTooMuch())
