# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A constant threshold: the laws at any count, what is sent, and a residual that grows until it is."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from gravac import SettingsError, hard_threshold, topk
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import AllGather
from gravac.compressors import Context, HardThreshold, Sparse, dense
from gravac.compressors.base import energy, k_for
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from gravac.measurement import LocalMeasurement
from gravac.testing import compressor_laws as conformance

FEW, SOME, MOST, NONE = (hard_threshold(threshold=at) for at in (2.0, 0.5, 0.005, 100.0))


@pytest.mark.parametrize("compressor", [FEW, SOME, MOST, NONE, SOME(values="bfloat16")], ids=repr)
@pytest.mark.parametrize("law", conformance.LAWS, ids=lambda law: law.__name__)
def test_obeys(compressor: HardThreshold, law: conformance.Law) -> None:
    law(compressor)


def gradient(elements: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


@given(
    elements=st.integers(0, 500),
    threshold=st.floats(0.01, 4),
    cf=st.floats(1, 300),
    seed=st.integers(0, 9),
)
def test_what_reaches_the_threshold_is_sent_and_of_more_than_k_the_largest(
    elements: int, threshold: float, cf: float, seed: int
) -> None:
    x, k = gradient(elements, seed), k_for(elements, cf)
    (came,) = conformance.exchange(hard_threshold(threshold=threshold), [x], cf)
    assert isinstance(came.sent, Sparse)
    ((indices, values),) = came.sent.parts
    reach = (x.abs() >= threshold).nonzero().flatten()
    expected = reach if reach.numel() <= k else topk.select(x, k).indices
    assert torch.equal(indices, expected)
    assert torch.equal(values, x[expected])
    assert came.cf == elements / max(1, expected.numel())


def test_the_error_of_a_coordinate_is_below_the_threshold() -> None:
    """The paper's absolute bound, where slots are enough."""
    x = gradient(50_000)
    (came,) = conformance.exchange(SOME, [x], 1.0)
    left = x - as_dense(came.sent, x)
    assert float(left.abs().max()) < 0.5
    assert float(energy(left)) <= 0.5**2 * x.numel()


def test_ranks_that_send_different_counts_hand_over_equally_many_bytes() -> None:
    asked = [next(SOME.rounds(x, 4.0, Context(shape=(4000,)))) for x in (gradient(4000), gradient(4000) / 10)]
    assert all(isinstance(one, AllGather) and one.tensors[0].numel() == 1000 for one in asked)
    assert asked[0].payload_bytes == asked[1].payload_bytes
    assert asked[0].payload_bytes == SOME.traffic((4000,), 4.0, torch.float32)[0].payload_bytes


def test_higher_cfs_select_among_what_the_lowest_did() -> None:
    x, ctx = gradient(4000), Context(shape=(4000,))
    foreseen = SOME.errors(x, (4.0, 10.0, 100.0), ctx)
    for cf, expected in zip((4.0, 10.0, 100.0), foreseen, strict=True):
        (came,) = conformance.exchange(SOME, [x], cf)
        lost = energy(x - as_dense(came.sent, x))
        assert float(lost) == pytest.approx(float(expected), rel=1e-4)


def test_what_stays_below_is_sent_once_the_residual_has_grown() -> None:
    averager = Averager(hard_threshold(threshold=1.0), dense, None, 0, Feedback())
    sent = []
    for step in range(8):
        out = torch.full((4, 4), 0.3)
        averager.measure(LocalMeasurement(step, Candidate("hard_threshold", 1.0, 1.0)))
        memory.run([averager.average([Piece("w", out.view(-1), (4, 4))], averager.plan(step, 1.0))])
        averager.commit()
        sent.append(round(float(out[0, 0]), 5))
    assert sent == [0, 0, 0, 1.2, 0, 0, 0, 1.2]


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("inf")])
def test_a_threshold_that_is_no_magnitude_is_refused(threshold: float) -> None:
    with pytest.raises(SettingsError, match="threshold"):
        hard_threshold(threshold=threshold)


def test_the_cf_is_a_bound() -> None:
    assert not hard_threshold.exact_cf
