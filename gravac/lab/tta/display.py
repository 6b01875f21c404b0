# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Prints the progress of ``gravac bench tta`` and a table of the results, and writes CSV and plots.

Needs rich and matplotlib.
"""

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
from gravac.lab.links.network import emulation_obstacle
from gravac.lab.training.run import Event, RunFailed
from gravac.lab.training.session import Leg
from gravac.lab.tta.matrix import RunMatrix
from gravac.lab.tta.plot import draw_losses, draw_times
from gravac.lab.tta.record import TrainingRecord, write_csv
from gravac.lab.tta.runner import run_matrix


class TtaLive(ProgressDisplay):
    """Prints the progress of ``gravac bench tta``; implements ``Watcher``, which says when each function is called.

    On a terminal there is a progress bar, otherwise a line of text every few seconds. Each finished run adds a line.

    Args:
        console: console to print on.
        paced: whether gravac slows down its own exchange, because links are not emulated; each line then says "paced".
    """

    def __init__(self, console: Console, paced: bool) -> None:
        self.failures = 0
        self._console = console
        self._paced_note = f" ({PACED})" if paced else ""
        self._record_count = self._existing_count = self._finished_count = 0
        self._start_time = self._latest_line_time = time.monotonic()
        self._metric_text = ""
        if console.is_terminal:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn()]
            self._progress = Progress(*columns, TextColumn("{task.fields[state]}"), console=console)
            self._progress_bar_id = self._progress.add_task("runs" + self._paced_note, total=None, state="")

    def show_plan(self, record_count: int, existing_count: int) -> None:
        """Set the progress bar's length, and print how many of the needed runs the result file has already.

        Args:
            record_count: number of records of runs that are needed, those in the result file included.
            existing_count: number of needed records that the result file has already, and that are not run again.
        """
        self._record_count, self._existing_count = record_count, existing_count
        if existing_count:
            self._print(f"{existing_count} of {record_count} runs are in the result file already and are not repeated")
        if self._progress:
            self._progress.update(self._progress_bar_id, total=record_count, completed=existing_count)

    def show_commits(self, code: str, existing_codes: Sequence[str]) -> None:
        """Print a line if the result file has runs of another commit than the present code.

        Args:
            code: text that names the commit of the present code, ``Stamp.code``.
            existing_codes: ``Stamp.code`` of the runs in the result file, each commit once.
        """
        if other_codes := [commit for commit in existing_codes if commit != code]:
            self._print(
                f"The result file holds runs of other code ({', '.join(other_codes)}; this is {code}): new runs are "
                "added to the file, and table and plots show both"
            )

    def show_start(self, cell_text: str, leg: Leg) -> None:
        """Show that a leg (the training of a fresh model with one method) starts.

        Args:
            cell_text: text that names task, link and seed of the leg.
            leg: leg that starts.
        """
        self._show_state(f"{cell_text}: {leg.method}: starting")

    def show_event(self, cell_text: str, leg: Leg, event: Event) -> None:
        """Show a step that rank 0 reported, with the latest validation metric; remember a reported metric.

        Args:
            cell_text: text that names task, link and seed of the leg.
            leg: leg that the event belongs to.
            event: event of rank 0; ``"event"`` is its kind.
        """
        if event["event"] == "start":
            self._metric_text = ""
        elif event["event"] == "evaluation":
            self._metric_text = f"  metric {event['metric']:.3f}" + (f" of {leg.target:.3f}" if leg.target else "")
        elif event["event"] == "step":
            running_text = f"  {event['running']}" if event["running"] else ""
            self._show_state(
                f"{cell_text}: {leg.method}: step {event['step']}  {event['seconds']:.0f} s{self._metric_text}"
                f"{running_text}"
            )

    def show_finished_run(self, run: TrainingRecord) -> None:
        """Print a line with the result of a finished run, and advance the progress bar."""
        self._finished_count += 1
        result_text = (
            f"target after {run.tta_s:.1f} s"
            if run.tta_s is not None
            else f"target not reached within {run.seconds:.0f} s"
        )
        self._print(
            f"{run.task_name} {run.link} seed {run.seed}: {run.method}: {result_text}, {run.steps} steps of "
            f"{1000 * run.step_s:.0f} ms{self._paced_note}"
        )
        if self._progress:
            self._progress.update(self._progress_bar_id, completed=self._existing_count + self._finished_count)

    def show_failed_leg(self, cell_text: str, leg: Leg, error: RunFailed) -> None:
        """Print that a leg (the training of a fresh model with one method) failed, and count the failure.

        Args:
            cell_text: text that names task, link and seed of the leg.
            leg: leg that failed.
            error: error with the end of a worker's output.
        """
        self.failures += 1
        self._print(f"{cell_text}: the run of {leg.method} FAILED and is left out: {error}")

    def _remaining_time(self) -> str:
        """Return a text such as ``"  about 12 min left"``; empty before the first run has finished."""
        if not self._finished_count:
            return ""
        seconds_per_run = (time.monotonic() - self._start_time) / self._finished_count
        remaining_s = seconds_per_run * max(0, self._record_count - self._existing_count - self._finished_count)
        return f"  about {remaining_s / 60:.0f} min left" if remaining_s >= 90 else f"  about {remaining_s:.0f} s left"

    def _show_state(self, state_text: str) -> None:
        """Show a text beside the progress bar; without a bar, print it at most every ``PROGRESS_SECONDS`` seconds.

        Args:
            state_text: text that says what runs now.
        """
        if self._progress:
            self._progress.update(self._progress_bar_id, state=escape(state_text) + self._remaining_time())
        elif time.monotonic() - self._latest_line_time >= PROGRESS_SECONDS:
            self._print(state_text + self._paced_note + self._remaining_time())

    def _print(self, text: str) -> None:
        """Print a line of plain text, and remember the time of printing."""
        self._latest_line_time = time.monotonic()
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def run_tta(matrix: RunMatrix, console: Console | None = None) -> int:
    """Train every combination of the given tasks, links, methods and seeds; print progress and a table of the results.

    Beside the result file, if there is one, a CSV of all evaluations and two plots are written.
    If this machine cannot emulate links, gravac slows down its own exchange to the link's rate instead (``paced``).

    Args:
        matrix: tasks, links, methods and seeds to run, and how.
        console: console to print on; ``None``: standard output.

    Returns:
        Number of runs that failed and have no record.

    Raises:
        RunFailed: the reference run (native DDP, which sets the target) failed, or did not reach the target.
        LinkError: an emulated link cannot be made.
        SettingsError: the result file has other contents than records of runs.
        ValueError: links cannot be emulated, and ``matrix`` has a method, link or mesh for which gravac cannot slow
            down the exchange instead.
    """
    console = wide_console(console)
    pacing_reason = "requested by --paced" if matrix.paced else emulation_obstacle()
    if pacing_reason is not None and not matrix.paced:
        matrix = RunMatrix(**{**vars(matrix), "paced": True})
    if pacing_reason is not None:
        console.print(f"Links: {PACED} ({pacing_reason}).", highlight=False, soft_wrap=True, markup=False)
    with TtaLive(console, matrix.paced) as tta_display:
        runs = run_matrix(matrix, tta_display)
    selected_runs = [
        run
        for run in runs
        if run.task in matrix.tasks
        and run.method in matrix.methods
        and (run.scale, run.workers, run.mesh) == (matrix.scale, matrix.workers, matrix.mesh_text)
    ]
    console.print(results_table(selected_runs, matrix.paced))
    if matrix.json is not None:
        csv_path, losses_path, times_path = (
            matrix.json.with_name(matrix.json.stem + ending)
            for ending in ("-evaluations.csv", "-loss.png", "-times.png")
        )
        write_csv(csv_path, runs)
        written_paths = [matrix.json, csv_path]
        if selected_runs:
            draw_losses(selected_runs, losses_path)
            draw_times(selected_runs, times_path)
            written_paths += [losses_path, times_path]
        console.print(f"Results written to {', '.join(map(str, written_paths))}", soft_wrap=True, highlight=False)
    return tta_display.failures


def results_table(runs: Sequence[TrainingRecord], paced: bool) -> Table:
    """Return a table with one row per run: time and steps to the target, speed, bytes sent, and gain.

    Rows are sorted by task, link, seed, and time to the target.

    Args:
        runs: records to show.
        paced: whether gravac slowed down its own exchange instead of using emulated links; the title then says "paced".
    """
    run_table = Table(title=PACED if paced else None, box=SIMPLE_HEAVY, pad_edge=False, collapse_padding=True)
    for heading in ("task", "link", "seed", "method"):
        run_table.add_column(heading, no_wrap=True)
    for heading in ("TTA s", "steps", "every", "ms a step", "samples/s", "MB sent", "gain"):
        run_table.add_column(heading, justify="right", no_wrap=True)
    sorted_runs = sorted(runs, key=lambda run: (run.task, run.link, run.seed, run.tta_s is None, run.tta_s or 0))
    for run in sorted_runs:
        run_table.add_row(
            run.task_name,
            run.link,
            str(run.seed),
            escape(run.method),
            f"{run.tta_s:.1f}" if run.tta_s is not None else f"> {run.seconds:.0f}",
            str(run.steps_to_target or f"> {run.steps}"),
            f"{run.every or 1:.3g}",
            f"{1000 * run.step_s:.0f}",
            f"{run.samples_per_s:.0f}",
            "-" if run.wire_bytes is None else f"{run.wire_bytes / 1e6:.1f}",
            "-" if run.gain is None else f"{run.gain:.3f}",
        )
    return run_table
