# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""GraVAC's published comparisons, like for like: the same compressors, CFs and controllers on the lab's tasks.

Source: Tyagi & Swany, "GraVAC", IEEE CLOUD 2023, section IV, tables 2 and 4. Its runs take some 16 000 steps and its
windows 500 and 2000 of them; ours take some 500, and windows are scaled alike. Beside its volume in floats, which is
all that it counts, stand bytes on the wire and time to accuracy. Interrupted, it goes on where it was.

    python -m tests.measure.talk [--json FILE] [--seeds N] [--tasks T ...] [--link LINK] [--table] [--mixed]
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gravac.lab.tta import record
from gravac.lab.tta.display import TtaLive
from gravac.lab.tta.matrix import REFERENCE_METHOD, RunMatrix
from gravac.lab.tta.record import TrainingRecord
from gravac.lab.tta.runner import run_matrix

TASKS = {"lstm": (1.0, 200, 6.0), "charlm": (0.4, 200, 6.0), "denoise": (1.0, 300, 8.0)}
"""Scale, steps of the dense run and limit, those of ``make measure-tta``."""

STATIC = tuple(f"{base}@{cf}" for base in ("topk", "dgc", "redsync", "randomk") for cf in (10, 1000))

SHORT, LONG = 16, 64
"""Windows for the paper's 500 and 2000 steps."""


def gravac(epsilon: float, base: str, cf_range: str = "10-1000", window: int = SHORT, literal: bool = False) -> str:
    """A method in words: the paper's controller, with its absolute epsilon."""
    settings = f"window={window}, epsilon={epsilon}, epsilon_mode='absolute'" + (", paper_literal=True" * literal)
    return f"gravac({settings}):{base}@{cf_range}"


ADAPTIVE = {
    **{
        f"GraVAC{' as printed' * literal}, ε {epsilon}, top-k": gravac(epsilon, "topk", literal=literal)
        for epsilon in (0.7, 0.9)
        for literal in (False, True)
    },
    **{f"GraVAC, ε {epsilon}, DGC": gravac(epsilon, "dgc") for epsilon in (0.7, 0.9)},
    "GraVAC, ε 0.7, random-k from 1.5x": gravac(0.7, "randomk", "1.5-1000", LONG),
    "Accordion, top-k": "accordion(epoch=20, every=2):topk@10-1000",
    "Accordion, PowerSGD 16x-64x": "accordion(epoch=20, every=2):powersgd@16-64",
    "GraVAC, ε 0.7, PowerSGD 16x-64x": gravac(0.7, "powersgd", "16-64"),
    "`goodput`, top-k": "goodput:topk@10-1000",
}
"""By what a table says; CFs from 10x to 1000x but where it says otherwise."""


def steps_at(run: TrainingRecord) -> Counter[float]:
    """Steps of a run by the CF they ran at (of Accordion: at which the tensors ran that were critical)."""
    counted: Counter[float] = Counter()
    turns = [turn for turn in run.turns if turn.changed or turn.step == 0]
    for turn, following in zip(turns, [*turns, None][1:], strict=True):
        until = run.steps if following is None else min(following.step, run.steps)
        counted[round(turn.cf, 1)] += max(until - turn.step, 0)
    return counted


def floats_saved(run: TrainingRecord) -> float | None:
    """Floats of dense steps over floats sent, of the tensors that are compressed; ``None`` where CFs are not known."""
    counted = steps_at(run)
    if not counted:
        return float(run.method.rpartition("@")[2]) if "@" in run.method else None
    return counted.total() / sum(steps / cf for cf, steps in counted.items())


def missed(runs: Sequence[TrainingRecord], needed: float) -> str:
    """Of runs that did not reach the target: their time; with fewer steps than dense needs they were stopped."""
    seconds = f"{min(run.seconds for run in runs):.0f}"
    return f"stopped at {seconds}" if any(run.steps < needed for run in runs) else f"> {seconds}"


def table(runs: Sequence[TrainingRecord]) -> str:
    """As Markdown; medians over seeds. Speed-up is relative to top-k at 10x, as in the paper, and to native float32."""
    said = {method: f"`{method}`" for method in (REFERENCE_METHOD, *STATIC)} | {
        m: label for label, m in ADAPTIVE.items()
    }
    adaptive = set(ADAPTIVE.values())
    lines = []
    for task, link in dict.fromkeys((run.task, run.link) for run in runs if run.method in adaptive):
        own = [run for run in runs if (run.task, run.link) == (task, link)]
        dense_bytes = next(r.wire_bytes / r.steps for r in runs if (r.task, r.method) == (task, REFERENCE_METHOD))
        by_method = {method: [run for run in own if run.method == method] for method in said}
        times = {method: statistics.median(run.tta_s or math.inf for run in by_method[method]) for method in said}
        seeds = len(by_method[REFERENCE_METHOD])
        needed = statistics.median(run.steps_to_target or run.steps for run in by_method[REFERENCE_METHOD])
        lines += [
            "",
            f"{task}, {link}, {seeds} seed{'s' * (seeds > 1)}:",
            "",
            "| method | time, s | to `topk@10` | to `fp32` | steps | floats saved | wire ratio | steps by CF |",
            "|" + " --- |" * 8,
        ]
        for method, time in times.items():
            mine = by_method[method]
            reached = [run.steps_to_target for run in mine if run.steps_to_target is not None]
            known = [saved for run in mine if (saved := floats_saved(run)) is not None]
            spent = sum((steps_at(run) for run in mine), Counter[float]())
            cells = (
                said[method],
                f"{time:.1f}" if time < math.inf else missed(mine, needed),
                *(f"{times[other] / time:.2f}" if time < math.inf else "" for other in ("topk@10", REFERENCE_METHOD)),
                f"{statistics.median(reached):.0f}" if time < math.inf else f"> {min(run.steps for run in mine)}",
                f"{statistics.median(known):.1f}" if known else "",
                f"{statistics.median(dense_bytes * run.steps / run.wire_bytes for run in mine):.1f}",
                ", ".join(f"{cf:g}: {count / sum(spent.values()):.0%}" for cf, count in sorted(spent.items()))
                if method in adaptive
                else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("docs/measurements/talk.json"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", nargs="+", default=tuple(TASKS))
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--table", action="store_true", help="run nothing, print the results in the file")
    parser.add_argument("--mixed", action="store_true", help="allow runs of several commits in the table, with a note")
    arguments = parser.parse_args()
    for task in () if arguments.table else arguments.tasks:
        scale, budget, limit = TASKS[task]
        with TtaLive(Console(), paced=False) as live:
            matrix = RunMatrix(
                tasks=(task,),
                links=(arguments.link,),
                methods=(REFERENCE_METHOD, *STATIC, *ADAPTIVE.values()),
                seeds=tuple(range(arguments.seeds)),
                scale=scale,
                budget=budget,
                limit=limit,
                factored=True,
                json=arguments.json,
            )
            run_matrix(matrix, live)
    runs = record.read([arguments.json])
    print(record.commits_of([arguments.json], runs, arguments.mixed))
    print(table(runs))


if __name__ == "__main__":
    main()
