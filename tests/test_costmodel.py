# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The cost model: its formulas against the collectives' wire bytes, and what it refuses."""

import csv
from pathlib import Path

import pytest
import torch

from gravac.collectives import AllGather, AllReduce, AllToAll, Broadcast, Kind
from gravac.compressors import COMPRESSORS, Compressor, Dense, powersgd, quantize, signsgd, topk
from gravac.costmodel import Machine, Network, break_even, collective_seconds, predict
from gravac.lab.shapes import MODELS

SHAPES = [(512, 512), (512,), (2048, 512), (64, 64, 3, 3), (100, 1)]
LAB = Machine(14e9, overlap=0.8)
SLOW = Network(50e-6, 1e8)


@pytest.mark.parametrize("kind", [AllReduce, AllGather, AllToAll, Broadcast])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 96])
def test_a_collective_takes_its_wire_bytes_over_the_bandwidth_and_a_latency_per_message(kind: Kind, world: int) -> None:
    seconds = collective_seconds(kind, 960_000, world, Network(0, 8e6))
    assert seconds == pytest.approx(kind.wire_bytes(960_000, world) / 1e6)
    messages = {AllReduce: 2 * (world - 1), Broadcast: (world - 1).bit_length()}.get(kind, world - 1)
    assert collective_seconds(kind, 0, world, Network(1e-3, 8e6)) == pytest.approx(messages * 1e-3)


def test_a_tree_has_fewer_messages_and_more_bytes() -> None:
    latency, size = Network(1e-3, 1e13), Network(0, 8e6)
    assert collective_seconds(AllReduce, 1, 64, latency, tree=True) == pytest.approx(12e-3)
    assert collective_seconds(AllReduce, 1e6, 64, size, tree=True) == pytest.approx(12)


@pytest.mark.parametrize("name", [name for name, known in COMPRESSORS.items() if known.coding_costs])
@pytest.mark.parametrize("world", [2, 8])
def test_wire_bytes_are_those_of_the_collectives(name: str, world: int) -> None:
    compressor = COMPRESSORS[name]
    cf = compressor.coding_costs[0][0]
    expected = 0
    for shape in SHAPES:
        small = len(shape) < 2 or torch.Size(shape).numel() < 1024
        of: Compressor = Dense(dtype="bfloat16") if small else compressor
        expected += sum(t.wire_bytes(world) for t in of.traffic(shape, cf, torch.float32, world))
    predicted = predict(SHAPES, compressor, cf, 0.1, world, SLOW, LAB)
    assert predicted.wire_bytes == pytest.approx(expected, abs=len(SHAPES) * 3)
    assert predicted.exposed_s <= predicted.exchange_s
    assert predicted.step_s == pytest.approx(0.1 + predicted.compress_s + predicted.exposed_s)


def test_exchange_hides_behind_backward_but_for_the_last_bucket() -> None:
    shapes = [(1000, 1000)] * 10
    fast = Network(0, 2 * 10 * 2e6 * 8 / 2 / 0.05)  # all ten buckets take 0.05 s
    hidden = predict(shapes, None, 1, 0.3, 2, fast, Machine(1e18, 1.0), buckets=10)
    assert hidden.exchange_s == pytest.approx(0.05)
    assert hidden.exposed_s == pytest.approx(0.005)
    bare = predict(shapes, None, 1, 0.3, 2, fast, Machine(1e18, 0.0), buckets=10)
    assert bare.exposed_s == pytest.approx(0.05)
    one = predict(shapes, None, 1, 0.3, 2, fast, Machine(1e18, 1.0), buckets=1)
    assert one.exposed_s == pytest.approx(0.05)


def test_more_bandwidth_and_fewer_bytes_are_never_slower() -> None:
    shapes = MODELS["resnet101"]()
    at = [predict(shapes, topk, 10, 0.1, 8, Network(1e-5, rate), LAB).step_s for rate in (1e7, 1e8, 1e9, 1e10, 1e11)]
    assert at == sorted(at, reverse=True)
    by_cf = [predict(shapes, topk, cf, 0.1, 8, SLOW, LAB).exposed_s for cf in (10, 50, 100, 1000)]
    assert by_cf == sorted(by_cf, reverse=True)
    full, half = (predict(shapes, None, 1, 0.1, 8, SLOW, LAB, dense=dense) for dense in ("float32", "float16"))
    assert half.wire_bytes == pytest.approx(full.wire_bytes / 2, rel=1e-6)
    assert half.step_s < full.step_s


def test_one_rank_exchanges_nothing() -> None:
    for compressor, cf in ((None, 1.0), (topk, 10.0), (powersgd, 10.0), (quantize, 8.0)):
        alone = predict(SHAPES, compressor, cf, 0.1, 1, SLOW, LAB)
        assert alone.wire_bytes == 0
        assert alone.exchange_s == alone.exposed_s == 0


def test_a_dense_compressor_is_none() -> None:
    assert predict(SHAPES, Dense(), 1, 0.1, 2, SLOW, LAB) == predict(
        SHAPES, None, 1, 0.1, 2, SLOW, LAB, dense="float32"
    )


def test_decoding_an_all_gather_grows_with_the_ranks() -> None:
    machine = Machine(14e9)
    assert machine.copies(signsgd, 32, 64, gathered=True) > 20 * machine.copies(signsgd, 32)
    assert machine.copies(signsgd, 32, 64) == machine.copies(signsgd, 32)
    assert machine.copies(topk, 30) < machine.copies(topk, 10)
    assert machine.copies(topk, 1) == machine.copies(topk, 10)


def test_costs_are_those_measured() -> None:
    file = Path(__file__).parents[1] / "docs/evidence/data/compressors.csv"
    rows_of_file = csv.DictReader(line for line in file.read_text(encoding="utf-8").splitlines() if line[0] != "#")
    measured = {(row["compressor"], round(float(row["cf"]), 1)): row for row in rows_of_file}
    for name, rows in ((name, known.coding_costs) for name, known in COMPRESSORS.items() if known.coding_costs):
        found = [(measured[name, round(row[0], 1)], row) for row in rows if (name, round(row[0], 1)) in measured]
        assert len(found) == len(rows) or name == "ladder"
        assert found
        for row, (cf, encode, decode) in found:
            total = float(row["encode_copies"]) + float(row["decode_copies"])
            assert encode + decode == pytest.approx(total, rel=0.3), (name, cf)


def test_break_even_is_where_both_take_as_long() -> None:
    shapes = MODELS["resnet101"]()
    at = break_even(shapes, topk, 100, 0.1, 8, LAB)
    assert at is not None
    steps = [predict(shapes, c, cf, 0.1, 8, Network(50e-6, at), LAB).step_s for c, cf in ((None, 1.0), (topk, 100.0))]
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)
    below, above = (
        predict(shapes, topk, 100, 0.1, 8, Network(50e-6, rate), LAB).step_s
        - predict(shapes, None, 1, 0.1, 8, Network(50e-6, rate), LAB).step_s
        for rate in (at / 2, at * 2)
    )
    assert below < 0 < above


def test_break_even_is_none_where_there_is_none() -> None:
    assert break_even(SHAPES, topk, 2, 0.1, 64, LAB) is None  # sends more than 16 bit, at any bandwidth
    free = Machine(14e9, 0.0, {"quantize": ((8, 0.1, 0.1),)})
    assert break_even([(512, 512)], quantize, 8, 0.1, 2, free, alpha=0.0) is None  # and this one always wins


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Network(-1.0, 1e9), "alpha: -1.0"),
        (lambda: Network(0.0, 0.0), "bandwidth: 0.0"),
        (lambda: Network(0.0, float("nan")), "bandwidth: nan"),
        (lambda: Machine(0.0), "copy_bytes_per_s: 0.0"),
        (lambda: Machine(1e9, 1.5), "overlap: 1.5"),
        (lambda: Machine(1e9, start_s=-1.0), "start_s: -1.0"),
        (lambda: predict(SHAPES, None, 1, 0.0, 2, SLOW, LAB), "compute_s: 0.0"),
        (lambda: predict(SHAPES, None, 1, 0.1, 0, SLOW, LAB), "world: 0"),
        (lambda: predict(SHAPES, topk, 0.5, 0.1, 2, SLOW, LAB), "cf: 0.5"),
        (lambda: predict(SHAPES, None, 1, 0.1, 2, SLOW, LAB, buckets=0), "buckets: 0"),
        (lambda: predict(SHAPES, None, 1, 0.1, 2, SLOW, LAB, dense="int8"), "dense: 'int8'"),  # type: ignore[arg-type]
        (lambda: predict([], None, 1, 0.1, 2, SLOW, LAB), "shapes: none"),
        (lambda: predict(SHAPES, topk, 10, 0.1, 2, SLOW, Machine(1e9, 1, {})), "'topk' has no measured costs"),
        (lambda: collective_seconds(AllReduce, -1, 2, SLOW), "payload_bytes: -1"),
    ],
)
def test_what_is_refused_names_field_and_value(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=words):
        call()
