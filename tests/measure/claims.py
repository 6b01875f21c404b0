# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The sentences of documents that state measured figures: each page's template, and the numbers that fill it.

A template in ``templates/sentences`` has a sentence, or a part of one, in each paragraph. Filled in, it must stand in
its document, whatever its line breaks; see ``tests.measure.check``.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gravac.beliefs import use_beliefs
from gravac.compressors import quantize, randomk, thc
from gravac.lab.tasks import make
from gravac.lab.tta.record import TrainingRecord
from tests.measure import claims_of_modes, claims_of_rows, tables, talk
from tests.measure.beliefs import before
from tests.measure.claims_of_rows import median_seconds
from tests.measure.judgement import Verdict, interval, mean_ratio, student, verdicts
from tests.measure.published import (
    DEFAULT,
    LINKS,
    SCALES,
    judged,
    language_verdicts,
    on_links,
    over_seeds,
    row,
    rows,
    runs,
    section,
    speedup,
)
from tests.measure.rendering import Estimate, sentences
from tests.measure.tables_of_runs import hindsight_ratios, paired_with

LOW_RANK = "torch-powersgd(4)"

FAST, SLOW = LINKS[2:], LINKS[:2]

LANGUAGE = ("gpt2", "modernbert")
"""Tasks of language models."""

TEXT = ("charlm", "lstm")
"""The matrix's tasks on text."""


def worth(task: str, method: str) -> float:
    """Dense's steps to the target over the method's, by ``tests.measure.efficiency``."""
    (of_method,) = (of_task["worth"][method] for of_task in rows("efficiency") if of_task["task"] == task)
    return float(of_method)


def worth_everywhere(method: str) -> float:
    """Geometric mean over the tasks."""
    return statistics.geometric_mean(worth(task, method) for task in SCALES)


def more_steps(task: str, method: str) -> float:
    """Steps to the target over dense's, geometric mean of the seeds."""
    return 1 / worth(task, method)


def extra_steps_on_text(method: str) -> list[float]:
    """Steps to the target beyond dense's, as a share of dense's, on the tasks on text."""
    return [more_steps(task, method) - 1 for task in TEXT]


def in_full(link: str) -> float:
    """How many times as fast as float16 torch's PowerSGD is on ``denoise``, its runs being whole ones."""
    case = ("denoise", link, LOW_RANK)
    complete = [run for run in runs("judgement") if (run.task, run.link, run.method) == case]
    return row("denoise", link, "fp16").tta.median / median_seconds(complete)


def without_start(link: str) -> float:
    """The default's time over PowerSGD's on ``denoise`` by steps to the target times the median step."""
    cut = [
        run.model_copy(update={"tta_s": run.steps_to_target * run.step_s})
        for run in runs("judgement")
        if (run.task, run.link) == ("denoise", link) and run.steps_to_target
    ]
    (verdict,) = verdicts(cut, {("denoise", link): LOW_RANK}, DEFAULT)
    return verdict.ratio


def cell(task: str, link: str, name: str = "judgement") -> Verdict:
    """A judged cell."""
    return next(verdict for verdict in judged(name) if verdict.cell == (task, link))


def over_cells(cells: Sequence[Verdict]) -> Estimate:
    """Geometric mean of the means of cells, and its 95 % interval over cells."""
    return interval([verdict.ratio for verdict in cells])


def mean_over_unseen_seeds(cells: Sequence[Verdict]) -> float:
    """Geometric mean of the ratios of the last two of five seeds, on which no rule had been tried before."""
    assert all(len(verdict.ratios) == 5 for verdict in cells)
    return statistics.geometric_mean(ratio for verdict in cells for ratio in verdict.ratios[3:])


def doubt() -> float:
    """Half of a cell's 95 % interval, in logarithms, by the deviation of pairs that all cells have in common."""
    cells = [[math.log(ratio) for ratio in verdict.ratios] for verdict in judged()]
    pooled = statistics.fmean(statistics.variance(logs) for logs in cells) ** 0.5
    return student(5) * pooled / 5**0.5


def sizes() -> dict[str, int]:
    """Number of parameters of the models of all tasks."""
    return {task: parameters(task) for task in (*SCALES, *LANGUAGE)}


@functools.cache
def parameters(task: str) -> int:
    """Number of parameters of a task's model; of language models by what a dense step of two ranks sends."""
    if task in SCALES:
        model = make(task, scale=SCALES[task], seed=0).model()
        return sum(parameter.numel() for parameter in model.parameters())
    run = next(run for run in runs("language") if (run.task, run.method) == (task, "fp32"))
    assert run.wire_bytes is not None
    return round(run.wire_bytes / run.steps / 4)


def language_speedups(link: str) -> list[float]:
    """How many times as fast as float16 the default is on each language model, median of the pairs."""

    def of_case(task: str, method: str) -> list[TrainingRecord]:
        return [run for run in runs("language") if (run.task, run.link, run.method) == (task, link, method)]

    return [statistics.median(paired_with(of_case(task, DEFAULT), of_case(task, "fp16"))) for task in LANGUAGE]


def judgements() -> dict[str, Any]:
    """Return the cells in which the default, or the default restricted to top-k, was judged, and their worst."""
    cells, topk_cells = judged(), judged("judgement_topk")
    worst, worst_of_topk = (
        max(judged_cells, key=lambda verdict: verdict.ratio) for judged_cells in (cells, topk_cells)
    )
    assert worst.cell == ("lstm", "1gbit")
    assert worst_of_topk.cell == ("denoise", "1gbit")
    assert all(verdict.high > 1.05 for verdict in cells), "none is shown to lie within 5 %"
    above = {verdict.cell for verdict in topk_cells if verdict.low > 1.05}
    assert above == {("charlm", "unthrottled"), ("denoise", "unthrottled"), ("lstm", "1gbit")}
    return {
        "cells": cells,
        "on_fast_links": on_links(cells, *FAST),
        "mean_ratio": mean_ratio,
        "over_cells": over_cells,
        "doubt": doubt(),
        "worst": (worst.ratio, worst.low, worst.high),
        "topk_cells": topk_cells,
        "worst_of_topk": (worst_of_topk.ratio, worst_of_topk.low, worst_of_topk.high),
        "in_full": in_full,
        "without_start": without_start,
    }


def readme() -> dict[str, Any]:
    """Return the numbers of the README."""
    return {"sizes": sizes(), **judgements(), **claims_of_modes.modes()}


def results() -> dict[str, Any]:
    """Return the numbers of the page that says what all measurements come to."""
    assert all(verdict.low < 1 < verdict.high for verdict in language_verdicts())
    return {
        "sizes": sizes(),
        "language_speedups": language_speedups,
        "language_cells": language_verdicts(),
        **judgements(),
        **claims_of_modes.modes(),
    }


def matrices() -> dict[str, Any]:
    """Return the numbers of the page of time to accuracy of all methods."""
    return {
        "sizes": sizes(),
        "speedup": speedup,
        "worth": worth,
        "worth_everywhere": worth_everywhere,
        "more_steps": more_steps,
        "extra_steps_on_text": extra_steps_on_text,
        **judgements(),
        **_matrix(),
        **_judgement(),
        **_again(),
        **_predicting(),
    }


def _matrix() -> dict[str, Any]:
    """Return what the matrix shows."""
    hindsight = hindsight_ratios()
    limits = [row(task, "20mbit", DEFAULT).relative for task in SCALES]
    ours = row("denoise", "20mbit", "powersgd(4)@128").tta.median
    return {
        "repeated_runs": _repeated_runs(),
        "low_rank_over_torchs": ours / row("denoise", "20mbit", LOW_RANK).tta.median,
        "speedups_on_slow_links": [speedup(task, link, DEFAULT) for task in SCALES for link in SLOW],
        "worst_in_hindsight_on_fast_links": max(max(ratios) for (_, link), ratios in hindsight.items() if link in FAST),
        "mean_in_hindsight": statistics.geometric_mean(statistics.median(ratios) for ratios in hindsight.values()),
        "over_the_limit": [limit.median for limit in limits if limit],
    }


def _repeated_runs() -> list[float]:
    """Return the times of the static runs that both files of judgements have, the later over the earlier."""
    earlier, later = (
        {(run.cell, run.method): run.tta_s for run in runs(name) if not run.adaptive}
        for name in ("judgement", "judgement_topk")
    )
    return [seconds / first for case, seconds in later.items() if seconds and (first := earlier.get(case))]


def _judgement() -> dict[str, Any]:
    """Return what the judgement of the default shows, and that of top-k."""
    cells = judged()
    pairs = [ratio for verdict in cells for ratio in verdict.ratios]
    assert min(pairs) == min(cell("lstm", "100mbit").ratios)
    return {
        "cell": cell,
        "topk_cell": functools.partial(cell, name="judgement_topk"),
        "pairs": pairs,
        "on_slow_links": on_links(cells, *SLOW),
        "without_the_lowest": [verdict for verdict in cells if verdict.cell != ("lstm", "100mbit")],
        "losses_on_text": [cell(task, link).ratio - 1 for task in TEXT for link in FAST],
        "over_seeds": over_seeds,
        "mean_over_unseen_seeds": mean_over_unseen_seeds,
    }


def _again() -> dict[str, Any]:
    """Return what ``charlm`` shows with a later version, in ``tta_charlm.json``, beside the matrix, ``tta.json``."""

    def speedup_again(link: str, method: str) -> float:
        default, other = (row("charlm", link, name, "tta_charlm").runs for name in (DEFAULT, method))
        return statistics.median(paired_with(default, other))

    def limit(name: str) -> float:
        return section("charlm", "unthrottled", name).limit or 0.0

    def over_limit(link: str, name: str) -> float:
        return row("charlm", link, DEFAULT, name).tta.median / limit(name)

    def powersgd_step(name: str) -> float:
        return 1000 * statistics.median(run.step_s for run in row("charlm", "20mbit", LOW_RANK, name).runs)

    return {
        "speedup_again": speedup_again,
        "limit": limit,
        "over_limit": over_limit,
        "powersgd_step": powersgd_step,
    }


def _predicting() -> dict[str, Any]:
    """Return how well gain and a short probe predict the efficiency."""
    gains, methods = next((row["mean_gain"], row["methods"]) for row in rows("efficiency") if row["task"] == "charlm")
    fine = ("quantize(8)", "quantize(4)", "quantize(2)", "thc")
    probed = {row["task"]: row["probed"] for row in rows("probed")}
    assert worth_everywhere("thc") > max(worth_everywhere(f"quantize({bits})") for bits in (4, 2))
    return {
        "number_of_runs": len(runs("tta")),
        "number_of_methods": methods,
        "gains": gains,
        "old_belief": old_belief,
        "probed": probed,
        "probed_fine": [of_task[method] for of_task in probed.values() for method in fine],
        "true_fine": [worth(task, method) for task in probed for method in fine],
    }


def old_belief(method: str) -> float:
    """Return the efficiency of a method in the beliefs that gravac had before it was measured."""
    compressor, cf = {
        "quantize(1)": (quantize, 32),
        "quantize(2)": (quantize, 16),
        "thc": (thc, 8),
        "randomk@10": (randomk, 10),
    }[method]
    with use_beliefs(before()):
        return compressor.profile(cf).efficiency


def language() -> dict[str, Any]:
    """Return the numbers of the page of language models."""
    cells = language_verdicts()
    assert len(cells) == 4
    assert all(verdict.low < 1 < verdict.high for verdict in cells)
    return {
        "sizes": sizes(),
        "language_speedups": language_speedups,
        "mean": mean_ratio(cells),
        "pairs": [ratio for verdict in cells for ratio in verdict.ratios],
        "slow_pairs": [ratio for verdict in on_links(cells, "20mbit") for ratio in verdict.ratios],
    }


def paper() -> dict[str, Any]:
    """Return the numbers of the page of the GraVAC paper's comparisons."""
    by_case = {(run.task, run.method): run for run in runs("talk")}
    stopped = [run for run in runs("talk") if run.task == "denoise" and run.method.startswith("gravac")]
    assert all(run.tta_s is None for run in stopped)
    coarse = [
        (by_case[task, method].tta_s, by_case[task, "topk@10"].tta_s)
        for task in talk.TASKS
        for method in talk.STATIC
        if "1000" in method
    ]
    return {
        "run": lambda task, method: by_case[task, method],
        "fallback_shares": _fallback_shares(by_case),
        "speedups_at_1000": [of_topk_10 / seconds for seconds, of_topk_10 in coarse if seconds and of_topk_10],
        "stopped": stopped,
    }


def _fallback_shares(by_case: dict[tuple[str, str], TrainingRecord]) -> dict[str, list[float]]:
    """Return the shares of steps that GraVAC sends in 16 bit, as repaired, or dense, as printed."""
    shares: dict[str, list[float]] = {"repaired": [], "as_printed": []}
    for task in talk.TASKS:
        for label, method in talk.ADAPTIVE.items():
            if label.startswith("GraVAC") and ("top-k" in label or "DGC" in label):
                steps = talk.steps_at(by_case[task, method])
                rule, fallback = ("as_printed", 1.0) if "as printed" in label else ("repaired", 2.0)
                shares[rule].append(steps[fallback] / steps.total())
    return shares


def of_page(document: Path, numbers: Callable[[], dict[str, Any]]) -> Callable[[], Sequence[str]]:
    """Return a function that fills the template of a document's name with numbers."""
    return lambda: sentences(document.stem, **numbers())


NUMBERS: dict[Path, Callable[[], dict[str, Any]]] = {
    tables.README: readme,
    tables.RESULTS: results,
    tables.MATRICES: matrices,
    tables.LANGUAGE: language,
    tables.PAPER: paper,
    tables.MEASUREMENTS: claims_of_rows.measurements,
    tables.ADVISE: claims_of_rows.advise,
    tables.MODES: claims_of_modes.modes,
}

CLAIMS: dict[Path, Callable[[], Sequence[str]]] = {
    document: of_page(document, numbers) for document, numbers in NUMBERS.items()
}
"""The sentences of a document."""
