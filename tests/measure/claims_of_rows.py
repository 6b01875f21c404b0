# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers in the sentences of docs/evidence/measurements.md and advise.md; see ``tests.measure.claims``."""

import functools
import statistics
from collections.abc import Iterable
from typing import Any

from gravac.lab.tta.record import TrainingRecord
from tests.measure.published import DEFAULT, rows, runs
from tests.measure.switching import SWITCHED, level
from tests.measure.tables_of_rows import wins


def median_seconds(raced: Iterable[TrainingRecord]) -> float:
    """Median time to the target."""
    return statistics.median(run.tta_s for run in raced if run.tta_s is not None)


def measurements() -> dict[str, Any]:
    """Return the numbers of docs/evidence/measurements.md."""
    changes = [row for row in rows("links") if row["kind"] == "schedule"]
    small, large = rows("overhead")
    assert small["ours_over_native"] <= 1.02 < large["ours_over_native"]
    assert all(abs(row["factored_over_full"] - 1) <= 0.1 for row in rows("factored"))
    assert all(row["over_expected"] <= 1.1 for row in rows("links") if row["kind"] == "all-reduce")
    return {
        "behind_one_bit": behind_one_bit(),
        "milliseconds_applied": [1000 * row["applied_after_seconds"] for row in changes],
        "milliseconds_settled": [1000 * row["lag_seconds"] for row in changes],
        "above_staying": above_staying(),
        "loss": loss,
        "above_dense": above_dense,
        "uniform_levels_behind": uniform_levels_behind(),
        "steps": steps,
        "ladder_loss": ladder_loss,
    }


def behind_one_bit() -> float:
    """Return how much longer the default took than 1 bit on a link that changes, as a share."""
    seconds = {
        method: median_seconds(run for run in runs("tta_schedule") if run.method == method)
        for method in (DEFAULT, "quantize(1)")
    }
    return seconds[DEFAULT] / seconds["quantize(1)"] - 1


def above_staying() -> list[float]:
    """Return the nats by which runs that leave 1 bit lie above those that stay."""
    by_schedule = {row["schedule"]: row for row in rows("switching") if row["task"] == "charlm"}
    return [
        level(by_schedule[leaving]) - level(by_schedule[staying])
        for leaving, staying in SWITCHED.items()
        if "1 bit" in leaving
    ]


def loss(label: str, cf: float | None, feedback: float, optimizer: str = "adamw", ranks: int = 2) -> float:
    """Median over seeds of the validation loss, at the learning rate that was best for dense."""
    of_two = [row for row in rows("worth") if row["optimizer"] == optimizer and row["ranks"] == 2]
    rate = min((row["loss"], row["rate"]) for row in of_two)[1]
    case = {"label": label, "cf": cf, "feedback": feedback, "rate": rate, "optimizer": optimizer, "ranks": ranks}
    return statistics.median(row["loss"] for row in rows("worth") if case.items() <= row.items())


def above_dense(label: str, cf: float, feedback: float, optimizer: str = "adamw", ranks: int = 2) -> float:
    """Nats above dense."""
    return loss(label, cf, feedback, optimizer, ranks) - loss("dense", None, 0.0, optimizer, ranks)


def uniform_levels_behind() -> float:
    """Return the nats by which 2 bits with evenly spaced levels end above dense with the same seed."""
    case = {"label": "dense", "seed": 0, "rate": 2e-3}
    dense = next(row["loss"] for row in rows("worth") if case.items() <= row.items())
    return loss("quantize(2, levels='uniform')", 16, 0.0) - dense


def steps(task: str, method: str) -> int | None:
    """Return the steps to the target of a method in ``lowrank.json``."""
    return {(run.task, run.method): run.steps_to_target for run in runs("lowrank")}[task, method]


def ladder_loss(family: str, ratio: float) -> float:
    """Return the loss of a family of compressors on digits, at a wire ratio that was asked for."""
    return {(row["family"], row["ratio"]): row["loss"] for row in rows("ladder")}[family, ratio]


def advise() -> dict[str, Any]:
    """Return the numbers of docs/evidence/advise.md."""
    *links, total = rows("predictions")
    return {
        "links": links,
        "total": total,
        "in_progress": functools.partial(wins, "published", key="wins_in_progress", least_gbit=10),
        "closest_to_the_study": wins("published", "V100 float32", "papers_wins", 10),
    }
