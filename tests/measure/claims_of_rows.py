# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sentences of docs/evidence/measurements.md and advise.md that are checked; see ``tests.measure.claims``."""

import statistics
from collections.abc import Iterable

from gravac.lab.tta.record import TrainingRecord
from tests.measure.published import DEFAULT, rows, runs
from tests.measure.switching import SWITCHED, level
from tests.measure.tables_of_rows import wins


def percent(value: float) -> str:
    """Of a share, without a sign."""
    return f"{abs(100 * value):.0f}"


def seconds(of: Iterable[TrainingRecord]) -> float:
    """Median time to the target."""
    return statistics.median(run.tta_s for run in of if run.tta_s is not None)


def measurements() -> list[str]:
    return [*_lab(), *_switching(), *_feedback(), *_eight_ranks(), *_low_rank(), *_ladder()]


def _lab() -> list[str]:
    small, large = rows("overhead")
    by_method: dict[str, list[TrainingRecord]] = {}
    for run in runs("tta_schedule"):
        by_method.setdefault(run.method, []).append(run)
    behind = seconds(by_method[DEFAULT]) / seconds(by_method["quantize(1)"]) - 1
    changes = [one for one in rows("links") if one["kind"] == "schedule"]
    applied, settled = ([1000 * one[key] for one in changes] for key in ("applied_after_seconds", "lag_seconds"))
    assert small["ours_over_native"] <= 1.02 < large["ours_over_native"]
    assert all(abs(one["factored_over_full"] - 1) <= 0.1 for one in rows("factored"))
    assert all(one["over_expected"] <= 1.1 for one in rows("links") if one["kind"] == "all-reduce")
    return [
        "The 1.2 M parameter model is within 1.02; the 4.7 M one",
        "Times agree within 10 % in all six.",
        "Within 10 % everywhere.",
        f"`goodput` LOSES, by {percent(behind)} %, to 1 bit",
        f"was in force {min(applied):.0f} to {max(applied):.0f} ms after its time, and what arrived had settled "
        f"{min(settled):.0f} to {max(settled):.0f} ms after it.",
    ]


def _switching() -> list[str]:
    found = {one["schedule"]: one for one in rows("switching") if one["task"] == "charlm"}
    off = [level(found[one]) - level(found[other]) for one, other in SWITCHED.items() if "1 bit" in one]
    return [f"the loss lies {min(off):.3f} to {max(off):.3f} nats above that of staying"]


def loss(label: str, cf: float | None, feedback: float, optimizer: str = "adamw", ranks: int = 2) -> float:
    """Median over seeds of the validation loss, at the learning rate that was best for dense."""
    own = [one for one in rows("worth") if (one["optimizer"], one["ranks"]) == (optimizer, ranks)]
    dense = [one for one in rows("worth") if one["optimizer"] == optimizer and one["ranks"] == 2]
    rate = min((one["loss"], one["rate"]) for one in dense)[1]
    at = (label, cf, feedback, rate)
    return statistics.median(
        one["loss"] for one in own if (one["label"], one["cf"], one["feedback"], one["rate"]) == at
    )


def behind(label: str, cf: float, feedback: float, optimizer: str = "adamw", ranks: int = 2) -> float:
    """Nats above dense."""
    return loss(label, cf, feedback, optimizer, ranks) - loss("dense", None, 0.0, optimizer, ranks)


def _feedback() -> list[str]:
    two, one, rand = ("quantize(2)", 16), ("quantize(1)", 32), ("randomk(block=64)", 10)
    first = next(row["loss"] for row in rows("worth") if (row["label"], row["seed"], row["rate"]) == ("dense", 0, 2e-3))
    chunks, evenly = "topkc(values=quantize(1))", "quantize(2, levels='uniform')"
    return [
        f"end {behind(*two, 0.0):.3f} behind it under AdamW and {behind(*two, 0.0, 'sgd'):.2f} under SGD "
        f"without feedback",
        f"({loss(evenly, 16, 0.0) - first:.2f} behind, one seed)",
        f"1 bit is {behind(*one, 0.0):.2f} behind at 23x under AdamW and {behind(*one, 0.0, 'sgd'):.2f} under SGD "
        f"({behind(*one, 0.5, 'sgd'):.2f} with half)",
        f"({loss(*rand, 0.5):.2f} with half, {loss(*rand, 1.0):.2f} with all under AdamW; "
        f"{loss(*rand, 0.5, 'sgd'):.2f} and "
        f"{loss(*rand, 1.0, 'sgd'):.2f} under SGD)",
        f"({loss(*one, 0.0, 'sgd'):.3f}, {loss(*one, 0.5, 'sgd'):.3f}; dense {loss('dense', None, 0.0, 'sgd'):.3f})",
        f"ends at {loss('topkc', 10, 0.0):.2f}, PowerSGD with feedback 0.15 and ends at "
        f"{loss('powersgd', 16, 1.0):.2f}.",
        f"{loss(chunks, 4, 1.0):.2f} at 41x, against {loss('topkc(values=quantize(4))', 10, 1.0):.2f} for 4 bit "
        f"values at "
        f"35x. Plain top-k at 44x is at {loss('topk', 100, 1.0):.2f}, and PowerSGD at 54x "
        f"({loss('powersgd', 64, 1.0):.2f}) at "
        f"level with 1-bit chunks at 84x ({loss(chunks, 16, 1.0):.2f}).",
    ]


def _eight_ranks() -> list[str]:
    two, one = ("quantize(2)", 16), ("quantize(1)", 32)
    chunks, ar = ("topkc(values=quantize(1))", 4), ("artopk", 10)

    def eight(what: tuple[str, float], feedback: float) -> float:
        return behind(*what, feedback, ranks=8)

    pairs = [[loss(*what, kept, ranks=8) for kept in (0.5, 1.0)] for what in (chunks, ar)]
    return [
        f"2 bits end {eight(two, 0.0):.3f} behind dense without feedback ({behind(*two, 0.0):.3f} with two ranks), "
        f"{eight(two, 0.5):.3f} with half;",
        f"1 bit ends {eight(one, 0.0):.3f} behind without feedback, {eight(one, 0.5):.3f} with half "
        f"({behind(*one, 0.5):.3f} with two)",
        f"({pairs[0][0]:.2f} against {pairs[0][1]:.2f}, {pairs[1][0]:.2f} against {pairs[1][1]:.2f})",
    ]


def _low_rank() -> list[str]:
    steps = {(run.task, run.method): run.steps_to_target for run in runs("lowrank")}
    return [
        f"{steps['denoise', 'powersgd(4)@128']} steps against {steps['denoise', 'powersgd@64']}, at 40 KB "
        f"{steps['denoise', 'powersgd(2)@256']} against {steps['denoise', 'powersgd@128']}.",
    ]


def _ladder() -> list[str]:
    found = {(one["family"], one["ratio"]): one["loss"] for one in rows("ladder")}
    pairs = [(found["topk", ratio], found["ladder", ratio]) for ratio in (100, 500)]
    chunks = "topkc(values=quantize(1))"
    stand = [loss("quantize(2)", 16, 0.0), loss("quantize(1)", 32, 0.0), loss(chunks, 4, 1.0), loss(chunks, 16, 1.0)]
    return [
        f"({pairs[0][0]:.3f} against {pairs[0][1]:.3f} at 76-81x, {pairs[1][0]:.3f} against {pairs[1][1]:.3f} at 200x)",
        f"stand at {stand[0]:.3f} for 14x, {stand[1]:.3f} for 23x, {stand[2]:.3f} for 41x and {stand[3]:.3f} for 84x;",
    ]


def advise() -> list[str]:
    gpus = ("V100 float32", "V100 mixed", "A100 mixed")
    of = [wins("published", gpu, "wins_in_progress", 10).split(" of ") for gpu in gpus]
    papers = wins("published", gpus[0], "papers_wins", 10)
    *links, whole = rows("predictions")
    rates = [f"{one['bandwidth_mbit']:.3g}" for one in links]
    return [
        f"Fitted are (medians): {rates[0]}, {rates[1]} and {rates[2]} Mbit/s, no latency, copies at "
        f"{whole['copy_gbyte_per_s']:.0f} GB/s",
        f"{whole['start_ms']:.1f} ms for each round of collectives of a compressed bucket, and "
        f"{whole['overlap']:.1f} of",
        f"fall to {of[0][0]}, {of[1][0]} and {of[2][0]} of {of[0][1]} with published costs.",
        f"gives {papers}, none of them a ResNet.",
    ]
