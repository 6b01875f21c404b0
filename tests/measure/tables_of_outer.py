# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables on outer steps."""

import statistics

from gravac.lab.training.expression import compressor
from tests.measure import outer_efficiency as outer_steps
from tests.measure.published import rows, runs
from tests.measure.tables_of_runs import HEADINGS, head, line


def outer_efficiency() -> str:
    """Efficiency by task and number of steps between exchanges; a run that did not reach its target has a bound."""
    found = outer_steps.efficiencies(rows("outer_efficiency"))
    numbers = sorted({every for _, every in found})
    lines = head("task", *(f"H = {every}" for every in numbers))
    for task in dict.fromkeys(task for task, _ in found):
        lines.append(line(task, *(_efficiency(found.get((task, every))) for every in numbers)))
    points = outer_steps.points(rows("outer_efficiency"))
    return "\n".join([*lines, line("mean of the first two", *(_efficiency(points.get(every)) for every in numbers))])


def outer_compressed() -> str:
    """Efficiency of compressors relative to dense at the same number of steps: over tasks, and of each."""
    found = rows("outer_efficiency")
    dense = outer_steps.efficiencies(found)
    labels = [label for label in outer_steps.SENT if label != "dense" and outer_steps.efficiencies(found, label)]
    numbers = sorted({every for label in labels for _, every in outer_steps.efficiencies(found, label)})
    lines = head("sent", "believed of a step", *(f"H = {every}" for every in numbers))
    for label in labels:
        own = outer_steps.efficiencies(found, label)
        cells = []
        for every in numbers:
            of = [own[at] / dense[at] for at in own if at[1] == every and at in dense]
            each = " ".join(f"{one:.2f}" for one in of)
            cells.append(f"{statistics.geometric_mean(of):.2f} ({each})" if of else "")
        believed = compressor(label).profile(outer_steps.SENT[label]).efficiency
        lines.append(line(f"`{label}`", f"{believed:.2f}", *cells))
    return "\n".join(lines)


def outer_race() -> str:
    """Seconds to the target over those of dense DDP on a network without a limit, with the steps needed."""
    own = [run for run in runs("outer_tta") if run.tta_s]
    free = {(run.task, run.seed): run.tta_s or 0.0 for run in own if (run.link, run.method) == ("unthrottled", "fp32")}
    limited = [run for run in own if run.link != "unthrottled"]
    cells = list(dict.fromkeys((run.task, run.link) for run in limited))
    lines = head("method", *(f"{task}, {HEADINGS[link]}" for task, link in cells))
    for method in dict.fromkeys(run.method for run in limited):
        told = []
        for cell in cells:
            ran = [run for run in limited if (run.task, run.link) == cell and run.method == method]
            told.append(
                ", ".join(
                    f"{(run.tta_s or 0.0) / free[run.task, run.seed]:.2f} in {run.steps_to_target}" for run in ran
                )
            )
        lines.append(line(f"`{method}`", *told))
    return "\n".join(lines)


def _efficiency(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def outer_memory() -> str:
    """Bytes per parameter beside weights, between rounds and at most within one, by number of fragments."""
    found = rows("outer_memory")
    numbers = list(dict.fromkeys(row["fragments"] for row in found))
    peaks = [f"at most, {one} fragment{'s' * (one > 1)}" for one in numbers]
    lines = head("anchors", "momentum", "`offload`", "GPU: between", *peaks, "CPU: between", *peaks)
    for key in dict.fromkeys((row["anchor_dtype"], row["momentum"], row["offload"]) for row in found):
        own = [row for row in found if (row["anchor_dtype"], row["momentum"], row["offload"]) == key]
        cells = []
        for where in ("device", "host"):
            cells += [f"{own[0][f'{where}_kept']:.1f}", *(f"{row[f'{where}_peak']:.1f}" for row in own)]
        anchors, momentum, offload = key
        lines.append(line(anchors, "yes" if momentum else "no", "yes" if offload else "no", *cells))
    return "\n".join(lines)


def outer_traffic() -> str:
    """Bytes of a round, and of its fullest step over the mean, by number of fragments."""
    found = rows("outer_traffic")
    numbers = list(dict.fromkeys(row["fragments"] for row in found))
    said = (f"{one} fragment{'s' * (one > 1)}" for one in numbers)
    lines = head("sent", "CF", "bytes of a round", *said)
    for label in dict.fromkeys(row["compressor"] for row in found):
        own = [row for row in found if row["compressor"] == label]
        cells = (f"{row['peak_bytes'] / 1e3:,.0f} kB, {row['peak_over_mean']:.1f}x" for row in own)
        lines.append(line(f"`{label}`", f"{own[0]['cf']:.4g}", f"{own[0]['bytes'] / 1e3:,.0f} kB", *cells))
    return "\n".join(lines)
