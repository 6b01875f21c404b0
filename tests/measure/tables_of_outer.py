# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables on outer steps."""

from tests.measure import outer_efficiency as outer_steps
from tests.measure.published import rows
from tests.measure.tables_of_runs import head, line


def outer_efficiency() -> str:
    """Efficiency by task and number of steps between exchanges; a run that did not reach its target has a bound."""
    found = outer_steps.efficiencies(rows("outer_efficiency"))
    numbers = sorted({every for _, every in found})
    lines = head("task", *(f"H = {every}" for every in numbers))
    for task in dict.fromkeys(task for task, _ in found):
        lines.append(line(task, *(_efficiency(found.get((task, every))) for every in numbers)))
    points = outer_steps.points(rows("outer_efficiency"))
    return "\n".join([*lines, line("geometric mean", *(_efficiency(points.get(every)) for every in numbers))])


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
