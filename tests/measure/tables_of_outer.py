# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables on outer steps."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gravac.beliefs import power_at, shipped_beliefs
from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.provenance import Stamp
from gravac.lab.tasks import make
from gravac.lab.training.expression import compressor
from gravac.lab.training.methods import MATCHED_PREFIX
from gravac.lab.tta.matrix import REFERENCE_METHOD
from gravac.lab.tta.record import TrainingRecord
from tests.measure import nanogpt as of_nanogpt
from tests.measure import outer_efficiency as outer_steps
from tests.measure import outer_long as outer_long_runs
from tests.measure.judgement import best_of, interval, seconds_spent, verdicts
from tests.measure.published import DEFAULT, rows, runs
from tests.measure.rendering import render
from tests.measure.results import STAMP
from tests.measure.tables_of_runs import HEADINGS, TASKS, head, line

CHANGING, UNEVEN = "20mbit,10s:100mbit,20s:5mbit", "20mbit/5mbit"

LINKS = {**HEADINGS, "5mbit": "5 Mbit/s", CHANGING: "20, then 100, then 5 Mbit/s", UNEVEN: "20 Mbit/s in, 5 out"}


def outer_efficiency() -> str:
    """Efficiency by task and number of steps between exchanges; a run that did not reach its target has a bound."""
    efficiencies = outer_steps.efficiencies(rows("outer_efficiency"))
    numbers = sorted({every for _, every in efficiencies})
    lines = head("task", *(f"H = {every}" for every in numbers))
    for task in dict.fromkeys(task for task, _ in efficiencies):
        lines.append(line(task, *(str(efficiencies.get((task, every), "")) for every in numbers)))
    points = outer_steps.points(rows("outer_efficiency"))
    return "\n".join([*lines, line("mean", *(f"{points[every]:.2f}" for every in numbers))])


def outer_rates() -> str:
    """Steps to the target by learning rate of the outer optimizer, dense, by number of steps between exchanges."""
    tuned = outer_steps.tuned(rows("outer_efficiency"))
    lines = head("rate, momentum", *(f"H = {every}" for every in tuned))
    settings = {(row["momentum"], row["rate"]) for tried in tuned.values() for row in tried}
    best = {every: outer_steps.best(tried) for every, tried in tuned.items()}
    for momentum, rate in sorted(settings):
        cells = []
        for every, tried in tuned.items():
            steps = _steps_by_task([row for row in tried if (row["rate"], row["momentum"]) == (rate, momentum)])
            cells.append(f"**{steps}**" if best[every] == (rate, momentum) else steps)
        lines.append(line(f"{rate:g}, {momentum:g}", *cells))
    return "\n".join(lines)


def outer_rates_more() -> str:
    """The same without momentum among more ranks than two."""
    of_ranks = rows("outer_ranks")
    numbers = sorted({row["ranks"] for row in of_ranks if row["ranks"] in outer_steps.TRIED})
    rates = sorted({rate for number in numbers for tried in outer_steps.TRIED[number].values() for rate in tried})
    lines = head("ranks", "H", *(f"rate {rate:g}" for rate in rates))
    for number in numbers:
        for every, tried in sorted(outer_steps.tuned(of_ranks, number).items()):
            cells, (best, _) = [], outer_steps.best(tried)
            for rate in rates:
                steps = _steps_by_task([row for row in tried if row["rate"] == rate])
                cells.append(f"**{steps}**" if rate == best else steps)
            lines.append(line(str(number), str(every), *cells))
    return "\n".join(lines)


def _steps_by_task(tried: Sequence[dict[str, Any]]) -> str:
    """Steps to the target of each task that rates were tuned on, side by side."""
    by_task = {row["task"]: row for row in tried}
    return " ".join(_reached(by_task[task]) for task in outer_steps.TUNED_ON if task in by_task)


def _reached(row: dict[str, Any]) -> str:
    return f"{row['reached']:.0f}" if row["reached"] else f"over {row['curve'][-1][0]}"


def outer_compressed() -> str:
    """Efficiency of compressors relative to dense at the same number of steps: over tasks, of each, and as believed."""
    by_label = {label: _relative(label) for label in outer_steps.SENT if label != "dense"}
    numbers = sorted({every for relative in by_label.values() for _, every in relative})
    lines = head("sent", *(f"H = {every}" for every in numbers))
    scale, _ = outer_steps.SETUPS["charlm"]
    shapes = [tuple(parameter.shape) for parameter in make("charlm", scale=scale, seed=0).model().parameters()]
    for label, relative in by_label.items():
        profile = compressor(label).profile(outer_steps.SENT[label], shapes=shapes)
        cells = []
        for every in numbers:
            worths = [worth for (_, number), worth in relative.items() if number == every]
            believed = profile.efficiency ** (
                power_at(profile.efficiency_apart, every) if profile.efficiency_apart else 1
            )
            by_task = " ".join(map(str, worths))
            cells.append(f"{outer_steps.mean(worths)} ({by_task}) [{believed:.2f}]" if worths else "")
        if relative:
            lines.append(line(f"`{label}`", *cells))
    return "\n".join(lines)


def _relative(label: str) -> dict[tuple[str, int], outer_steps.Worth]:
    """Efficiency over that of dense exchanges as often, of the same seeds, by task and number of steps."""
    dense = outer_steps.by_case(rows("outer_efficiency"), ranks=2)
    relative = {}
    for case, by_seed in outer_steps.by_case(rows("outer_efficiency"), label, 2).items():
        both = [(worth, dense[case][seed]) for seed, worth in by_seed.items() if seed in dense.get(case, {})]
        ratios = [outer_steps.Worth(worth.value / of_dense.value, worth.at_most) for worth, of_dense in both]
        if ratios:
            relative[case] = outer_steps.mean(ratios)
    return relative


def outer_frontier() -> str:
    """Efficiency of cases with several seeds, by what is sent and how often: over them, lowest and highest."""
    record = rows("outer_efficiency")
    lines = head("sent", "H", "wire ratio", *outer_steps.SETUPS)
    for label in outer_steps.SENT:
        by_case = outer_steps.by_case(record, label)
        for every in sorted({every for (_, every), by_seed in by_case.items() if len(by_seed) > 1}):
            wires = [row["wire_ratio"] for row in record if (row["label"], row["every"]) == (label, every)]
            cells = [_over_seeds(by_case.get((task, every), {})) for task in outer_steps.SETUPS]
            lines.append(line(f"`{label}`", str(every), f"{statistics.fmean(wires):.0f}", *cells))
    return "\n".join(lines)


def _over_seeds(by_seed: Mapping[int, outer_steps.Worth]) -> str:
    """Geometric mean, lowest and highest."""
    worths = [*by_seed.values()]
    return f"{outer_steps.mean(worths)}{_range([worth.value for worth in worths])}" if worths else ""


def outer_ranks() -> str:
    """Efficiency by number of ranks, relative to dense gradient averaging among as many, over seeds."""
    of_more = rows("outer_ranks")
    record = [*rows("outer_efficiency"), *of_more]
    numbers = sorted({row["ranks"] for row in record})
    lines = head("task", "H", "sent", *(f"{number} ranks" for number in numbers))
    cases = {(row["task"], row["label"], row["every"]) for row in of_more if row["every"]}
    for task, label in itertools.product(outer_steps.SETUPS, outer_steps.SENT):
        for every in sorted(every for of_task, sent, every in cases if (of_task, sent) == (task, label)):
            cells = (
                _over_seeds(outer_steps.by_case(record, label, number).get((task, every), {})) for number in numbers
            )
            lines.append(line(task, str(every), f"`{label}`", *cells))
    return "\n".join(lines)


def outer_race(name: str = "outer_tta") -> str:
    """Seconds to the target over those of dense DDP on a network without a limit: over seeds, lowest and highest."""
    limited = [run for run in runs(name) if run.link != UNTHROTTLED]
    methods = sorted(dict.fromkeys(run.method for run in limited), key=_fixed_first)
    lines = head("task, link", *(f"`{method}`" for method in methods))
    for task, link in dict.fromkeys((run.task, run.link) for run in limited):
        cells = [_over_free(runs(name), (task, link, method)) for method in methods]
        lines.append(line(f"{task}, {LINKS.get(link, link)}", *cells))
    return "\n".join(lines)


def _fixed_first(method: str) -> tuple[bool, str]:
    fixed = method.startswith("outer(every=")
    return not fixed, method if fixed else ""


def _over_free(record: Sequence[TrainingRecord], case: tuple[str, str, str]) -> str:
    """Geometric mean over seeds, lowest and highest; a run that was given up has taken longer than it had.

    Nothing if the record lacks the case, which is a task, a link and a method.
    """
    free = {
        (run.task, run.seed): run.tta_s or 0.0
        for run in record
        if (run.link, run.method) == (UNTHROTTLED, REFERENCE_METHOD)
    }
    raced = [run for run in record if (run.task, run.link, run.method) == case]
    if not raced:
        return ""
    times = [seconds_spent(run) / free[run.task, run.seed] for run in raced]
    above = "over " if any(run.tta_s is None for run in raced) else ""
    return f"{above}{statistics.geometric_mean(times):.2f}{_range(times)}"


def _range(numbers: Sequence[float]) -> str:
    """Lowest and highest of several."""
    return f" [{min(numbers):.2f}-{max(numbers):.2f}]" if len(numbers) > 1 else ""


ADAPTIVE = "outer:ladder@2-1000"
"""``OuterByHand()`` as a method of the lab."""

AGAINST = (
    ("the best fixed (H, CF) of each cell, in hindsight", "outer(every=", None),
    ("its own choices at random times, where links change", MATCHED_PREFIX, True),
    ("the same, where they do not", MATCHED_PREFIX, False),
    ("torchft, the better of its two", "torchft", None),
    ("DDP's hook with goodput", DEFAULT, None),
)
"""What outer steps that decide are held against: how the methods' words begin, and on which links: those that change,
those that do not, or all."""


def outer_in_short() -> str:
    """Outer steps that decide, over dense DDP on a network without a limit; short runs, then long."""
    links = ("5mbit", "20mbit", "100mbit")
    lines = head("", *(LINKS[link] for link in links))
    for task, label in TASKS.items():
        cells = [
            "; ".join(_over_free(runs(name), (task, link, ADAPTIVE)) for name in ("outer_tta", "outer_tta_long"))
            for link in links
        ]
        lines.append(line(label, *cells))
    return "\n".join(lines)


def outer_judged() -> str:
    """Time to the target of outer steps that decide over that of others: mean of cells with its 95 % interval.

    Of two records, which have other seeds where they have the same cells. A cell in which the other was given up is
    counted and left out: its ratio would be that of the limit.
    """
    limited = [run for name in ("outer_tta", "outer_tta_more") for run in runs(name) if run.link != UNTHROTTLED]
    lines = head(
        "over", "cells", "geometric mean", "95 % interval", "lowest and highest", "cells where it was given up"
    )
    for label, prefix, change in AGAINST:
        others = [run for run in limited if run.method.startswith(prefix) and change in (None, run.link == CHANGING)]
        best = best_of(others)
        missed = {
            (run.task, run.link) for run in others if run.method == best[run.task, run.link] and run.tta_s is None
        }
        cells = verdicts(limited, best, ADAPTIVE)
        ratios = [verdict.ratio for verdict in cells if verdict.cell not in missed]
        given_up = str(len(cells) - len(ratios) or "")
        if ratios:
            mean, low, high = interval(ratios)
            interval_text = f"{low:.2f}-{high:.2f}" if math.isfinite(low) and low > 0 else ""
            bounds = f"{min(ratios):.2f}, {max(ratios):.2f}"
            lines.append(line(label, str(len(ratios)), f"{mean:.2f}", interval_text, bounds, given_up))
        elif cells:
            lines.append(line(label, "0", "", "", "", given_up))
    return "\n".join(lines)


def outer_memory() -> str:
    """Bytes per parameter beside weights, between rounds and at most within one, by number of fragments."""
    numbers = list(dict.fromkeys(row["fragments"] for row in rows("outer_memory")))
    peaks = [f"at most, {number} fragment{'s' * (number > 1)}" for number in numbers]
    lines = head("anchors", "momentum", "`offload`", "GPU: between", *peaks, "CPU: between", *peaks)
    settings: dict[tuple[str, bool, bool], list[dict[str, Any]]] = {}
    for row in rows("outer_memory"):
        settings.setdefault((row["anchor_dtype"], row["momentum"], row["offload"]), []).append(row)
    for (anchors, momentum, offload), by_fragments in settings.items():
        cells = []
        for memory in ("device", "host"):
            cells += [
                f"{by_fragments[0][f'{memory}_kept']:.1f}",
                *(f"{row[f'{memory}_peak']:.1f}" for row in by_fragments),
            ]
        lines.append(line(anchors, "yes" if momentum else "no", "yes" if offload else "no", *cells))
    return "\n".join(lines)


def outer_costs() -> str:
    """Steps of a rank on average to the target, over those without delay, in equal shares, with anchors in float32."""
    record = rows("outer_costs")
    names = ("label", "faster", "anchors", "delay", "mixing")
    reached = {(row["task"], row["label"], row["seed"]): row["reached"] for row in record if _without_costs(row)}
    tasks = list(dict.fromkeys(row["task"] for row in record))
    lines = head("sent", "steps of the two ranks", "anchors", "delay", "kept of it", *tasks)
    for setting in dict.fromkeys(tuple(row[name] for name in names) for row in record):
        of_setting = [row for row in record if tuple(row[name] for name in names) == setting]
        cells = []
        for task in tasks:
            of_task = [row for row in of_setting if row["task"] == task]
            missed = any(row["reached"] is None for row in of_task)
            ratios = [row["reached"] / reached[task, row["label"], row["seed"]] for row in of_task if row["reached"]]
            cells.append("not reached" if missed else f"{statistics.geometric_mean(ratios):.2f}" if ratios else "")
        label, _, anchors, delay, mixing = setting
        mixed = "" if not delay else "what was learned" if mixing is None else f"`mixing={mixing:g}`"
        steps = " and ".join(map(str, of_setting[0]["steps_of_ranks"]))
        lines.append(line(f"`{label}`", steps, anchors, str(delay), mixed, *cells))
    return "\n".join(lines)


def outer_delays() -> str:
    """Efficiency of exchanges behind steps, relative to those that are waited for as often, by ranks and task."""
    of_two, of_more = rows("outer_delays"), rows("outer_delays_four")
    record = [{"ranks": 2, **row} for row in (*of_two, *of_more)]
    tasks = list(dict.fromkeys(row["task"] for row in record))
    lines = head("ranks", "H", "steps behind", "believed", *tasks)
    waits = {tuple(row[name] for name in _OF_DELAY): row["reached"] for row in record if not row["delay"]}
    for ranks, every, delay in sorted({(row["ranks"], row["every"], row["delay"]) for row in record if row["delay"]}):
        cells = []
        for task in tasks:
            case = {"ranks": ranks, "every": every, "delay": delay, "task": task}
            delayed = [row for row in record if case.items() <= row.items()]
            ratios = [_steps(row) / waits[tuple(row[name] for name in _OF_DELAY)] for row in delayed]
            missed = any(row["reached"] is None for row in delayed)
            cells.append(str(outer_steps.Worth(1 / statistics.geometric_mean(ratios), missed)) if ratios else "")
        with_delay, without = (shipped_beliefs().of_outer(every, steps, ranks).efficiency for steps in (delay, 0))
        believed = f"{with_delay / without:.2f}"
        lines.append(line(str(ranks), str(every), str(delay), believed, *cells))
    return "\n".join(lines)


_OF_DELAY = ("ranks", "every", "task", "seed")


def _steps(row: dict[str, Any]) -> float:
    """Steps to the target, or all that a run that did not get there may make."""
    return float(row["reached"] or outer_steps.most_steps(row["task"]))


def outer_long() -> str:
    """What runs of 2000 steps come to, and by how much that is worse than gradients averaged in each: over seeds."""
    lines = head("task", "ranks", "H", "sent", "wire ratio", "comes to", "synchronous", "worse by")
    for (task, ranks, every, label), pairs in outer_long_runs.pairs(rows("outer_long")).items():
        outer, synchronous = ([outer_long_runs.final(row) for row in of_seeds] for of_seeds in zip(*pairs, strict=True))
        worse = [100 * outer_long_runs.worse(*pair) for pair in pairs]
        wire = f"{statistics.fmean(row['wire_ratio'] for row, _ in pairs):.0f}"
        ends = (f"{statistics.fmean(finals):.4g}" for finals in (outer, synchronous))
        difference = f"{statistics.fmean(worse):.2f} %{_range(worse)}"
        lines.append(line(task, str(ranks), str(every), f"`{label}`", wire, *ends, difference))
    return "\n".join(lines)


def _without_costs(row: dict[str, Any]) -> bool:
    return (row["faster"], row["anchors"], row["delay"]) == (1, "float32", 0)


def nanogpt() -> str:
    """NanoGPT by learning rate and method: losses after the last step, by seed, and efficiency relative to native."""
    record = rows("nanogpt")
    both = of_nanogpt.two_rates(record)
    tried = [rate for rate in of_nanogpt.RATES if rate not in both]
    lines = head("learning rate", "method", "wire ratio", "validation loss", "training loss", "efficiency")
    for rate in (*both, *tried):
        at_rate = [row for row in record if row["learning_rate"] == rate]
        natives = {row["seed"]: row for row in at_rate if row["method"] == of_nanogpt.NATIVE}
        for method in (method.name for method in (*of_nanogpt.METHODS, *of_nanogpt.DEFAULTS)):
            by_seed = sorted((row for row in at_rate if row["method"] == method), key=lambda row: int(row["seed"]))
            if not by_seed:
                continue
            cells = [" ".join(f"{row[name]:.3f}" for row in by_seed) for name in ("validation_loss", "training_loss")]
            wire = statistics.fmean(row.get("wire_ratio", 1.0) for row in by_seed)
            worth = " ".join(_of_native(row, natives[row["seed"]]) for row in by_seed)
            cells.append("" if method == of_nanogpt.NATIVE else worth)
            lines.append(line(f"{rate:g}", method, f"{wire:.0f}", *cells))
    return "\n".join(lines)


def _of_native(row: dict[str, Any], native: dict[str, Any]) -> str:
    efficiency = of_nanogpt.efficiency(row, native)
    return "over 1" if efficiency is None else f"{efficiency:.2f}"


def nanogpt_configuration() -> str:
    """What nanoGPT ran with: data, model, the command line but for the learning rate, and the methods' calls."""
    rate = of_nanogpt.two_rates(rows("nanogpt"))[0]
    first = rows("nanogpt")[0]
    stamp = first[STAMP]
    assert isinstance(stamp, Stamp)
    return render(
        "tables/nanogpt_configuration",
        first=first,
        stamp=stamp,
        seeds=sorted({row["seed"] for row in rows("nanogpt")}),
        rate=rate,
        arguments=next(row["arguments"] for row in rows("nanogpt") if row["learning_rate"] == rate),
        calls={row["method"]: row["call"] for row in rows("nanogpt") if row["call"]},
    )


def outer_traffic() -> str:
    """Bytes of a round, and of its fullest step over the mean, by number of fragments."""
    numbers = list(dict.fromkeys(row["fragments"] for row in rows("outer_traffic")))
    fragments = (f"{number} fragment{'s' * (number > 1)}" for number in numbers)
    lines = head("sent", "CF", "bytes of a round", *fragments)
    for label in dict.fromkeys(row["compressor"] for row in rows("outer_traffic")):
        of_label = [row for row in rows("outer_traffic") if row["compressor"] == label]
        cells = (f"{row['peak_bytes'] / 1e3:,.0f} kB, {row['peak_over_mean']:.1f}x" for row in of_label)
        first = of_label[0]
        lines.append(line(f"`{label}`", f"{first['cf']:.4g}", f"{first['bytes'] / 1e3:,.0f} kB", *cells))
    return "\n".join(lines)
