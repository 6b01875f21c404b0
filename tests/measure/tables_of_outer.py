# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables on outer steps."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from gravac.beliefs import efficiency_at, power_at, shipped_beliefs
from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.provenance import Stamp
from gravac.lab.tasks import make
from gravac.lab.training.expression import compressor
from gravac.lab.training.methods import MATCHED
from gravac.lab.tta.matrix import REFERENCE
from gravac.lab.tta.record import TrainingRecord
from tests.measure import nanogpt as of_nanogpt
from tests.measure import outer_efficiency as outer_steps
from tests.measure import outer_long as outer_long_runs
from tests.measure.judgement import best_of, interval, taken, verdicts
from tests.measure.published import DEFAULT, rows, runs
from tests.measure.results import STAMP
from tests.measure.tables_of_runs import HEADINGS, TASKS, head, line

CHANGING, UNEVEN = "20mbit,10s:100mbit,20s:5mbit", "20mbit/5mbit"

LINKS = {**HEADINGS, "5mbit": "5 Mbit/s", CHANGING: "20, then 100, then 5 Mbit/s", UNEVEN: "20 Mbit/s in, 5 out"}


def outer_efficiency() -> str:
    """Efficiency by task and number of steps between exchanges; a run that did not reach its target has a bound."""
    found = outer_steps.efficiencies(rows("outer_efficiency"))
    numbers = sorted({every for _, every in found})
    lines = head("task", *(f"H = {every}" for every in numbers))
    for task in dict.fromkeys(task for task, _ in found):
        lines.append(line(task, *(str(found.get((task, every), "")) for every in numbers)))
    points = outer_steps.points(rows("outer_efficiency"))
    return "\n".join([*lines, line("mean", *(f"{points[every]:.2f}" for every in numbers))])


def outer_rates() -> str:
    """Steps to the target by learning rate of the outer optimizer, dense, by number of steps between exchanges."""
    found = outer_steps.tuned(rows("outer_efficiency"))
    lines = head("rate, momentum", *(f"H = {every}" for every in found))
    settings = {(row["momentum"], row["rate"]) for tried in found.values() for row in tried}
    best = {every: outer_steps.best(tried) for every, tried in found.items()}
    for momentum, rate in sorted(settings):
        cells = []
        for every, tried in found.items():
            own = {row["task"]: row for row in tried if (row["rate"], row["momentum"]) == (rate, momentum)}
            told = " ".join(_reached(own[task]) for task in outer_steps.TUNED_ON if task in own)
            cells.append(f"**{told}**" if best[every] == (rate, momentum) else told)
        lines.append(line(f"{rate:g}, {momentum:g}", *cells))
    return "\n".join(lines)


def outer_rates_more() -> str:
    """The same without momentum among more ranks than two."""
    found = rows("outer_ranks")
    numbers = sorted({row["ranks"] for row in found if row["ranks"] in outer_steps.TRIED})
    rates = sorted({rate for number in numbers for tried in outer_steps.TRIED[number].values() for rate in tried})
    lines = head("ranks", "H", *(f"rate {rate:g}" for rate in rates))
    for number in numbers:
        for every, tried in sorted(outer_steps.tuned(found, number).items()):
            cells, (best, _) = [], outer_steps.best(tried)
            for rate in rates:
                own = {row["task"]: row for row in tried if row["rate"] == rate}
                told = " ".join(_reached(own[task]) for task in outer_steps.TUNED_ON if task in own)
                cells.append(f"**{told}**" if rate == best else told)
            lines.append(line(str(number), str(every), *cells))
    return "\n".join(lines)


def _reached(row: dict[str, Any]) -> str:
    return f"{row['reached']:.0f}" if row["reached"] else f"over {row['curve'][-1][0]}"


def outer_compressed() -> str:
    """Efficiency of compressors relative to dense at the same number of steps: over tasks, of each, and as believed."""
    found = rows("outer_efficiency")
    own = {label: _relative(found, label) for label in outer_steps.SENT if label != "dense"}
    numbers = sorted({every for relative in own.values() for _, every in relative})
    lines = head("sent", *(f"H = {every}" for every in numbers))
    scale, _ = outer_steps.SETUPS["charlm"]
    shapes = [tuple(one.shape) for one in make("charlm", scale=scale, seed=0).model().parameters()]
    for label, relative in own.items():
        profile = compressor(label).profile(outer_steps.SENT[label], shapes=shapes)
        cells = []
        for every in numbers:
            of = [worth for (_, at), worth in relative.items() if at == every]
            believed = profile.efficiency ** (
                power_at(profile.efficiency_apart, every) if profile.efficiency_apart else 1
            )
            each = " ".join(map(str, of))
            cells.append(f"{outer_steps.mean(of)} ({each}) [{believed:.2f}]" if of else "")
        if relative:
            lines.append(line(f"`{label}`", *cells))
    return "\n".join(lines)


def _relative(found: Sequence[dict[str, Any]], label: str, ranks: int = 2) -> dict[tuple[str, int], outer_steps.Worth]:
    """Efficiency over that of dense exchanges as often, of the same seeds, by task and number of steps."""
    dense = outer_steps.by_case(found, ranks=ranks)
    relative = {}
    for at, of_seeds in outer_steps.by_case(found, label, ranks).items():
        both = [(one, dense[at][seed]) for seed, one in of_seeds.items() if seed in dense.get(at, {})]
        pairs = [outer_steps.Worth(one.value / same.value, one.at_most) for one, same in both]
        if pairs:
            relative[at] = outer_steps.mean(pairs)
    return relative


def outer_frontier() -> str:
    """Efficiency where several seeds were run, by what is sent and how often: over them, lowest and highest."""
    found = rows("outer_efficiency")
    cases = {label: outer_steps.by_case(found, label) for label in outer_steps.SENT}
    lines = head("sent", "H", "wire ratio", *outer_steps.SETUPS)
    for label, own in cases.items():
        for every in sorted({every for (_, every), of in own.items() if len(of) > 1}):
            wires = [row["wire_ratio"] for row in found if (row["label"], row["every"]) == (label, every)]
            told = [_over_seeds([*own.get((task, every), {}).values()]) for task in outer_steps.SETUPS]
            lines.append(line(f"`{label}`", str(every), f"{statistics.fmean(wires):.0f}", *told))
    return "\n".join(lines)


def _over_seeds(of: Sequence[outer_steps.Worth]) -> str:
    """Geometric mean, lowest and highest."""
    return f"{outer_steps.mean(of)}{_between([one.value for one in of])}" if of else ""


def outer_ranks() -> str:
    """Efficiency by number of ranks, relative to dense gradient averaging among as many, over seeds."""
    more = rows("outer_ranks")
    found = [*rows("outer_efficiency"), *more]
    numbers = sorted({row["ranks"] for row in found})
    lines = head("task", "H", "sent", *(f"{number} ranks" for number in numbers))
    ran = {(row["task"], row["every"], row["label"]) for row in more if row["every"]}
    for task, label in itertools.product(outer_steps.SETUPS, outer_steps.SENT):
        for every in sorted({every for of, every, sent in ran if (of, sent) == (task, label)}):
            own = (outer_steps.by_case(found, label, number).get((task, every), {}) for number in numbers)
            lines.append(line(task, str(every), f"`{label}`", *(_over_seeds([*of.values()]) for of in own)))
    return "\n".join(lines)


def outer_race(name: str = "outer_tta") -> str:
    """Seconds to the target over those of dense DDP on a network without a limit: over seeds, lowest and highest."""
    own = runs(name)
    limited = [run for run in own if run.link != UNTHROTTLED]
    methods = sorted(dict.fromkeys(run.method for run in limited), key=_fixed_first)
    lines = head("task, link", *(f"`{method}`" for method in methods))
    for task, link in dict.fromkeys((run.task, run.link) for run in limited):
        told = []
        for method in methods:
            ran = [run for run in limited if (run.task, run.link, run.method) == (task, link, method)]
            told.append(_over_free(own, ran) if ran else "")
        lines.append(line(f"{task}, {LINKS.get(link, link)}", *told))
    return "\n".join(lines)


def _fixed_first(method: str) -> tuple[bool, str]:
    fixed = method.startswith("outer(every=")
    return not fixed, method if fixed else ""


def _over_free(own: Sequence[TrainingRecord], ran: Sequence[TrainingRecord]) -> str:
    """Geometric mean over seeds, lowest and highest; a run that was given up has taken longer than it had."""
    free = {(run.task, run.seed): run.tta_s or 0.0 for run in own if (run.link, run.method) == (UNTHROTTLED, REFERENCE)}
    times = [taken(run) / free[run.task, run.seed] for run in ran]
    above = "over " if any(run.tta_s is None for run in ran) else ""
    return f"{above}{statistics.geometric_mean(times):.2f}{_between(times)}"


def _between(values: Sequence[float]) -> str:
    """Lowest and highest of several."""
    return f" [{min(values):.2f}-{max(values):.2f}]" if len(values) > 1 else ""


ADAPTIVE = "outer:ladder@2-1000"
"""``OuterByHand()`` as a method of the lab."""

AGAINST = (
    ("the best fixed (H, CF) of each cell, in hindsight", "outer(every=", None),
    ("its own choices at random times, where links change", MATCHED, True),
    ("the same, where they do not", MATCHED, False),
    ("torchft, the better of its two", "torchft", None),
    ("DDP's hook with goodput", DEFAULT, None),
)
"""What outer steps that decide are held against: how the methods' words begin, and on which links: those that change,
those that do not, or all."""


def outer_in_short() -> str:
    """Outer steps that decide, over dense DDP on a network without a limit; short runs, then long."""
    links = ("5mbit", "20mbit", "100mbit")
    lines = head("", *(LINKS[link] for link in links))
    for task, words in TASKS.items():
        cells = []
        for link in links:
            told = []
            for own in (runs("outer_tta"), runs("outer_tta_long")):
                ran = [run for run in own if (run.task, run.link, run.method) == (task, link, ADAPTIVE)]
                told.append(_over_free(own, ran))
            cells.append("; ".join(told))
        lines.append(line(words, *cells))
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
    for words, named, change in AGAINST:
        others = [run for run in limited if run.method.startswith(named) and change in (None, run.link == CHANGING)]
        best = best_of(others)
        missed = {
            (run.task, run.link) for run in others if run.method == best[run.task, run.link] and run.tta_s is None
        }
        told = verdicts(limited, best, ADAPTIVE)
        ratios = [one.ratio for one in told if one.cell not in missed]
        given_up = str(len(told) - len(ratios) or "")
        if ratios:
            mean, low, high = interval(ratios)
            between = f"{low:.2f}-{high:.2f}" if math.isfinite(low) and low > 0 else ""
            bounds = f"{min(ratios):.2f}, {max(ratios):.2f}"
            lines.append(line(words, str(len(ratios)), f"{mean:.2f}", between, bounds, given_up))
        elif told:
            lines.append(line(words, "0", "", "", "", given_up))
    return "\n".join(lines)


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


def outer_costs() -> str:
    """Steps of a rank on average to the target, over those without delay, in equal shares, with anchors in float32."""
    found = rows("outer_costs")
    what = ("label", "faster", "anchors", "delay", "mixing")
    plain = {(row["task"], row["label"], row["seed"]): row["reached"] for row in found if _plain(row)}
    tasks = list(dict.fromkeys(row["task"] for row in found))
    lines = head("sent", "steps of the two ranks", "anchors", "delay", "kept of it", *tasks)
    for key in dict.fromkeys(tuple(row[name] for name in what) for row in found):
        own = [row for row in found if tuple(row[name] for name in what) == key]
        cells = []
        for task in tasks:
            of = [row for row in own if row["task"] == task]
            missed = any(row["reached"] is None for row in of)
            times = [row["reached"] / plain[task, row["label"], row["seed"]] for row in of if row["reached"]]
            cells.append("not reached" if missed else f"{statistics.geometric_mean(times):.2f}" if times else "")
        label, _, anchors, delay, mixing = key
        kept = "" if not delay else "what was learned" if mixing is None else f"`mixing={mixing:g}`"
        steps = " and ".join(map(str, own[0]["steps_of_ranks"]))
        lines.append(line(f"`{label}`", steps, anchors, str(delay), kept, *cells))
    return "\n".join(lines)


def outer_delays() -> str:
    """Efficiency of exchanges behind steps, relative to those that are waited for as often, by ranks and task."""
    of_two, of_more = rows("outer_delays"), rows("outer_delays_four")
    found = [{"ranks": 2, **row} for row in (*of_two, *of_more)]
    tasks = list(dict.fromkeys(row["task"] for row in found))
    lines = head("ranks", "H", "steps behind", "believed", *tasks)
    waits = {tuple(row[name] for name in _OF_DELAY): row["reached"] for row in found if not row["delay"]}
    for ranks, every, delay in sorted({(row["ranks"], row["every"], row["delay"]) for row in found if row["delay"]}):
        cells = []
        for task in tasks:
            case = (ranks, every, delay, task)
            of = [row for row in found if (row["ranks"], row["every"], row["delay"], row["task"]) == case]
            times = [_steps(row) / waits[tuple(row[name] for name in _OF_DELAY)] for row in of]
            missed = any(row["reached"] is None for row in of)
            cells.append(str(outer_steps.Worth(1 / statistics.geometric_mean(times), missed)) if times else "")
        lines.append(
            line(str(ranks), str(every), str(delay), f"{efficiency_at(shipped_beliefs().delay, 1 + delay):.2f}", *cells)
        )
    return "\n".join(lines)


_OF_DELAY = ("ranks", "every", "task", "seed")


def _steps(row: dict[str, Any]) -> float:
    """Steps to the target, or all that a run that did not get there may make."""
    return float(row["reached"] or outer_steps.most_steps(row["task"]))


def outer_long() -> str:
    """What runs of 2000 steps come to, and by how much that is worse than gradients averaged in each: over seeds."""
    lines = head("task", "ranks", "H", "sent", "wire ratio", "comes to", "synchronous", "worse by")
    for (task, ranks, every, label), both in outer_long_runs.pairs(rows("outer_long")).items():
        own, same = ([outer_long_runs.final(one) for one in of] for of in zip(*both, strict=True))
        worse = [100 * outer_long_runs.worse(row, synchronous) for row, synchronous in both]
        told = (f"{statistics.fmean(own):.4g}", f"{statistics.fmean(same):.4g}", f"{statistics.fmean(worse):.2f} %")
        wire = f"{statistics.fmean(row['wire_ratio'] for row, _ in both):.0f}"
        lines.append(line(task, str(ranks), str(every), f"`{label}`", wire, *told[:2], told[2] + _between(worse)))
    return "\n".join(lines)


def _plain(row: dict[str, Any]) -> bool:
    return (row["faster"], row["anchors"], row["delay"]) == (1, "float32", 0)


def nanogpt() -> str:
    """NanoGPT by learning rate and method: losses after the last step, by seed, and efficiency relative to native."""
    found = rows("nanogpt")
    both = of_nanogpt.two_rates(found)
    tried = [rate for rate in of_nanogpt.RATES if rate not in both]
    lines = head("learning rate", "method", "wire ratio", "validation loss", "training loss", "efficiency")
    for rate in (*both, *tried):
        own = [row for row in found if row["learning_rate"] == rate]
        natives = {row["seed"]: row for row in own if row["method"] == of_nanogpt.NATIVE}
        for method in (method.name for method in (*of_nanogpt.METHODS, *of_nanogpt.DEFAULTS)):
            ran = sorted((row for row in own if row["method"] == method), key=lambda row: int(row["seed"]))
            if not ran:
                continue
            cells = [" ".join(f"{row[name]:.3f}" for row in ran) for name in ("validation_loss", "training_loss")]
            wire = statistics.fmean(row.get("wire_ratio", 1.0) for row in ran)
            worth = " ".join(_of_native(row, natives[row["seed"]]) for row in ran)
            cells.append("" if method == of_nanogpt.NATIVE else worth)
            lines.append(line(f"{rate:g}", method, f"{wire:.0f}", *cells))
    return "\n".join(lines)


def _of_native(row: dict[str, Any], native: dict[str, Any]) -> str:
    value = of_nanogpt.efficiency(row, native)
    return "over 1" if value is None else f"{value:.2f}"


def nanogpt_configuration() -> str:
    """What nanoGPT ran with: data, model, the command line but for the learning rate, and the methods' calls."""
    found = rows("nanogpt")
    first, best = found[0], of_nanogpt.two_rates(found)[0]
    arguments = next(row["arguments"] for row in found if row["learning_rate"] == best)
    stamped = first[STAMP]
    assert isinstance(stamped, Stamp)
    lines = head("what", "value")
    lines += [
        line(
            "text",
            f"{first['files']} files of the standard library of Python {stamped.python}, {first['vocabulary']} "
            f"different characters; {first['training_characters']:,} to train on, {first['validation_characters']:,} "
            f"of other files to validate with (SHA-256 {first['text_sha256']}...)",
        ),
        line("model", f"{first['parameters']:,} parameters, float32"),
        line("ranks", f"{first['ranks']} processes over gloo, one thread each, on {stamped.cores} cores"),
        line("seeds", ", ".join(map(str, sorted({row["seed"] for row in found})))),
        line("software", f"torch {stamped.torch}, gravac {stamped.code}, nanoGPT {first['nanogpt'][:8]}"),
        line(f"arguments, at {best:g}", f"`{arguments}`"),
    ]
    calls = {row["method"]: row["call"] for row in found if row["call"]}
    return "\n".join([*lines, *(line(method, f"`{call}`") for method, call in calls.items())])


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
