# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The sentences of documents that state measured figures, filled in from the records; and figures not measured here.

A sentence must stand in its document as it comes out, whatever its line breaks; see ``tests.measure.check``.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from gravac.beliefs import use_beliefs
from gravac.compressors import quantize, randomk, thc
from gravac.lab.tasks import make
from gravac.lab.tta.record import TrainingRecord
from tests.measure import claims_of_modes, claims_of_rows, tables, talk
from tests.measure.beliefs import before
from tests.measure.claims_of_rows import percent, seconds
from tests.measure.judgement import Verdict, interval, student, verdicts
from tests.measure.published import (
    DEFAULT,
    LINKS,
    SCALES,
    geometric,
    judged,
    language_verdicts,
    on,
    over_seeds,
    row,
    rows,
    runs,
    section,
    speedup,
)
from tests.measure.tables_of_runs import hindsight_ratios, paired_with

LOW_RANK = "torch-powersgd(4)"

FAST, SLOW = LINKS[2:], LINKS[:2]


def worth(task: str, method: str) -> float:
    """Dense's steps to the target over the method's, by ``tests.measure.efficiency``."""
    (found,) = (one["worth"][method] for one in rows("efficiency") if one["task"] == task)
    return float(found)


def worth_everywhere(method: str) -> float:
    """Geometric mean over the tasks."""
    return statistics.geometric_mean(worth(task, method) for task in SCALES)


def more_steps(task: str, method: str) -> float:
    """Steps to the target over dense's, geometric mean of the seeds."""
    return 1 / worth(task, method)


def in_full(link: str) -> float:
    """How many times as fast as float16 torch's PowerSGD is on ``denoise``, its runs being whole ones."""
    whole = [run for run in runs("judgement") if (run.task, run.link, run.method) == ("denoise", link, LOW_RANK)]
    return row("denoise", link, "fp16").tta.median / seconds(whole)


def without_start(link: str) -> float:
    """The default's time over PowerSGD's on ``denoise`` by steps to the target times the median step."""
    cut = [
        run.model_copy(update={"tta_s": run.steps_to_target * run.step_s})
        for run in runs("judgement")
        if (run.task, run.link) == ("denoise", link) and run.steps_to_target
    ]
    (told,) = verdicts(cut, {("denoise", link): LOW_RANK}, DEFAULT)
    return told.ratio


def cell(task: str, link: str, name: str = "judgement") -> Verdict:
    """A judged cell."""
    return next(one for one in judged(name) if one.cell == (task, link))


def bounds(of: tuple[float, float, float]) -> str:
    """A mean with its interval."""
    return f"{of[0]:.2f} [{of[1]:.2f}-{of[2]:.2f}]"


def between(of: tuple[float, float, float]) -> str:
    """The interval of a mean."""
    return f"{of[1]:.2f} to {of[2]:.2f}"


def over_cells(told: Sequence[Verdict]) -> tuple[float, float, float]:
    """Geometric mean of the means of cells, and its 95 % interval over cells."""
    return interval([one.ratio for one in told])


def unseen(told: Sequence[Verdict]) -> float:
    """Geometric mean of the ratios of the last two of five seeds, on which no rule had been tried before."""
    assert all(len(one.ratios) == 5 for one in told)
    return statistics.geometric_mean(ratio for one in told for ratio in one.ratios[3:])


def regret() -> str:
    """What can be said of the judgement."""
    within = sum(one.high <= 1.05 for one in judged())
    assert within == 0
    fast = on(judged(), *FAST)
    return (
        f"It took {geometric(judged()):.2f} times as long as the best fixed method, on tasks that it was tuned on, and "
        f"{geometric(fast):.2f} times on fast links. The noise is too large to show that any single cell lies within "
        "5 %."
    )


def known_to() -> float:
    """Half of a cell's 95 % interval, in logarithms, by the deviation of pairs that all cells have in common."""
    cells = [[math.log(ratio) for ratio in one.ratios] for one in judged()]
    pooled = statistics.fmean(statistics.variance(logs) for logs in cells) ** 0.5
    return student(5) * pooled / 5**0.5


@functools.cache
def parameters(task: str) -> int:
    """Number of parameters of a task's model; of language models by what a dense step of two ranks sends."""
    if task in SCALES:
        return sum(one.numel() for one in make(task, scale=SCALES[task], seed=0).model().parameters())
    run = next(run for run in runs("language") if (run.task, run.method) == (task, "fp32"))
    assert run.wire_bytes is not None
    return round(run.wire_bytes / run.steps / 4)


def millions(task: str) -> str:
    """The same in millions, in two digits after the point."""
    return f"{parameters(task) / 1e6:.2f}"


def readme() -> list[str]:
    sizes = [parameters(task) / 1e6 for task in (*SCALES, *LANGUAGE)]
    return [
        f"Results are of models of {min(sizes):.1f} to {max(sizes):.1f} million parameters",
        f"The transformer has {millions('charlm')}, the LSTM {millions('lstm')}, the denoiser {millions('denoise')} "
        "million parameters.",
        f"in full it is {in_full('20mbit'):.0f}x and {in_full('100mbit'):.1f}x",
        f"Over all {len(judged())} cells gravac took {geometric(judged()):.2f} times as long as the best fixed method, "
        f"picked from earlier runs, and on fast links {geometric(on(judged(), *FAST)):.2f} times.",
        f"five seeds leave {percent(known_to())} % of doubt on a single cell",
        *claims_of_modes.readme(),
    ]


def results() -> list[str]:
    """The sentences of the page that says what all measurements come to."""
    cells, topk, models = judged(), judged("judgement_topk"), language_verdicts()
    worst, worst_topk = max(cells, key=_ratio), max(topk, key=_ratio)
    assert worst.cell == ("lstm", "1gbit") and worst_topk.cell == ("denoise", "1gbit")
    assert sum(verdict.low > 1.05 for verdict in topk) == 3
    assert all(verdict.low < 1 < verdict.high for verdict in models)
    return [
        f"The transformer `charlm` has {millions('charlm')}, `lstm` {millions('lstm')} and the image denoiser "
        f"`denoise` {millions('denoise')} million parameters. GPT-2 and ModernBERT have {millions('gpt2')} and "
        f"{millions('modernbert')}, nanoGPT about one million.",
        f"Over all {len(cells)} cells it took {bounds(over_cells(cells))} times as long as the best fixed method of "
        f"each cell. On the fast links alone it took {geometric(on(cells, *FAST)):.2f} times as long. With five seeds "
        f"the mean of a single cell is known to within {percent(known_to())} %.",
        f"on GPT-2 and ModernBERT it was {language_speedups('20mbit')} times as fast as float16 at 20 Mbit/s, and "
        f"{language_speedups('100mbit')} times at 100 Mbit/s. It took {geometric(models):.2f} times as long as the "
        f"best fixed method of each cell; each cell's interval contains 1.",
        f"The largest loss of the version that kept its hook was {bounds((worst.ratio, worst.low, worst.high))}, on "
        f"`lstm` at 1 Gbit/s.",
        f"gravac takes {without_start('20mbit'):.2f} times as long at 20 Mbit/s and {without_start('100mbit'):.2f} "
        f"times at 100 Mbit/s.",
        f"three of {len(topk)} cells have intervals wholly above 1.05. The highest mean is "
        f"{bounds((worst_topk.ratio, worst_topk.low, worst_topk.high))}, of `denoise` at 1 Gbit/s.",
        *claims_of_modes.results(),
    ]


def _ratio(verdict: Verdict) -> float:
    """Return the ratio of a verdict, by which cells are ordered."""
    return verdict.ratio


def matrices() -> list[str]:
    sizes = (
        f"`charlm` has {millions('charlm')} million parameters, `lstm` {millions('lstm')}, `denoise` "
        f"{millions('denoise')}, and runs"
    )
    return [sizes, *_matrix(), *_judgement(), *_again(), *_predicting()]


def _matrix() -> list[str]:
    text = ("charlm", "lstm")
    ratios = {at: statistics.median(own) for at, own in hindsight_ratios().items()}
    ahead = [speedup(task, link, DEFAULT) for task in SCALES for link in SLOW]
    over = [f"{percent(speedup(t, 'unthrottled', 'fp32') - 1)}" for t in text]
    one, two = (
        [f"{speedup(t, link, m):.1f}" for t in text]
        for link, m in (("20mbit", "quantize(1)"), ("100mbit", "quantize(2)"))
    )
    coarse = [more_steps(t, "quantize(1)") - 1 for t in text]
    rival = [speedup("denoise", link, LOW_RANK) for link in SLOW]
    own = row("denoise", "20mbit", "powersgd(4)@128").tta.median / row("denoise", "20mbit", LOW_RANK).tta.median
    limits = [row(task, "20mbit", DEFAULT).relative for task in SCALES]
    lowest = min(limit.median for limit in limits if limit)
    files = [
        {(run.cell, run.method): run.tta_s for run in runs(name) if not run.adaptive}
        for name in ("judgement", "judgement_topk")
    ]
    again = [later / sooner for at, sooner in files[0].items() if sooner and (later := files[1].get(at))]
    return [
        f"The {len(again)} static runs that two files share take {min(again):.2f} to {max(again):.2f} of the time in",
        f"float32 the text models, by {over[0]} and {over[1]} % over float16",
        f"at 20 Mbit/s 1 bit is {one[0]} and {one[1]} times as fast as float16, at 100 Mbit/s 2 bits {two[0]} "
        f"and {two[1]} times.",
        f"They need up to {percent(max(more_steps(t, 'quantize(2)') - 1 for t in text))} % (2 bits) and "
        f"{percent(min(coarse))} to {percent(max(coarse))} % (1 bit) more steps than dense.",
        f"{rival[0]:.0f} and {rival[1]:.1f} times as fast as float16, against "
        f"{speedup('denoise', '20mbit', 'quantize(1)'):.1f} of "
        f"one bit and {speedup('denoise', '100mbit', 'quantize(2)'):.1f} of two.",
        f"Our own is {percent(own - 1)} % slower there.",
        f"it is {in_full('20mbit'):.0f} times as fast as float16 at 20 Mbit/s and {in_full('100mbit'):.1f} "
        f"times at 100 Mbit/s.",
        f"A top-k step at 10x makes {worth_everywhere('topk@10'):.2f} of a dense step's progress, at 100x "
        f"{worth_everywhere('topk@100'):.2f}; chunked top-k at 10x {worth_everywhere('topkc@10'):.2f} and random-k "
        f"{worth_everywhere('randomk(block=64)@10'):.2f}.",
        f"is {min(ahead):.1f} to {max(ahead):.0f} times as fast as float16 there; on fast ones it LOSES to "
        f"float16 and float32 "
        f"by up to {percent(max(max(v) for (_, link), v in hindsight_ratios().items() if link in FAST) - 1)} %.",
        f"Geometric mean of the medians {statistics.geometric_mean(ratios.values()):.2f}",
        f"{lowest:.1f} (`charlm`) to {max(limit.median for limit in limits if limit):.1f} times (`denoise`) "
        f"that of an unthrottled link",
    ]


def _judgement() -> list[str]:
    told, topk = judged(), judged("judgement_topk")
    fast, slow = on(told, *FAST), on(told, *SLOW)
    rest = [one for one in told if one.cell != ("lstm", "100mbit")]
    pairs = [ratio for one in told for ratio in one.ratios]
    losing = [cell(task, link).ratio - 1 for task in ("charlm", "lstm") for link in FAST]
    above = {one.cell: one for one in topk if one.low > 1.05}
    largest = max(topk, key=lambda one: one.ratio)
    assert set(above) == {("charlm", "unthrottled"), ("denoise", "unthrottled"), ("lstm", "1gbit")}
    assert largest.cell == ("denoise", "1gbit")
    assert min(pairs) == min(cell("lstm", "100mbit").ratios)
    return [
        f"**{regret()}**",
        f"For these 12 cells, the 95 % interval over seeds is {between(over_seeds(told))}; on fast links alone it is "
        f"{between(over_seeds(fast))}. The interval over cells is {between(over_cells(told))}. On the two slow links "
        f"the mean is {geometric(slow):.2f}, over cells {between(over_cells(slow))}.",
        f"Without `lstm` at 100 Mbit/s the mean is {geometric(rest):.2f}.",
        f"Seeds 13 and 14 had not been seen before: on these two it is {unseen(told):.2f}, on fast links "
        f"{unseen(fast):.2f}.",
        f"Pairs of a cell differ so much that five seeds leave {percent(known_to())} % of doubt on its mean.",
        f"of {len(told)} cells {sum(one.high < 1.05 for one in told)} have one; "
        f"{sum(one.ratio > 1.05 for one in told)} of the "
        f"{len(told)} means are above 1.05.",
        f"`charlm` and `lstm` lose {percent(min(losing))} to {percent(max(losing))} % there.",
        f"`goodput` takes {without_start('20mbit'):.2f} of PowerSGD's time at 20 Mbit/s, not "
        f"{cell('denoise', '20mbit').ratio:.2f}, and "
        f"{without_start('100mbit'):.2f} at 100 Mbit/s, not {cell('denoise', '100mbit').ratio:.2f}.",
        f"Single pairs lie between {min(pairs):.2f} and {max(pairs):.2f}, on a machine that slows down for "
        f"seconds at a time; the "
        f"{min(pairs):.2f} is of `lstm` at 100 Mbit/s",
        f"**Geometric mean {geometric(topk):.2f}, but three cells' intervals lie wholly above 1.05**, where "
        f"none was to: `charlm` "
        f"({above['charlm', 'unthrottled'].ratio:.2f}) and `denoise` "
        f"({above['denoise', 'unthrottled'].ratio:.2f}) unthrottled and "
        f"`lstm` at 1 Gbit/s ({above['lstm', '1gbit'].ratio:.2f}).",
        f"The largest mean, {bounds((largest.ratio, largest.low, largest.high))} of `denoise` at 1 Gbit/s",
        f"on `denoise` it takes {cell('denoise', '20mbit', 'judgement_topk').ratio:.2f} and "
        f"{cell('denoise', '100mbit', 'judgement_topk').ratio:.2f} of the best static method's time.",
    ]


def language_speedups(link: str) -> str:
    """How many times as fast as float16 the default is on each language model, median of the pairs, in words."""
    own = [run for run in runs("language") if run.task in LANGUAGE]
    by = {at: [run for run in own if (run.task, run.link, run.method) == at] for at in map(_cell_and_method, own)}
    ratios = [paired_with(by[task, link, DEFAULT], by[task, link, "fp16"]) for task in LANGUAGE]
    return " and ".join(f"{statistics.median(of_task):.1f}" for of_task in ratios)


def language() -> list[str]:
    told = language_verdicts()
    sizes = [f"{millions(task)}" for task in LANGUAGE]
    assert len(told) == 4 and all(one.low < 1 < one.high for one in told)
    pairs = [ratio for one in told for ratio in one.ratios]
    above = [ratio for ratio in pairs if ratio > 1.15]
    slow = [ratio for one in told for ratio in one.ratios if one.cell[1] == "20mbit"]
    return [
        f"of {sizes[0]} and {sizes[1]} million parameters, on bytes",
        f"**`goodput` is {language_speedups('20mbit')} times as fast as float16 at 20 Mbit/s and "
        f"{language_speedups('100mbit')} times at 100 Mbit/s** (medians",
        f"geometric mean over the four cells {geometric(told):.2f}, every interval of a mean on both sides of 1",
        f"Single pairs lie between {min(pairs):.2f} and {max(pairs):.2f}, at 20 Mbit/s {min(slow):.2f} to "
        f"{max(slow):.2f}; {len(above)} of {len(pairs)} are above 1.15",
    ]


LANGUAGE = ("gpt2", "modernbert")
"""Tasks of language models."""


def _cell_and_method(run: TrainingRecord) -> tuple[str, str, str]:
    return run.task, run.link, run.method


def paper() -> list[str]:
    by = {(run.task, run.method): run for run in runs("talk")}
    dense = by["denoise", "fp32"]
    cut = [run for run in runs("talk") if run.task == "denoise" and run.method.startswith("gravac")]
    assert all(run.tta_s is None for run in cut)
    shares: dict[str, list[float]] = {"repaired": [], "printed": []}
    for task in talk.TASKS:
        for label, method in talk.ADAPTIVE.items():
            if label.startswith("GraVAC") and ("top-k" in label or "DGC" in label):
                spent = talk.steps_at(by[task, method])
                printed = "as printed" in label
                shares["printed" if printed else "repaired"].append(spent[1.0 if printed else 2.0] / spent.total())
    paced = [
        (by[task, name].tta_s, by[task, "topk@10"].tta_s)
        for task in talk.TASKS
        for name in talk.STATIC
        if "1000" in name
    ]
    fast = [ten / own for own, ten in paced if own and ten]
    return [
        f"so the repaired GraVAC sends 16 bit in {percent(min(shares['repaired']))} to "
        f"{percent(max(shares['repaired']))} % of the "
        "steps, whichever ε.",
        f"which takes {percent(min(shares['printed']))} to {percent(max(shares['printed']))} % of the steps.",
        f"**A static 1000x** is {min(fast):.2f} to {max(fast):.2f} times as fast as top-k 10x",
        f"its runs were stopped after {min(run.seconds for run in cut):.0f} to "
        f"{max(run.seconds for run in cut):.0f} s, the limit of "
        f"adaptive runs there, in {min(run.steps for run in cut)} to {max(run.steps for run in cut)} steps, and "
        f"dense needs "
        f"{dense.steps_to_target}.",
        f"`fp32` takes {dense.tta_s:.1f} s.",
        f"({by['lstm', 'dgc@10'].steps_to_target} against {by['lstm', 'fp32'].steps_to_target})",
    ]


def _again() -> list[str]:
    def against(link: str, method: str) -> float:
        return statistics.median(
            paired_with(row("charlm", link, DEFAULT, "tta_charlm").runs, row("charlm", link, method, "tta_charlm").runs)
        )

    def limit(name: str) -> float:
        return section("charlm", "unthrottled", name).limit or 0.0

    def relative(link: str, name: str) -> float:
        return row("charlm", link, DEFAULT, name).tta.median / limit(name)

    def step(name: str) -> float:
        return 1000 * statistics.median(run.step_s for run in row("charlm", "20mbit", LOW_RANK, name).runs)

    files = ("tta", "tta_charlm")
    half, low = "fp16", "torch-powersgd(8)"
    return [
        f"at 100 Mbit/s, where {against('100mbit', low):.2f}x just misses 1.4x;",
        f"That {against('20mbit', half):.2f}x at 20 Mbit/s is more than the matrix's "
        f"{speedup('charlm', '20mbit', DEFAULT):.1f}x",
        f"the limit fell from {limit('tta'):.1f} to {limit('tta_charlm'):.1f} s",
        f"the limit, dense on an unthrottled link, is {limit('tta_charlm'):.1f} s.",
        f"PowerSGD at rank 4 from {step('tta'):.0f} to {step('tta_charlm'):.0f} ms a step.",
        "Relative to the limit the default went from "
        + " and from ".join(
            f"{' to '.join(f'{relative(link, name):.2f}' for name in files)} at {words}"
            for link, words in (("20mbit", "20 Mbit/s"), ("100mbit", "100 Mbit/s"))
        )
        + ".",
        f"At 1 Gbit/s and unthrottled it loses to fp16 by {percent(1 - against('1gbit', half))} and "
        f"{percent(1 - against('unthrottled', half))} %",
    ]


def _predicting() -> list[str]:
    gains = next(one["mean_gain"] for one in rows("efficiency") if one["task"] == "charlm")
    several = [one["methods"] for one in rows("efficiency")]
    fine = ("quantize(8)", "quantize(4)", "quantize(2)", "thc")
    told = {one["task"]: one["probed"] for one in rows("probed")}
    probed = [one[name] for one in told.values() for name in fine]
    truth = [worth(task, name) for task in told for name in fine]
    with use_beliefs(before()):
        old = [one.profile(cf).efficiency for one, cf in ((quantize, 32), (thc, 8), (randomk, 10), (quantize, 16))]
    new = [worth_everywhere(name) for name in ("quantize(1)", "thc", "randomk(block=64)@10")]
    coarse = new[0] / worth_everywhere("quantize(2)")
    assert new[1] > max(worth_everywhere(f"quantize({bits})") for bits in (4, 2))
    return [
        f"By the present {len(runs('tta'))}, 1 bit would be at {new[0]:.2f} instead of {old[0]:.2f}, `thc` at "
        f"{new[1]:.2f} instead of "
        f"{old[1]:.2f} and random-k at 10x at {new[2]:.2f} instead of {old[2]:.2f}.",
        f"random-k before chunked top-k at 10x ({worth_everywhere('topkc@10'):.2f});",
        f"stays: {coarse:.2f} instead of {old[0] / old[3]:.2f}.",
        f"({len(gains)} static methods, those that have one) and with the steps it needs on the other two tasks "
        f"({several[0]} methods;",
        f"on `charlm` 1 bit keeps {gains['quantize(1)']:.2f} of the energy and makes "
        f"{worth('charlm', 'quantize(1)'):.2f} of dense's "
        f"progress, top-k at 100x keeps {gains['topk@100']:.2f} and makes {worth('charlm', 'topk@100'):.2f},",
        f"needs {more_steps('charlm', LOW_RANK):.2f} and {more_steps('lstm', LOW_RANK):.2f} times dense's steps "
        f"on text and "
        f"{more_steps('denoise', LOW_RANK):.2f} times on `denoise`.",
        f"({min(probed):.2f} to {max(probed):.2f} of dense, in truth {min(truth):.2f} to {max(truth):.2f})",
        f"comes out at {told['charlm']['topkc@10']:.2f} on `charlm` and {told['denoise']['topkc@10']:.1f} on "
        f"`denoise`, and makes "
        f"{worth('charlm', 'topkc@10'):.2f} and {worth('denoise', 'topkc@10'):.2f} of a dense step's progress",
        f"({told['denoise']['quantize(1)']:.2f} on `denoise`, in truth {worth('denoise', 'quantize(1)'):.2f})",
    ]


CLAIMS: dict[Path, Callable[[], list[str]]] = {
    tables.README: readme,
    tables.RESULTS: results,
    tables.MATRICES: matrices,
    tables.LANGUAGE: language,
    tables.PAPER: paper,
    tables.MEASUREMENTS: claims_of_rows.measurements,
    tables.ADVISE: claims_of_rows.advise,
    tables.MODES: claims_of_modes.measured,
}
"""The sentences of a document."""
