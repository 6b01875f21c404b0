# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of ``gravac bench tta``, the remaining time, and a table of the results. Needs rich."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from gravac.lab.console import PROGRESS_SECONDS, ProgressDisplay, wide_console
from gravac.lab.links.link import PACED
from gravac.lab.links.network import available
from gravac.lab.training.methods import running_at
from gravac.lab.training.run import Event, RunFailed
from gravac.lab.training.session import Leg
from gravac.lab.tta.matrix import Matrix
from gravac.lab.tta.record import TrainingRecord
from gravac.lab.tta.runner import run_matrix


class TtaLive(ProgressDisplay):
    """A watcher that shows a line with a bar on a terminal; otherwise a line every few seconds and one per record."""

    def __init__(self, console: Console, paced: bool) -> None:
        self.failures = 0
        self._console = console
        self._note = f" ({PACED})" if paced else ""
        self._planned = self._existing = self._finished = 0
        self._began = self._latest_line_time = time.monotonic()
        self._metric = ""
        if console.is_terminal:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn()]
            self._progress = Progress(*columns, TextColumn("{task.fields[state]}"), console=console)
            self._bar = self._progress.add_task("runs" + self._note, total=None, state="")

    def planned(self, records: int, existing: int) -> None:
        """See ``Watcher``."""
        self._planned, self._existing = records, existing
        if existing:
            self._print(f"{existing} of {records} runs are in the file already and are not repeated")
        if self._progress:
            self._progress.update(self._bar, total=records, completed=existing)

    def stamped(self, code: str, existing: Sequence[str]) -> None:
        """See ``Watcher``."""
        if others := [other for other in existing if other != code]:
            self._print(
                f"The file holds runs of other code ({', '.join(others)}; this is {code}): new ones are added, but one "
                "table of both takes --mixed"
            )

    def starting(self, cell: str, leg: Leg) -> None:
        """See ``Watcher``."""
        self._show_state(f"{cell}: {leg.method}: starting")

    def event(self, cell: str, leg: Leg, event: Event) -> None:
        """See ``Watcher``."""
        if event["event"] == "start":
            self._metric = ""
        elif event["event"] == "evaluation":
            self._metric = f"  metric {event['metric']:.3f}" + (f" of {leg.target:.3f}" if leg.target else "")
        elif event["event"] == "step":
            choice = "" if event["cf"] is None else f"  {running_at(leg.method, event['cf'], event['mode'])}"
            choice += f" every {event['every']} steps" if event.get("every") else ""
            self._show_state(
                f"{cell}: {leg.method}: step {event['step']}  {event['seconds']:.0f} s{self._metric}{choice}"
            )

    def finished(self, run: TrainingRecord) -> None:
        """Print what a finished run came to, and advance the progress bar."""
        self._finished += 1
        result = f"target after {run.tta_s:.1f} s" if run.tta_s is not None else f"not within {run.seconds:.0f} s"
        mark = " (factored)" if run.factored else ""
        self._print(
            f"{run.task} {run.link} seed {run.seed}: {run.method}: {result}, {run.steps} steps of "
            f"{1000 * run.step_s:.0f} ms{mark}{self._note}"
        )
        if self._progress:
            self._progress.update(self._bar, completed=self._existing + self._finished)

    def failed(self, cell: str, leg: Leg, error: RunFailed) -> None:
        """See ``Watcher``."""
        self.failures += 1
        self._print(f"{cell}: {leg.method} FAILED and is left out: {error}")

    def _remaining_time(self) -> str:
        """Return the estimated remaining time as text; empty before the first record."""
        if not self._finished:
            return ""
        seconds_per_run = (time.monotonic() - self._began) / self._finished
        remaining = seconds_per_run * max(0, self._planned - self._existing - self._finished)
        return f"  about {remaining / 60:.0f} min left" if remaining >= 90 else f"  about {remaining:.0f} s left"

    def _show_state(self, state: str) -> None:
        if self._progress:
            self._progress.update(self._bar, state=escape(state) + self._remaining_time())
        elif time.monotonic() - self._latest_line_time >= PROGRESS_SECONDS:
            self._print(state + self._note + self._remaining_time())

    def _print(self, text: str) -> None:
        self._latest_line_time = time.monotonic()
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def run_tta(matrix: Matrix, console: Console | None = None) -> int:
    """Run a matrix, show its progress and results, and return the number of failed runs.

    Raises:
        RunFailed: the reference run failed, or did not reach the target.
        LinkError: a link cannot be made.
        SettingsError: the result file has other contents than records of runs.
        ValueError: the user has no rights to make links, and the matrix has methods that cannot be paced.
    """
    console = wide_console(console)
    reason = "asked for with --paced" if matrix.paced else available()
    if reason is not None and not matrix.paced:
        matrix = Matrix(**{**vars(matrix), "paced": True})
    if reason is not None:
        console.print(f"Links: {PACED} ({reason}).", highlight=False, soft_wrap=True, markup=False)
    with TtaLive(console, matrix.paced) as live:
        runs = run_matrix(matrix, live)
    selected = [run for run in runs if run.task in matrix.tasks and run.method in matrix.methods]
    console.print(table(selected, matrix.paced))
    if matrix.json is not None:
        console.print(f"Written to {matrix.json}. To see it: gravac report {matrix.json} --out DIR", soft_wrap=True)
    return live.failures


def table(runs: Sequence[TrainingRecord], paced: bool) -> Table:
    """Return a table with a row per run: time and steps to the target, speed, bytes."""
    shown = Table(title=PACED if paced else None, box=SIMPLE_HEAVY, pad_edge=False, collapse_padding=True)
    for heading in ("task", "link", "seed", "method"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("TTA s", "steps", "every", "ms a step", "samples/s", "MB sent", "gain"):
        shown.add_column(heading, justify="right", no_wrap=True)
    order = sorted(runs, key=lambda run: (run.task, run.link, run.seed, run.tta_s is None, run.tta_s or 0))
    for run in order:
        shown.add_row(
            run.task,
            run.link,
            str(run.seed),
            escape(run.method) + ("†" if run.factored else ""),
            f"{run.tta_s:.1f}" if run.tta_s is not None else f"> {run.seconds:.0f}",
            str(run.steps_to_target or f"> {run.steps}"),
            f"{run.every or 1:.3g}",
            f"{1000 * run.step_s:.0f}",
            f"{run.samples_per_s:.0f}",
            "-" if run.wire_bytes is None else f"{run.wire_bytes / 1e6:.1f}",
            "-" if run.gain is None else f"{run.gain:.3f}",
        )
    if any(run.factored for run in runs):
        shown.caption = "† factored: steps of the unthrottled run times the step time on this link"
    return shown
