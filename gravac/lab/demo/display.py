# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Shows the progress of the demo's runs while they train, and a table of results afterwards. Needs rich."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from gravac.candidate import Mode
from gravac.lab.console import PROGRESS_SECONDS, ProgressDisplay
from gravac.lab.demo.decisions import describe_change
from gravac.lab.demo.outcome import LABELS, Comparison, DemoOutcome
from gravac.lab.demo.plot import draw_as_text
from gravac.lab.links.link import PACED
from gravac.lab.links.rates import format_rate

MAX_CHANGES = 10
"""If a run has more changes of candidate (way to run steps) than this, those in the middle are not printed."""

MODE_TEXTS: Mapping[Mode, str] = {"native": "by DDP itself", "hook": "by gravac's hook", "outer": "in outer steps"}
"""Words for each mode of steps, printed after the percentage of steps in that mode, as in ``80% by DDP itself``."""


class DemoLive(ProgressDisplay):
    """Display of the progress of the demo's runs, one run for each method.

    A terminal shows a progress bar for each run; other outputs get a line of text every few seconds.

    Args:
        console: console to print on.
        seconds: training time of each run, in seconds.
        methods: names of the methods of all runs, in the order of the runs.
        paced: whether gravac sleeps in exchanges to imitate a slow link; every line then says "paced".
    """

    def __init__(self, console: Console, seconds: float, methods: list[str], paced: bool) -> None:
        self._console = console
        self._seconds = seconds
        self._link_note = f" ({PACED})" if paced else ""
        self._progress_tasks: dict[str, TaskID] = {}
        self._last_shown = 0.0
        self._val_loss = "-"
        if console.is_terminal:
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[state]}")]
            self._progress = Progress(*columns, console=console)
            for method in methods:
                self._progress_tasks[method] = self._progress.add_task(
                    LABELS[method] + self._link_note, total=seconds, state="waiting"
                )

    def show_start(self, method: str) -> None:
        """Show that a run starts; called before its worker processes are started.

        Args:
            method: name of the run's method, a key of ``LABELS``.
        """
        self._val_loss = "-"
        self._last_shown = 0.0
        self._show_state(method, 0.0, "starting: importing torch, connecting")

    def show_event(self, method: str, event: dict[str, Any]) -> None:
        """Show a step or the end of a run, which rank 0 reported; remember the loss of an evaluation for later lines.

        Args:
            method: name of the run's method, a key of ``LABELS``.
            event: event of rank 0; ``"event"`` is its kind: ``"step"``, ``"evaluation"`` or ``"end"``. Events of other
                kinds are ignored.
        """
        event_kind = event["event"]
        if event_kind == "evaluation":
            self._val_loss = f"{event['metric']:.3f}"
        elif event_kind == "end":
            self._last_shown = 0.0
            self._show_state(method, event["seconds"], f"done: {event['step']} steps, validation loss {self._val_loss}")
        elif event_kind == "step":
            gain_text = "-" if event["gain"] is None else f"{event['gain']:.3f}"
            remaining_s = max(0.0, self._seconds - event["seconds"])
            state_text = (
                f"step {event['step']:>4}  loss {event['loss']:.3f}  validation {self._val_loss}  "
                f"{event['running'] or '-'}  gain {gain_text}  "
                f"{event['samples_per_s']:.1f} samples/s  {remaining_s:.0f} s left"
            )
            self._show_state(method, event["seconds"], state_text)

    def _show_state(self, method: str, elapsed_s: float, state_text: str) -> None:
        """Show the state of a run: beside its progress bar, or as a line if the output is no terminal.

        Lines are at least ``PROGRESS_SECONDS`` apart; a state in between is not printed.

        Args:
            method: name of the run's method.
            elapsed_s: seconds of training so far.
            state_text: text to show.
        """
        if self._progress:
            self._progress.update(
                self._progress_tasks[method], completed=min(elapsed_s, self._seconds), state=state_text
            )
        elif time.monotonic() - self._last_shown >= PROGRESS_SECONDS:
            self._last_shown = time.monotonic()
            self._console.print(f"{LABELS[method]}{self._link_note}: {state_text}", highlight=False, soft_wrap=True)


def result_table(comparison: Comparison, *, rate: float, workers: int, paced: bool) -> Table:
    """Return a table with one row per method: steps, speed, bytes sent, and validation losses.

    The losses are those after the same training time, and after the same number of steps.

    Args:
        comparison: runs to compare.
        rate: bits per second of each worker's link.
        workers: number of workers.
        paced: whether gravac slept in exchanges to imitate a slow link, instead of using emulated links.
    """
    table_title = f"{workers} workers at {format_rate(rate)}, {comparison.equal_seconds:.0f} s of training each"
    table = Table(
        title=f"{table_title}\n{PACED}" if paced else table_title,
        box=SIMPLE_HEAVY,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("\nmethod", no_wrap=True)
    for heading in (
        "\nsteps",
        "samples\n/s",
        "MB a\nstep",
        "wire\nratio",
        f"val loss\nat {comparison.equal_seconds:.0f} s",
        f"at step\n{comparison.equal_steps}",
        f"s to loss\n{comparison.target:.3f}",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    lowest_loss = min(outcome.loss_at_time(comparison.equal_seconds) for outcome in comparison.outcomes)
    for outcome in comparison.outcomes:
        table.add_row(*_row_texts(comparison, outcome, lowest_loss))
    return table


def _row_texts(comparison: Comparison, outcome: DemoOutcome, lowest_loss: float) -> list[str]:
    """Return the texts of a run's row of the table, one per column.

    Args:
        comparison: all runs of the table.
        outcome: run of the row.
        lowest_loss: lowest validation loss of all runs after the same training time, nats; printed in bold.
    """
    loss = outcome.loss_at_time(comparison.equal_seconds)
    target_s = outcome.time_to_loss(comparison.target)
    return [
        outcome.label.replace(", ", ",\n", 1),
        str(outcome.steps),
        f"{outcome.samples_per_s:.1f}",
        f"{outcome.bytes_per_step / 1e6:.3f}",
        f"{comparison.wire_ratio(outcome):.2f}",
        f"[bold]{loss:.3f}[/bold]" if loss == lowest_loss else f"{loss:.3f}",
        f"{outcome.loss_at_step(comparison.equal_steps):.3f}",
        "not reached" if target_s is None else f"{target_s:.1f}",
    ]


def show_result(
    console: Console, comparison: Comparison, *, rate: float, workers: int, paced: bool, log_dir: Path
) -> None:
    """Print the plot of losses, the table of results, who won, gravac's decisions, and the paths of picture and logs.

    Args:
        console: console to print on.
        comparison: runs to compare.
        rate: bits per second of each worker's link.
        workers: number of workers.
        paced: whether gravac slept in exchanges to imitate a slow link, instead of using emulated links.
        log_dir: folder of the picture and of the TensorBoard logs.
    """
    console.print(draw_as_text(comparison), highlight=False, markup=False, soft_wrap=True)
    console.print(result_table(comparison, rate=rate, workers=workers, paced=paced))
    link_note = f" ({PACED})" if paced else ""
    for verdict in (comparison.verdict(), comparison.verdict_of_outer_steps()):
        console.print(verdict + link_note, style="bold", highlight=False, soft_wrap=True, markup=False)
    if comparison.equal_seconds < 30:
        console.print(
            "The runs are too short to show whether compression pays. Use --seconds 60 or more.",
            highlight=False,
        )
    for method in ("adaptive", "adaptive-100"):
        _show_changes(console, comparison[method], link_note)
    console.print(
        f"\nThe plot as a picture{link_note}: {escape(str(log_dir / 'loss.png'))}", highlight=False, soft_wrap=True
    )
    console.print(f"TensorBoard logs{link_note}: {escape(str(log_dir))}. To see them:", highlight=False, soft_wrap=True)
    console.print(f"  tensorboard --logdir {escape(str(log_dir))}", highlight=False, soft_wrap=True)


def _show_changes(console: Console, outcome: DemoOutcome, link_note: str) -> None:
    """Print the changes of candidate (way to run steps) in a run, one per line, and the share of steps in each mode.

    If there are more than ``MAX_CHANGES``, those in the middle are left out.

    Args:
        console: console to print on.
        outcome: result of the run.
        link_note: note on the link, to append to the heading; may be empty.
    """
    fraction_by_mode = outcome.fraction_by_mode()
    modes_text = ", ".join(
        f"{fraction_by_mode[mode]:.0%} {text}" for mode, text in MODE_TEXTS.items() if fraction_by_mode.get(mode)
    )
    heading = f"\nDecisions of {outcome.label}{link_note} that changed the candidate (steps: {modes_text}):"
    console.print(heading, highlight=False, soft_wrap=True, markup=False)
    changes, half_count = outcome.cf_path, MAX_CHANGES // 2
    is_too_long = len(changes) > MAX_CHANGES
    for change in changes[:half_count] if is_too_long else changes:
        console.print(escape(describe_change(change)), highlight=False, soft_wrap=True)
    if is_too_long:
        console.print(f"  ... {len(changes) - 2 * half_count} more ...", highlight=False)
        for change in changes[-half_count:]:
            console.print(escape(describe_change(change)), highlight=False, soft_wrap=True)
