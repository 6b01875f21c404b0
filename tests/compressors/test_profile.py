# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is known of a compressor before it has run: what was measured, in whatever file it stands."""

import csv
import math
from pathlib import Path
from typing import ClassVar

import pytest

from gravac.beliefs import use_beliefs
from gravac.compressors import COMPRESSORS, Coding, Compressor, TopK, dense, powersgd, quantize, topk, topkc
from gravac.compressors.profile import coding_at
from gravac.costmodel import Machine, Network, predict
from tests.measure.beliefs import before

BY_NAME: dict[str, Compressor] = {
    **COMPRESSORS,
    "qrot": quantize(2, rotate=True),
    "qg": quantize(4, exchange="gather"),
    "tq1": topkc(values=quantize(1)),
    "p4": powersgd(4),
}

SHAPES = ((64, 64), (10, 4096), (512, 2048))

# name, CF, family, error feedback; at 2 and 8 ranks: one round, padded to; efficiency without and with shapes; copies
# of the tensor that coding takes at 2 ranks, and of what 8 have sent
KNOWN = [
    ("topk", 1, "topk", 1.0, (True, True), (0, 0), (1.0, 1.0), (14.12, 29.75)),
    ("topk", 20, "topk", 1.0, (True, True), (0, 0), (0.5531941, 0.5531941), (12.18739, 24.59336)),
    ("topk", 100, "topk", 1.0, (True, True), (0, 0), (0.3, 0.3), (7.7, 12.62)),
    ("topk", 1000, "topk", 1.0, (True, True), (0, 0), (0.125, 0.125), (5.25, 5.64)),
    ("topkc", 10, "topkc", 1.0, (False, False), (0, 0), (0.38, 0.38), (6.03, 11.34)),
    ("tq1", 100, "topkc", 1.0, (False, False), (0, 0), (0.1296, 0.1296), (4.84, 6.88)),
    ("randomk", 10, "randomk", 0.5, (True, True), (0, 0), (0.33, 0.33), (15.68, 27.86)),
    ("artopk", 100, "artopk", 1.0, (False, False), (0, 0), (0.16, 0.16), (7.74, 13.47)),
    ("dgc", 1000, "dgc", 0.0, (True, True), (0, 0), (0.064, 0.064), (20.29, 38.68)),
    ("redsync", 10, "redsync", 1.0, (True, True), (0, 0), (0.4, 0.4), (46.85, 59.72)),
    ("powersgd", 4, "powersgd", 1.0, (False, False), (0, 0), (0.75, 0.9751685), (42.83, 126.32)),
    ("powersgd", 20, "powersgd", 1.0, (False, False), (0, 0), (0.4996521, 0.8663577), (33.6245, 97.65291)),
    ("p4", 128, "powersgd", 1.0, (False, False), (0, 0), (0.2248089, 0.57), (11.50167, 28.84931)),
    ("quantize", 4, "quantize", 0.0, (True, False), (128, 1024), (1.0, 1.0), (5.96, 8.9)),
    ("quantize", 32 / 3, "quantize", 0.0, (True, False), (128, 1024), (0.98, 0.98), (7.48758, 13.68513)),
    ("quantize", 20, "quantize", 0.0, (True, False), (128, 1024), (0.9089027, 0.9089027), (6.74149, 12.35168)),
    ("qrot", 16, "quantize", 0.0, (True, False), (0, 0), (0.96, 0.96), (7.16, 13.34)),
    ("qg", 8, "quantize", 0.0, (True, True), (128, 128), (0.99, 0.99), (7.72, 13.93)),
    ("thc", 8, "thc", 0.0, (False, False), (0, 0), (0.95, 0.95), (19.89, 71.1)),
    ("qsgd", 8, "qsgd", 0.0, (True, True), (0, 0), (0.4371438, 0.4371438), (55.08, 117.48)),
    ("terngrad", 16, "terngrad", 0.0, (True, True), (0, 0), (0.3317665, 0.3317665), (56.78, 126.38)),
    ("natural", 4, "natural", 0.0, (True, True), (0, 0), (0.5759917, 0.5759917), (150.64, 416.65)),
    ("intsgd", 4, "intsgd", 0.0, (False, False), (0, 0), (0.5759917, 0.5759917), (43.79, 151.1)),
    ("signsgd", 32, "signsgd", 0.5, (True, True), (0, 0), (0.2517912, 0.2517912), (29.44, 89.14)),
    ("majority", 32, "majority", 0.0, (False, False), (0, 0), (0.2517912, 0.2517912), (21.01, 69.61)),
    ("ladder", 2, "bfloat16", 0.0, (True, True), (1, 1), (1.0, 1.0), (2.1, 2.1)),
    ("ladder", 7.76, "quantize", 0.0, (True, False), (128, 1024), (0.99, 0.99), (7.72, 13.93)),
    ("ladder", 28.44, "quantize", 0.0, (True, False), (128, 1024), (0.81, 0.81), (5.86, 10.27)),
    ("ladder", 64, "powersgd", 1.0, (False, False), (0, 0), (0.3029214, 0.77), (5.85415, 11.8963)),
    ("ladder", 910.22, "topkc", 1.0, (False, False), (0, 0), (0.1593485, 0.1593485), (3.5, 4.46)),
]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known[0]} {known[1]:.4g}x")
def test_the_profile_is_what_was_measured_then(known: tuple) -> None:  # type: ignore[type-arg]
    name, cf, family, feedback, one_round, padded, efficiency, copies = known
    with use_beliefs(before()):
        two, eight = (BY_NAME[name].profile(cf, world=world) for world in (2, 8))
        with_shapes = BY_NAME[name].profile(cf, shapes=SHAPES)
    assert (two.family, two.error_feedback) == (family, feedback)
    assert (two.one_round, eight.one_round) == one_round
    assert (two.pad_multiple, eight.pad_multiple) == padded
    assert (two.efficiency, with_shapes.efficiency) == pytest.approx(efficiency, rel=1e-6)
    assert two.coding is not None
    assert (two.coding.copies(), two.coding.copies(8, gathered=True)) == pytest.approx(copies, rel=1e-6)
    machine = Machine(1e9)
    assert machine.copies(BY_NAME[name], cf, 8, gathered=True) == two.coding.copies(8, gathered=True)


def test_every_compressor_has_a_profile_at_every_cf() -> None:
    """With what coding costs, where that was measured: a new one's record comes after it."""
    record = Path(__file__).parents[2] / "docs" / "evidence" / "data" / "compressors.csv"
    lines = (line for line in record.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    measured = {row["compressor"] for row in csv.DictReader(lines)}
    for name, compressor in COMPRESSORS.items():
        for cf in (1.0, 2.0, 10.0, 1e6):
            known = compressor.profile(cf)
            assert 0 < known.efficiency <= 1
            assert 0 <= known.error_feedback <= 1
            if name in measured:
                assert known.coding is not None and math.isfinite(known.coding.copies(64, gathered=True))


def test_only_formats_send_everything() -> None:
    assert [name for name, compressor in COMPRESSORS.items() if not compressor.compresses] == ["dense"]
    assert dense.profile(1).coding == Coding(0.0, 0.0)
    assert dense(dtype="float16").profile(2).coding == Coding(1.24, 0.78)


class Unmeasured(TopK):
    """Nothing was measured of it."""

    name: ClassVar[str] = "unmeasured"
    coding_costs: ClassVar[tuple[tuple[float, float, float], ...]] = ()


def test_what_was_not_measured_has_no_cost_and_a_machine_says_so() -> None:
    assert Unmeasured().profile(10).coding is None
    assert coding_at((), 10) is None
    arguments = ([(64, 64)], Unmeasured(), 10, 0.1, 2, Network(0, 1e9))
    with pytest.raises(ValueError, match=r"'unmeasured' has no measured costs of encode and decode; measure them"):
        predict(*arguments, Machine(1e9))
    own = Machine(1e9, costs={"unmeasured": ((10, 1.0, 2.0),)})
    assert own.copies(Unmeasured(), 10) == 3.0
    assert own.coding(topk, 10) is None
    assert own.copies(dense(dtype="float16"), 2) == pytest.approx(2.02)
    with pytest.raises(
        ValueError, match=r"'topk' has no measured costs of encode and decode; the machine has costs of unmeasured"
    ):
        own.copies(topk, 10)
