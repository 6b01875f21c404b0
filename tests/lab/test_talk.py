# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the tables of the paper's comparisons count."""

from typing import Any

import pytest

from gravac.lab.tta.record import DecisionPoint, TrainingRecord
from tests.lab.made_up_runs import made_up
from tests.measure.talk import ADAPTIVE, STATIC, floats_saved, steps_at, table


def switched(method: str, *turns: tuple[int, float], **given: Any) -> TrainingRecord:
    """A run that decided these CFs from these steps on."""
    decided = tuple(
        DecisionPoint(step=step, compressor="topk", cf=cf, changed=step > 0, reason="so") for step, cf in turns
    )
    return made_up(method, turns=decided, adaptive=True, **{"steps": 100, **given})


def test_steps_are_counted_by_what_they_ran_at_and_floats_by_what_they_sent() -> None:
    run = switched("gravac:topk", (0, 1.0), (20, 10.0), (60, 20.0), (400, 1000.0))
    assert steps_at(run) == {1.0: 20, 10.0: 40, 20.0: 40, 1000.0: 0}
    assert floats_saved(run) == pytest.approx(100 / (20 + 4 + 2))


def test_a_static_method_saves_its_factor_and_a_native_one_says_nothing() -> None:
    assert floats_saved(made_up("topk@10")) == 10
    assert floats_saved(made_up("fp16")) is None


def test_the_table_has_a_row_for_each_method_and_says_what_was_not_reached() -> None:
    label, method = next(iter(ADAPTIVE.items()))
    runs = [made_up(name, tta_s=20.0) for name in ("fp32", *STATIC)]
    runs += [switched(name, (0, 10.0)) for name in ADAPTIVE.values() if name != method]
    runs.append(switched(method, (0, 10.0), tta_s=None, seconds=40.0))
    lines = table(runs).splitlines()
    assert sum(line.startswith("|") for line in lines) == 2 + 1 + len(STATIC) + len(ADAPTIVE)
    (missed,) = (line for line in lines if line.startswith(f"| {label} |"))
    assert "> 40" in missed
