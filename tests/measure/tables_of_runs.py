# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables that are made of runs of ``gravac bench tta``."""

import math
import statistics
from collections.abc import Sequence

from gravac.lab.report import markdown
from gravac.lab.tta.record import TrainingRecord
from tests.measure import judgement, talk
from tests.measure.efficiency import spearman
from tests.measure.published import (
    DEFAULT,
    LINKS,
    SCALES,
    commits,
    fastest_static,
    judged,
    row,
    rows,
    runs,
    section,
    speedup,
)
from tests.measure.rendering import render

NAMED = {"fp16": "float16", "fp32": "float32", "quantize(1)": "1 bit", "quantize(2)": "2 bits"}

HEADINGS = {"20mbit": "20 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "unthrottled": "unthrottled"}

RIVALS = {"torch-powersgd(4)": 4, "torch-powersgd(8)": 8}
"""torch's PowerSGD by rank."""

AIMS = {
    "fp16": {"20mbit": "8", "100mbit": "2.5", "1gbit": "1.05", "unthrottled": "0.98"},
    "PowerSGD": {"20mbit": "2", "100mbit": "1.4", "1gbit": "1.05", "unthrottled": "1"},
}
"""What was asked of the default, as a speed-up."""


def head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def factor(speed_up: float) -> str:
    """A speed-up in two digits or three."""
    return f"{speed_up:.0f}x" if speed_up >= 10 else f"{speed_up:.1f}x" if speed_up >= 1.5 else f"{speed_up:.2f}x"


TASKS = {"charlm": "transformer on text", "lstm": "LSTM on text", "denoise": "image denoiser"}
"""Tasks, in the README's words."""


def speed() -> str:
    """The README's: the default against float16, and the static method that was better, with its own figure."""
    lines = head("", *HEADINGS.values())
    for task, label in TASKS.items():
        cells = []
        for link in LINKS:
            default, rival = row(task, link, DEFAULT), fastest_static(task, link)
            ratio = speedup(task, link, DEFAULT)
            ratio_of_rival = 1.0 if rival.method == "fp16" else speedup(task, link, rival.method)
            if default.tta.median <= rival.tta.median or ratio >= ratio_of_rival:
                cells.append(f"**{factor(ratio)}**")
                continue
            name = NAMED.get(rival.method, "PowerSGD" if "powersgd" in rival.method else rival.method)
            cells.append(f"{factor(ratio)} ({name} {factor(ratio_of_rival)})")
        lines.append(line(label, *cells))
    return "\n".join(lines)


def hindsight_ratios() -> dict[tuple[str, str], list[float]]:
    """The default's times over those of the cell's best static method, by cell and seed."""
    return {
        (task, link): [1 / x for x in paired_with(row(task, link, DEFAULT).runs, fastest_static(task, link).runs)]
        for task in SCALES
        for link in LINKS
    }


def hindsight() -> str:
    lines = head("task", *(HEADINGS[link] for link in reversed(LINKS)))
    ratios = hindsight_ratios()
    for task in SCALES:
        cells = []
        for link in reversed(LINKS):
            by_seed = ratios[task, link]
            cells.append(f"{statistics.median(by_seed):.2f} ({' '.join(f'{ratio:.2f}' for ratio in by_seed)})")
        lines.append(line(task, *cells))
    return "\n".join(lines)


def judgement_table(name: str = "judgement") -> str:
    return judgement.table(judged(name))


def paired_with(runs_of_method: Sequence[TrainingRecord], others: Sequence[TrainingRecord]) -> list[float]:
    """How many times as fast a method is as another, by seed."""
    times = {run.seed: run.tta_s for run in others}
    return [(times[run.seed] or math.inf) / (run.tta_s or math.inf) for run in runs_of_method]


def charlm() -> str:
    """The default against torch's methods, once more."""
    lines: dict[str, list[str]] = {}
    for link in LINKS:
        default = row("charlm", link, DEFAULT, "tta_charlm")
        float16, float32 = (row("charlm", link, method, "tta_charlm") for method in ("fp16", "fp32"))
        powersgd = min(
            (row("charlm", link, method, "tta_charlm") for method in RIVALS), key=lambda rival: rival.tta.median
        )
        limit = section("charlm", link, "tta_charlm").limit
        assert limit is not None
        for label, rival, aims in (
            ("against torch's fp16 hook", float16, AIMS["fp16"]),
            ("against torch's PowerSGD, the better of ranks 4 and 8", powersgd, AIMS["PowerSGD"]),
        ):
            ratios = paired_with(default.runs, rival.runs)
            by_seed = " ".join(
                f"{ratio:.2f}" if link in ("1gbit", "unthrottled") else f"{ratio:.1f}" for ratio in ratios
            )
            lines.setdefault(label, []).append(f"{statistics.median(ratios):.2f}x ({by_seed}) [{aims[link]}]")
        over_float32 = statistics.median(paired_with(default.runs, float32.runs))
        lines.setdefault("against float32", []).append(f"{over_float32:.2f}x")
        lines.setdefault("its time, relative to the limit", []).append(f"{default.tta.median / limit:.2f}")
        lines.setdefault("fp16's, relative to the limit", []).append(f"{float16.tta.median / limit:.2f}")
    heading = head("`AdaptiveCompressor()`", *HEADINGS.values())
    return "\n".join([*heading, *(line(label, *cells) for label, cells in lines.items())])


def language() -> str:
    """How many times as fast as float16 each method is on the language models, where it ran: median, and all pairs."""
    by_case: dict[tuple[str, str, str], list[TrainingRecord]] = {}
    for run in runs("language"):
        if run.link in LINKS[:2]:
            by_case.setdefault((run.task, run.link, run.method), []).append(run)
    cases = list(dict.fromkeys((task, link) for task, link, _ in by_case))
    lines = head("method", *(f"{task}, {HEADINGS[link]}" for task, link in cases))
    for method in dict.fromkeys(method for _, _, method in by_case):
        cells = []
        for case in cases:
            ratios = paired_with(by_case.get((*case, method), ()), by_case[(*case, "fp16")])
            by_seed = " ".join(f"{ratio:.2f}" if ratio else "missed" for ratio in ratios)
            cells.append(f"{statistics.median(ratios):.2f}x ({by_seed})" if ratios else "")
        lines.append(line(f"`{method}`", *cells))
    return "\n".join(lines)


def language_steps() -> str:
    """How many times dense's steps each method needs on the language models: median, and all seeds."""
    # each seed's steps of a static method are of its run without a link
    unlimited = [run for run in runs("language") if run.link == "unthrottled"]
    needed = {(run.task, run.method, run.seed): run.steps_to_target for run in unlimited}
    tasks, methods = (
        list(dict.fromkeys(names)) for names in zip(*((r.task, r.method) for r in unlimited), strict=True)
    )
    lines = head("method", *tasks)
    for method in methods:
        cells = []
        for task in tasks:
            dense = {case[2]: steps for case, steps in needed.items() if case[:2] == (task, "fp32") and steps}
            seeds = [seed for seed in dense if (task, method, seed) in needed]
            ratios = [(needed[task, method, seed] or math.inf) / dense[seed] for seed in seeds]
            by_seed = " ".join("missed" if math.isinf(ratio) else f"{ratio:.2f}" for ratio in ratios)
            cells.append(f"{statistics.median(ratios):.2f} ({by_seed})" if ratios else "")
        lines.append(line(f"`{method}`", *cells))
    return "\n".join(lines)


def published_comparisons() -> str:
    """The paper's comparisons: what it published, and what they are here."""
    tasks = list(talk.TASKS)
    by_case = {(run.task, run.method): run for run in runs("talk")}
    needed = {task: by_case[task, "fp32"].steps_to_target or 0 for task in tasks}

    def faster(method: str, than: str) -> str:
        ratios, stopped = [], 0
        for task in tasks:
            seconds, seconds_of_other = by_case[task, method].tta_s, by_case[task, than].tta_s
            if seconds and seconds_of_other:
                ratios.append(f"{seconds_of_other / seconds:.2f}x")
            elif by_case[task, method].steps < needed[task]:
                stopped += 1
            else:
                ratios.append("missed")
        return " ".join(ratios) + (f", {stopped} of {len(tasks)} stopped early" if stopped else "")

    def floats_saved(epsilon: float) -> list[float]:
        return [talk.floats_saved(by_case[task, talk.gravac(epsilon, "dgc")]) or 0 for task in tasks]

    return render(
        "tables/paper",
        faster=faster,
        floats_saved=floats_saved,
        repaired=talk.gravac(0.7, "topk"),
        as_printed=talk.gravac(0.7, "topk", literal=True),
        accordion=talk.ADAPTIVE["Accordion, top-k"],
        repaired_low_rank=talk.ADAPTIVE["GraVAC, ε 0.7, PowerSGD 16x-64x"],
        accordion_low_rank=talk.ADAPTIVE["Accordion, PowerSGD 16x-64x"],
        failures=sum(by_case[task, "randomk@1000"].tta_s is None for task in tasks),
    )


def probed() -> str:
    """Rank correlation of what a short probe says with the efficiency in the matrix, by task."""
    worths = {row["task"]: row["worth"] for row in rows("efficiency")}
    correlations = {
        row["task"]: spearman(list(row["probed"].values()), [worths[row["task"]][name] for name in row["probed"]])
        for row in rows("probed")
    }
    return render("tables/probed", correlations=correlations)


def matrix() -> str:
    return markdown.markdown_tables(runs("tta"), commits("tta"))


def schedule() -> str:
    """Of a link that changes while training."""
    lines = head("method", "seconds, median (by seed)", "steps")
    by_method: dict[str, list[TrainingRecord]] = {}
    for run in runs("tta_schedule"):
        if run.link != "unthrottled":
            by_method.setdefault(run.method, []).append(run)
    medians = {method: statistics.median(run.tta_s or math.inf for run in raced) for method, raced in by_method.items()}
    for method in sorted(medians, key=lambda name: medians[name]):
        bold = "**" * (medians[method] == min(medians.values()))
        seconds = " ".join(f"{run.tta_s:.1f}" for run in by_method[method])
        steps = " ".join(str(run.steps_to_target) for run in by_method[method])
        lines.append(line(f"`{method}`", f"{bold}{medians[method]:.1f}{bold} ({seconds})", steps))
    return "\n".join(lines)


def low_rank() -> str:
    """Steps to the target by rank and by CF."""
    layers = {"denoise": "768-wide layers, SGD", "charlm": "128-wide, AdamW", "lstm": "256-wide, Adam"}
    lines = head("task", "dense", "rank 16", "rank 8", "rank 4", "rank 2", "by CF")
    for task, layer in layers.items():
        by_method = {run.method: run for run in runs("lowrank") if run.task == task}
        dense = by_method["fp32"].steps_to_target or 0
        by_rank = [by_method[f"powersgd({rank})@{512 // rank}"] for rank in (16, 8, 4, 2)]
        cells = [
            f"{run.steps_to_target} ({dense / (run.steps_to_target or math.inf):.2f}), {_kb(run)}" for run in by_rank
        ]
        by_cf = sorted(
            (float(name.partition("@")[2]), run) for name, run in by_method.items() if name.startswith("powersgd@")
        )
        cells.append(
            "; ".join(
                f"{cf:g}x: {run.steps_to_target}, {_kb(run)}" if run.steps_to_target else f"{cf:g}x: not reached"
                for cf, run in by_cf
            )
        )
        lines.append(line(f"`{task}` ({layer})", f"{dense}, {_kb(by_method['fp32'])}", *cells))
    return "\n".join(lines)


def _kb(run: TrainingRecord) -> str:
    return f"{(run.wire_bytes or 0) / run.steps / 1000:.0f} KB"


def talk_table() -> str:
    return talk.table(runs("talk"))
