# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What parts do, on a CPU in the GPU's place: small tensors, gloo in place of NCCL, a clock in place of events."""

import math
import time

import pytest
import torch

from gravac import powersgd, quantize, thc, topk, topkc
from gravac.collectives import AllReduce
from gravac.compressors import Compressor
from gravac.lab.shapes import bert_large
from tests.device.idle import Idle
from tests.measure.gpu import bits, nccl, overlap, ranks, timing
from tests.measure.gpu.codecs import BERT_MS, CASES, SIDES, Codec, coded, floor_bytes
from tests.measure.gpu.parts import PARTS, Part, run
from tests.measure.gpu.training import Training, one_rank, static

CPU = torch.device("cpu")


WARM_AND_TIMED = 3 * (overlap.WARM + 3)
"""Layers, times steps."""


class Now:
    """A moment of the host's clock."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """It is past."""

    def elapsed_time(self, later: "Now") -> float:
        return (later.at - self.at) * 1e3


class Host(Idle):
    """The host, as a device whose streams do everything at once."""

    def __init__(self) -> None:
        super().__init__(CPU)

    def record(self) -> Now:  # type: ignore[override]
        return Now()


def test_shapes_of_bert_large_come_to_335_million_parameters() -> None:
    assert round(sum(map(math.prod, bert_large())) / 1e6) == 335
    assert BERT_MS == 3.0


def test_matrices_are_of_their_sizes() -> None:
    assert {size: 4 * side**2 / 2**20 for size, side in SIDES.items()} == {size: size for size in SIDES}
    assert {one.name for one, _, _ in CASES} == {"topkc", "quantize", "topk", "powersgd", "randomk", "thc"}


def test_the_floor_reads_each_input_and_writes_each_output_once() -> None:
    assert floor_bytes(elements=100, keeps=0, travels=0) == 800
    assert floor_bytes(elements=100, keeps=100, travels=30) == 1630
    # a copy of 10 bytes moves 20, so 40 bytes take twice as long
    assert timing.floor(40, copied=10, milliseconds=3.0) == 6.0


@pytest.mark.parametrize(("base", "cf"), [(one, cf) for one, cf, _ in CASES], ids=repr)
def test_a_codec_goes_on_step_after_step(base: Compressor, cf: float) -> None:
    codec = Codec(base, cf, [(256, 64), (64,), (32, 64)], CPU)
    assert codec.elements == 256 * 64 + 64 + 32 * 64
    residuals = []
    for _ in range(2):
        codec.prepare()
        codec.step()
        residuals.append({name: one.clone() for name, one in codec.rank.feedback.residual.items()})
    assert not any(torch.equal(one, residuals[1][name]) for name, one in residuals[0].items())
    assert codec.whole.any() and codec.whole.isfinite().all()
    kept = 8 * (256 * 64 + 32 * 64) * bool(codec.rank.feedback.residual)
    assert 8 * codec.elements + kept < codec.floor_bytes < 16 * codec.elements * 1.7


def test_a_row_of_a_codec() -> None:
    row = coded(topkc, 10.0, [(64, 64)], CPU, 1e9)
    assert row["met"] and row["value"] == row["device_ms"] / row["floor_ms"]
    assert "met" not in coded(topkc, 10.0, [(64, 64)], CPU, None)


@pytest.mark.parametrize(("base", "cf"), [(topk, 100.0), (quantize(4), 8.0), (powersgd(4), 64.0), (thc, 8.0)], ids=repr)
def test_a_device_is_compared_with_itself(base: Compressor, cf: float) -> None:
    for world in (2, 3):
        row = bits.compared(base, cf, world, CPU)
        assert row["met"] and row["mean_differs"] == 0 and set(row["sent_differs"]) == {0}
    assert all(bits.same_draws(draw, CPU)["met"] for draw in bits.DRAWS.values())


def test_codes_that_differ_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = iter([1.0, 0.5])
    exact = bits.averaged

    def off(*given: object) -> tuple[torch.Tensor, list[torch.Tensor]]:
        mean, sent = exact(*given)  # type: ignore[arg-type]
        mean[: mean.numel() // 2] *= next(asked)
        return mean, sent

    monkeypatch.setattr(bits, "averaged", off)
    row = bits.compared(quantize(8), 4.0, 2, CPU)
    assert not row["met"] and 0.4 < row["value"] <= 0.5 and row["mean_most"] > 0.1


def test_training_is_as_native_and_overflows_change_nothing() -> None:
    with one_rank("gloo"):
        assert nccl.as_native(CPU, width=64)["met"]
        for base, cf in ((topk, 100.0), (quantize(4), 8.0), (topk, 1.0)):
            row = nccl.overflow(base, cf, CPU, width=64)
            assert row["met"], row
            training = Training(static(base, cf), CPU, width=64)
            training.step()
            training.step()
            assert training.compressor is not None and training.compressor.cf == cf
            training.close()


@pytest.mark.parametrize(("base", "cf"), [(topk, 1.0), (topk, 100.0), (quantize(2), 16.0), (topkc, 10.0)], ids=repr)
def test_messages_are_slept_for_on_a_link(base: Compressor, cf: float) -> None:
    slept: list[float] = []
    link = overlap.Link(Host(), rate=1e9, sleep=slept.append)  # type: ignore[arg-type]
    loop = overlap.Loop(base, cf, link, Host(), (3, 64, 8))  # type: ignore[arg-type]
    took = overlap.timed(loop, wait=lambda: None, steps=3)
    assert 0 < took.first < took.step
    assert slept == link.seconds
    assert sum(slept) * 1e9 == pytest.approx(link.ledger.wire_bytes)
    assert len(overlap.large(link, 1e9)) >= (WARM_AND_TIMED if cf == 1 else 0)
    link.seconds.clear()
    slept.clear()
    loop.step()
    if cf == 1:
        assert [one for one in slept if one > 1e-6] == [AllReduce.wire_bytes(4 * 64 * 64, 4) / 1e9] * 3


def test_a_step_takes_at_least_what_its_messages_leave() -> None:
    compute = overlap.Timed(step=10.0, first=4.0)
    assert overlap.best(compute, [1.0, 1.0, 1.0]) == 11.0
    assert overlap.best(compute, [5.0, 5.0, 5.0]) == 19.0


def test_ranks_are_compared() -> None:
    row = ranks.same(*ranks.CASES["topk, GraVAC"], "cpu", world=2)
    assert row["met"] and any(changed for *_, changed in row["decisions"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part.name))
def test_on_a_gpu(part: Part) -> None:
    """Every part ends well there; whether times meet their aims is the measurement's to tell."""
    rows = run(part, 200)
    assert not [row for row in rows if "failed" in row]
    assert not [row for row in rows if row.get("met") is False and "at_most" not in row]
